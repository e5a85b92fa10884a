//! Tests a store without scripts, which sends plain commands in transactions.

use std::num::NonZeroU32;
use std::time::Duration;

use spillgate::{FallbackStore, MemoryOptions, MemoryStore, StoreErrorKind};
use spillgate_core::{Anchor, Binding, Decision, Hit, Op, OpKind, Quota, Reason, Store, Time, Timing, Wait};
use spillgate_redis::{RedisStore, Settings, TRANSACTION_COMMANDS};
use spillgate_testkit::{Fault, Remote};
use tokio::time::{Instant, sleep};

use crate::modes::{ask, settings};
use crate::support::client::RedisServer;

const DAY: Duration = Duration::from_secs(86_400);
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a store without scripts. Its Redis user has only the rights that such a store needs.
fn store(server: &RedisServer) -> RedisStore {
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "limiter", "on", ">secret", "~sg:*", "-@all"]);
    for command in TRANSACTION_COMMANDS {
        user.arg(format!("+{}", command.to_lowercase()));
    }
    server.connect().ask_one(user);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    RedisStore::new(&Settings { url, scripts: false, ..settings(server) }).expect("the URL is valid")
}

fn first_hit(limit: u64, window: Duration) -> Quota {
    Quota::fixed_window(limit, window).anchor(Anchor::FirstHit).build().expect("the quota is valid")
}

fn epoch(limit: u64, window: Duration) -> Quota {
    Quota::fixed_window(limit, window).build().expect("the quota is valid")
}

#[tokio::test]
async fn takes_and_looks_count_down_to_nothing() {
    let server = RedisServer::start();
    let store = store(&server);
    store.wait_connected().await.expect("a store without scripts connects without the right to load scripts");
    for (key, quota) in (1u128..).zip([first_hit(5, DAY), epoch(5, DAY * 365)]) {
        let (_, look) = ask(&store, key, &quota, Op::Peek).await;
        assert_eq!((look.remaining, look.reset_after_ns), (5, 0));
        for left in (0..5).rev() {
            let (verdict, decision) = ask(&store, key, &quota, Op::take(1)).await;
            assert_eq!((verdict.allowed, decision.remaining, decision.limit), (true, left, 5));
            assert_eq!(decision.receipt, None, "without scripts a take has no receipt");
            let (_, look) = ask(&store, key, &quota, Op::Peek).await;
            assert_eq!((look.allowed, look.remaining), (true, left));
            let window_ns = quota.window_ns();
            assert!((1..=window_ns).contains(&look.reset_after_ns), "{look:?}");
        }
        let (verdict, decision) = ask(&store, key, &quota, Op::take(1)).await;
        assert_eq!((verdict.allowed, decision.remaining, decision.reason), (false, 0, Reason::Exceeded));
        assert!(decision.retry_after > Wait::NONE && decision.retry_after <= Wait::After(quota.window_ns()));
        let (_, never) = ask(&store, key, &quota, Op::take(6)).await;
        assert_eq!((never.reason, never.retry_after), (Reason::CostAboveCapacity, Wait::Never));
    }
}

#[tokio::test]
async fn a_refused_attempt_counts() {
    let server = RedisServer::start();
    let store = store(&server);
    for (key, quota) in (1u128..).zip([first_hit(5, DAY), epoch(5, DAY * 365)]) {
        assert!(ask(&store, key, &quota, Op::take(3)).await.0.allowed);
        let (verdict, decision) = ask(&store, key, &quota, Op::take(3)).await;
        assert_eq!((verdict.allowed, decision.remaining), (false, 0), "the counter is at 3 + 3 = 6");
        // With scripts this take would fit, because refusals would charge nothing.
        let (verdict, decision) = ask(&store, key, &quota, Op::take(2)).await;
        assert_eq!((verdict.allowed, decision.remaining), (false, 0));
    }
}

