//! Rebuilds a known library with spillgate. The library counts hits on a pair of names, which it calls bucket and key.
//! Each call passes its own options: a window in milliseconds, and a limit.

use super::*;
use spillgate::{Limiter, ManualClock, recipes};
use spillgate_core::Timing;
use spillgate_redis::RedisKey;

/// Returns the quota for at most `max_limit` hits in `window_ms`.
fn options(window_ms: u64, max_limit: u64) -> Quota {
    build(Quota::sliding_window_log(max_limit, Duration::from_millis(window_ms)))
}

/// The answers of the known library. Each entry is a hit: its time in milliseconds, and its answer, which is `Ok` with
/// the units that are left, or `Err` with the milliseconds until a retry.
const TRACE: [(u64, Result<u64, u64>); 10] = [
    (0, Ok(4)),
    (100, Ok(3)),
    (200, Ok(2)),
    (300, Ok(1)),
    (400, Ok(0)),
    (500, Err(500)),
    (999, Err(1)),
    (1000, Ok(0)),
    (1001, Err(99)),
    (1100, Ok(0)),
];

/// Sends the hits of the trace. After the last allowed hit, and after a refusal, no units are left. But only a refusal
/// names a time to retry.
async fn the_trace(store: &impl Store) {
    let quota = options(1000, 5);
    for (t_ms, expected) in TRACE {
        let (_, decision) = take(store, at(t_ms), 1, &quota, 1).await;
        assert_answer(&decision, t_ms, expected);
    }
}

fn assert_answer(decision: &Decision, t_ms: u64, expected: Result<u64, u64>) {
    let found = match decision.allowed {
        true => Ok(decision.remaining),
        false => Err(decision.retry_after.millis_ceil().expect("the wait is finite")),
    };
    assert_eq!(found, expected, "at {t_ms} ms");
    assert_eq!((decision.limit, decision.remaining), (5, found.unwrap_or(0)), "at {t_ms} ms");
}

#[tokio::test]
async fn the_trace_is_answered_as_it_says() {
    let server = Server::start();
    the_trace(&redis(&server)).await;
    the_trace(&memory()).await;
}

#[test]
fn the_recipe_answers_the_trace() {
    let clock = ManualClock::default();
    let limiter = Limiter::with_clock(memory(), clock.clone());
    for (t_ms, expected) in TRACE {
        clock.set(at(t_ms).expect("`at` returns a time"));
        let decision = recipes::hit_now(&limiter, "bucket", "key", 5, SECOND).expect("the limit is valid");
        assert_answer(&decision, t_ms, expected);
    }
}

/// Sends one hit each millisecond, from 956 ms on. If the log stored whole seconds, the hits from 956 ms to 960 ms
/// would have the time 0. They would leave the window at 1000 ms, and five more hits would be admitted too early.
async fn a_window_is_as_long_as_asked(store: &impl Store) {
    let quota = options(1000, 5);
    let mut admitted = Vec::new();
    for t_ms in (956..1000).chain(1000..2000) {
        let (_, decision) = take(store, at(t_ms), 1, &quota, 1).await;
        admitted.extend(decision.allowed.then_some(t_ms));
    }
    assert_eq!(admitted, [956, 957, 958, 959, 960, 1956, 1957, 1958, 1959, 1960]);
}

#[tokio::test]
async fn windows_are_no_shorter_than_asked() {
    let server = Server::start();
    a_window_is_as_long_as_asked(&redis(&server)).await;
    a_window_is_as_long_as_asked(&memory()).await;
}

async fn options_differ_between_calls(store: &impl Store) {
    let (usual, premium, costly) = (options(1000, 5), options(1000, 8), 3);
    for left in (0..5).rev() {
        assert_eq!(take(store, at(0), 1, &usual, 1).await.1.remaining, left);
    }
    assert!(!take(store, at(1), 1, &usual, 1).await.1.allowed);
    // Both quotas count in the same state, which has five units. So the premium limit of 8 admits three more. At 1000
    // ms, the first five units have left the window. The other three count under the usual limit of 5 too, so this
    // limit has two units left.
    assert_eq!(take(store, at(2), 1, &premium, costly).await.1.remaining, 0);
    assert!(!take(store, at(999), 1, &premium, 1).await.1.allowed);
    assert_eq!(take(store, at(1000), 1, &usual, 1).await.1.remaining, 1);
}

#[tokio::test]
async fn what_was_counted_is_kept_when_the_options_of_a_call_differ() {
    let server = Server::start();
    options_differ_between_calls(&redis(&server)).await;
    options_differ_between_calls(&memory()).await;
}