#[tokio::test]
async fn each_hit_is_charged_by_itself() {
    let server = RedisServer::start();
    let store = store(&server);
    let (few, many) = (first_hit(1, DAY), epoch(10, DAY * 365));
    let hits = [(&few, 1), (&many, 2)].map(|(quota, key)| Hit::new(key, quota, Op::take(1), Binding::Enforce));
    let mut reported = Vec::new();
    for _ in 0..3 {
        let mut decisions = [Decision::default(); 2];
        let verdict = store.decide(Timing::BY_STORE, &hits, &mut decisions).await.expect("Redis answers");
        reported.push((verdict.allowed, verdict.binding, decisions[1].remaining));
    }
    // The first limit refuses the second request, but the second limit charges it anyway. The third request is refused
    // by the deny cache, so it charges no limit.
    assert_eq!(reported, [(true, Some(0), 9), (false, Some(0), 8), (false, Some(0), 8)]);
    assert_eq!(ask(&store, 2, &many, Op::Peek).await.1.remaining, 8);
    // Two hits on one counter are decided in their order.
    let hits = [3, 8].map(|cost| Hit::new(3, &many, Op::take(cost), Binding::Enforce));
    let mut decisions = [Decision::default(); 2];
    let verdict = store.decide(Timing::BY_STORE, &hits, &mut decisions).await.expect("Redis answers");
    assert_eq!((verdict.allowed, decisions.map(|d| (d.allowed, d.remaining))), (false, [(true, 7), (false, 0)]));
}

#[tokio::test]
async fn many_tasks_are_admitted_the_limit_and_with_higher_costs_never_more() {
    let server = RedisServer::start();
    let stores = [store(&server), store(&server)];
    let quotas = [first_hit(1000, DAY), epoch(1000, DAY * 365)];
    for (key, (quota, costs)) in (1u128..).zip(quotas.iter().flat_map(|quota| [(quota, 1), (quota, 7)])) {
        let tasks: Vec<_> = (0..64)
            .map(|i| {
                let (store, quota) = (stores[i % 2].clone(), quota.clone());
                tokio::spawn(async move {
                    let mut admitted = 0;
                    for turn in 0..40 {
                        let cost = 1 + (i as u64 + turn) % costs;
                        let (verdict, _) = ask(&store, key, &quota, Op::take(cost)).await;
                        admitted += if verdict.allowed { cost } else { 0 };
                    }
                    admitted
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("no task panics");
        }
        // A refused take is counted too. So with costs of several units, a few units can stay unused.
        let least = if costs == 1 { 1000 } else { 1000 - costs };
        assert!((least..=1000).contains(&sum), "{sum} of 1000 admitted at costs up to {costs}: {quota:?}");
    }
}

#[tokio::test]
async fn a_window_by_the_first_hit_lasts_as_long_as_it_says() {
    let server = RedisServer::start();
    let store = store(&server);
    let window = Duration::from_millis(150);
    let quota = first_hit(2, window);
    let (mut starts, mut counts, mut longest) = (Vec::new(), Vec::new(), Duration::ZERO);
    let deadline = Instant::now() + PATIENCE;
    // On a busy machine, a window can be over before its second take.
    while starts.len() < 5 || !counts.contains(&2) {
        assert!(Instant::now() < deadline, "windows begin at {starts:?}");
        let sent = Instant::now();
        let (verdict, decision) = ask(&store, 1, &quota, Op::take(1)).await;
        if verdict.allowed && decision.remaining == 1 {
            starts.push(verdict.now);
            counts.push(0);
        }
        longest = longest.max(sent.elapsed());
        if verdict.allowed {
            *counts.last_mut().expect("a window has begun") += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    for begun in starts.windows(2) {
        let lasted = begun[1].as_nanos() - begun[0].as_nanos();
        // Redis can stand still between the take and the command that asks for its time.
        assert!(u128::from(lasted) + longest.as_nanos() >= window.as_nanos(), "a window lasted only {lasted} ns");
    }
    assert!(counts.iter().all(|count| *count <= 2), "{counts:?}");
}

#[tokio::test]
async fn windows_since_the_epoch_admit_the_limit_each() {
    let server = RedisServer::start();
    let stores = [store(&server), store(&server)];
    let quota = epoch(3, Duration::from_millis(100));
    let (mut admitted, mut first, mut last, mut longest) = (0, None, Time::EPOCH, Duration::ZERO);
    let deadline = Instant::now() + PATIENCE;
    // Even on a busy machine, the loop goes on until ten windows have passed on the clock of Redis, and the units of
    // five windows have been admitted.
    while admitted < 3 * 5
        || first.is_none_or(|first: Time| last.as_nanos() - first.as_nanos() < 10 * quota.window_ns())
    {
        assert!(Instant::now() < deadline, "only {admitted} units were admitted from {first:?} to {last:?}");
        for store in &stores {
            let sent = Instant::now();
            let (verdict, _) = ask(store, 1, &quota, Op::take(1)).await;
            longest = longest.max(sent.elapsed());
            admitted += u64::from(verdict.allowed);
            first = first.or(Some(verdict.now));
            last = last.max(verdict.now);
        }
        sleep(Duration::from_millis(1)).await;
    }
    // With scripts, the quota admits at most `f(s)` units in a time `s`. Without scripts, the bound is `f(s + 2d)`,
    // where `d` is the longest time of a request plus 0.5 ms. The 0.5 ms are for the clocks: the store computes the
    // number of a window from a time that Redis reported at most one second ago. In one second, the clocks of store and
    // Redis drift apart by less than 1 ms = 2 * 0.5 ms.
    let (s, d) = (last.as_nanos() - first.map_or(0, Time::as_nanos), (longest.as_nanos() + 500_000) as u64);
    let bound = 3 * ((s + 2 * d).div_ceil(quota.window_ns()) + 1);
    assert!(
        admitted <= bound,
        "{admitted} units in {s} ns exceed the bound {bound}; the longest request took {longest:?}"
    );
}

/// During a failure of the store, this node admits units by itself, and refunds them by itself. Such a refund can be in
/// one request with hits that the store decides.
#[tokio::test]
async fn a_local_receipt_may_stand_beside_what_the_store_decides() {
    let server = RedisServer::start();
    let shared = Remote::new(store(&server)).with(Fault::Disconnected);
    let store = FallbackStore::new(shared, MemoryStore::new(MemoryOptions::default()), NonZeroU32::MIN);
    let quotas = [first_hit(2, DAY), epoch(9, DAY * 365)];
    let now = Time::from_nanos(1_790_000_000_000_000_000);
    let taken = [Hit::new(1, &quotas[0], Op::take(1), Binding::Enforce)];
    let mut decisions = [Decision::default(); 2];
    store.decide(Timing::at(now), &taken, &mut decisions[..1]).await.expect("this node decides");
    store.shared().set(Fault::None);
    let receipt = decisions[0].receipt;
    let undo = taken[0].with_op(Op::Refund { cost: 1, receipt });
    let hits = [undo, Hit::new(2, &quotas[1], Op::take(1), Binding::Enforce)];
    let verdict = store.decide(Timing::at(now), &hits, &mut decisions).await.expect("this node and the store decide");
    assert!(verdict.allowed && decisions[1].remaining >= 7, "{verdict:?} {decisions:?}");
    let look = taken[0].with_op(Op::Peek);
    assert_eq!(store.local().hit_now(now, &look).remaining, 2, "the unit is refunded");
}

#[tokio::test]
async fn what_cannot_be_served_is_said_at_load_and_refused_when_asked() {
    let server = RedisServer::start();
    let store = store(&server);
    let quotas = [
        Quota::token_bucket(5, DAY).build().expect("the quota is valid"),
        Quota::sliding_window_log(5, DAY).build().expect("the quota is valid"),
        first_hit(5, DAY),
    ];
    assert_eq!(quotas.each_ref().map(|quota| store.supports(quota, OpKind::Take)), [false, false, true]);
    assert!(!store.supports(&quotas[2], OpKind::Refund) && !store.supports(&quotas[2], OpKind::Reset));
    for (quota, op) in [(&quotas[0], Op::take(1)), (&quotas[1], Op::Peek), (&quotas[2], Op::Reset)] {
        let hits = [Hit::new(1, quota, op, Binding::Enforce)];
        let verdict = store.decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut [Decision::default()]).await;
        assert_eq!(verdict.map_err(|error| error.kind()), Err(StoreErrorKind::Malformed), "{op:?} on {quota:?}");
    }
}