/// EXPIRE accepts only whole seconds. A script that writes a hit and then calls EXPIRE with 1.5 seconds fails at this
/// call, and leaves a hit that never expires.
#[tokio::test]
async fn a_window_that_is_no_whole_number_of_seconds_expires_like_any_other() {
    let (server, quotas) = (Server::start(), [60_333, 3_600_500, 1].map(|window_ms| options(window_ms, 5)));
    let store = redis(&server);
    for (key, quota) in (1u128..).zip(&quotas) {
        let hit = Hit::new(key << 100, quota, Op::take(1), Binding::Enforce);
        let name = RedisKey::of(&hit).to_string();
        let (verdict, decision) = take(&store, None, hit.key, quota, 1).await;
        assert_eq!((decision.allowed, decision.remaining), (true, 4));
        let ends_ms: i64 = reply_to(&server, &["PEXPIRETIME", &name]);
        let window_ends = verdict.now.as_nanos() + quota.window_ns();
        // A window of a millisecond can be over before the test reads its key.
        if quota.window_ns() > 100_000_000 {
            assert_eq!(ends_ms.unsigned_abs(), window_ends.div_ceil(1_000_000));
        }
        let (_, decision) = take(&store, at(0), 7, quota, 5).await;
        assert_eq!((decision.allowed, decision.remaining), (true, 0));
        let window_ms = quota.window_ns() / 1_000_000;
        let (_, refused) = take(&store, at(window_ms - 1), 7, quota, 1).await;
        assert_eq!(refused.retry_after.millis_ceil(), Some(1));
        assert!(take(&store, at(window_ms), 7, quota, 5).await.1.allowed);
        server.run(&["FLUSHALL"]);
    }
}

async fn names_do_not_run_together(store: impl Store) {
    let quota = options(60_000, 1);
    let limiter = Limiter::with_clock(store, ManualClock::at(at(0).expect("`at` returns a time")));
    let names = [("a:b", "c"), ("a", "b:c"), ("a:", "b:c"), ("", "a:b:c"), ("a:b:c", ""), ("{a}", "b"), ("a", "{b}")];
    for (bucket, key) in names {
        let decision = limiter.take(&quota, (bucket, key), 1).await.expect("the store answers");
        assert!(decision.allowed, "{bucket:?} and {key:?} must have a state of their own");
    }
    for (bucket, key) in names {
        assert!(!limiter.take(&quota, (bucket, key), 1).await.expect("the store answers").allowed);
    }
}

#[tokio::test]
async fn no_two_pairs_of_bucket_and_key_are_one() {
    let server = Server::start();
    names_do_not_run_together(redis(&server)).await;
    assert_eq!(keys(&server).len(), 7);
    names_do_not_run_together(memory()).await;
}

/// A cluster refuses a command on keys of several slots. So a library that writes several keys for one hit fails on a
/// cluster, unless all these keys are in one slot.
#[tokio::test]
async fn on_a_server_of_a_cluster_no_hit_crosses_slots() {
    let (server, _) = Server::start_node(&[]);
    server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let store = redis(&server);
    let (hour, day) = (options(3_600_000, 5), options(86_400_000, 150));
    let deadline = Instant::now() + PATIENCE;
    while reply_to::<String>(&server, &["CLUSTER", "INFO"]).contains("cluster_state:fail") {
        assert!(Instant::now() < deadline, "the cluster does not serve before the deadline");
        sleep(Duration::from_millis(1)).await;
    }
    for user in 1..=50u128 {
        let key = user << 100 | user;
        let hits = [&hour, &day].map(|quota| Hit::new(key, quota, Op::take(1), Binding::Enforce));
        let mut decisions = [Decision::default(); 2];
        let verdict = store
            .decide(Timing::BY_STORE, &hits, &mut decisions)
            .await
            .expect("all keys of the request are in one slot");
        assert_eq!((verdict.allowed, decisions.map(|decision| decision.remaining)), (true, [4, 149]));
    }
    assert_eq!(keys(&server).len(), 100);
    let slots = (1..=50u128).map(|user| {
        let hit = Hit::new(user << 100 | user, &day, Op::Peek, Binding::Enforce);
        reply_to::<u64>(&server, &["CLUSTER", "KEYSLOT", &RedisKey::of(&hit).to_string()])
    });
    assert!(slots.collect::<std::collections::BTreeSet<u64>>().len() > 40, "the keys of users must be in many slots");
}

#[tokio::test]
async fn the_memory_store_frees_what_has_passed() {
    let (quota, clock) = (options(1000, 5), ManualClock::at(at(0).expect("`at` returns a time")));
    let limiter = Limiter::with_clock(memory(), clock.clone());
    let mut most = 0;
    // A new user comes every millisecond, so at any time a thousand users have a hit in their window.
    for user in 0..100_000 {
        clock.advance(Duration::from_millis(1));
        assert!(
            limiter.take(&quota, ("bucket", &user.to_string()), 1).await.expect("the memory store decides").allowed
        );
        most = most.max(limiter.store().len());
    }
    assert!(most < 20_000, "the memory store had {most} logs at the same time");
}
