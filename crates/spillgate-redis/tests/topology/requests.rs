//! Tests requests with hits in several slots of a cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use spillgate_core::{
    AcrossRegions, Algorithm, Anchor, Binding, Decision, Denied, Hit, MAX_HITS, Op, Quota, Receipt, Regions, State,
    Store as _, Time, Timing, decide,
};
use spillgate_redis::{Circuit, RedisStore, Settings, StoreErrorKind};
use spillgate_testkit::Random;
use tokio::time::{Instant, sleep};

use crate::support::cluster::{Cluster, WITHIN, key_on};
use crate::support::common::{PATIENCE, a_day, until, with_long_timeouts};
use crate::support::server::Server;

struct Fixture {
    keys: Vec<u128>,
    quotas: Vec<Quota>,
    /// For each take that was charged: the index of its key in `keys`, the index of its quota in `quotas`, and its
    /// receipt.
    receipts: Vec<(usize, usize, Receipt)>,
}

fn quotas() -> Vec<Quota> {
    let second = Duration::from_secs(1);
    let builders = [
        Quota::token_bucket(5, second).burst(8),
        Quota::token_bucket(5, second).denied(Denied::Charged),
        Quota::leaky_bucket(5, second).queue(4),
        Quota::fixed_window(6, second),
        Quota::fixed_window(6, second).anchor(Anchor::FirstHit),
        Quota::fixed_window(6, second).penalty(second),
        Quota::sliding_window_counter(6, second),
        Quota::sliding_window_log(6, second),
        Quota::concurrency(6).lease(second),
        // This window differs from those above, so that the quota has its own state. On a shared state, a take whose
        // quota has another `T` (the time in which one unit drains) would change the state's `T`, and a refund would
        // not change it back.
        Quota::token_bucket(4, second * 2).burst(4).soft_ppm(500_000),
    ];
    builders.map(|builder| builder.build().expect("the quota is valid")).into()
}

impl Fixture {
    /// Returns one to five hits. No two hits have the same key and the same quota.
    fn hits(&self, random: &mut Random) -> Vec<Hit<'_>> {
        let mut chosen: Vec<(usize, usize)> = Vec::new();
        for _ in 0..1 + random.index(5) {
            let one = (random.index(self.keys.len()), random.index(self.quotas.len()));
            if !chosen.contains(&one) {
                chosen.push(one);
            }
        }
        let bindings = [Binding::Enforce, Binding::Enforce, Binding::Quota, Binding::Shadow];
        let hit = |(key, quota): (usize, usize)| {
            let op = match random.index(20) {
                0 => Op::Peek,
                1 => Op::Force { cost: 1 },
                2 => {
                    let of = self.receipts.iter().rfind(|(k, q, _)| (*k, *q) == (key, quota));
                    Op::Refund { cost: 1, receipt: of.map(|(_, _, receipt)| *receipt) }
                }
                3 => Op::Reset,
                _ => Op::Take { cost: 1 + random.index(3) as u64, max_wait_ns: u64::MAX },
            };
            Hit::new(self.keys[key], &self.quotas[quota], op, bindings[random.index(4)])
        };
        chosen.into_iter().map(hit).collect()
    }
}

fn kernel(
    states: &mut BTreeMap<u128, State>,
    now: Time,
    hits: &[Hit<'_>],
    decisions: &mut [Decision],
) -> spillgate_core::Verdict {
    let mut keys: Vec<u128> = hits.iter().map(Hit::state_key).collect();
    keys.sort_unstable();
    keys.dedup();
    let state_of: Vec<usize> = hits.iter().filter_map(|hit| keys.binary_search(&hit.state_key()).ok()).collect();
    let mut found: Vec<State> = keys.iter().map(|key| states.remove(key).unwrap_or_default()).collect();
    let verdict = decide(&mut found, &state_of, hits, now, decisions);
    states.extend(keys.into_iter().zip(found));
    verdict
}

/// If a request is refused, the slots that took units refund them, and their states are as if nothing had been taken.
/// So all later decisions agree with the kernel too.
#[tokio::test]
async fn slots_decide_together_what_the_kernel_decides() {
    const REQUESTS: usize = 3000;
    let cluster = Cluster::start(false, &[]);
    let store = cluster.store().await;
    let quotas = quotas();
    let keys = (0..6).map(|i| key_on(&cluster.nodes[0], i % 3, &quotas[0], i as u128)).collect();
    let mut fixture = Fixture { keys, quotas, receipts: Vec::new() };
    let (mut random, mut now) = (Random(7), 1_790_000_000_000_000_000);
    let (mut refused, mut states) = (0, BTreeMap::new());
    for turn in 0..REQUESTS {
        now += random.index(40_000_000) as u64;
        let at = Time::from_nanos(now);
        let hits = fixture.hits(&mut random);
        let (mut reported, mut right) = (vec![Decision::default(); hits.len()], vec![Decision::default(); hits.len()]);
        let verdict = store.decide(Timing::at(at), &hits, &mut reported).await.expect("the cluster serves");
        let rightly = kernel(&mut states, at, &hits, &mut right);
        let mut receipts = Vec::new();
        for (i, hit) in hits.iter().enumerate() {
            if hit.quota.algorithm() == Algorithm::Concurrency {
                // A refunded lease has used up an id, so later receipts can have other ids.
                assert_eq!(reported[i].receipt.is_some(), right[i].receipt.is_some(), "{turn}: {hits:?}");
                right[i].receipt = reported[i].receipt;
            } else if let Some(receipt) = reported[i].receipt {
                let key = fixture
                    .keys
                    .iter()
                    .position(|key| *key == hit.key)
                    .expect("the fixture has this key and this quota");
                let quota = fixture
                    .quotas
                    .iter()
                    .position(|quota| quota == hit.quota)
                    .expect("the fixture has this key and this quota");
                receipts.push((key, quota, receipt));
            }
        }
        assert_eq!(reported, right, "{turn}: {hits:?}");
        assert_eq!(verdict, rightly, "{turn}: {hits:?}");
        refused += usize::from(!verdict.allowed);
        drop(hits);
        fixture.receipts.extend(receipts);
    }
    assert!((REQUESTS / 10..REQUESTS * 9 / 10).contains(&refused), "{refused} of {REQUESTS} requests were refused");
    assert_eq!((store.refunds_lost(), store.in_flight()), (0, 0));
    assert_eq!(store.circuit(), Circuit::Closed);
    let sent_on: u64 = cluster.nodes.iter().map(|node| node.info("errorstat_MOVED:count=")).sum();
    assert_eq!(sent_on, 0, "every request was sent to the node that owns its slot");
}

/// Returns takes of one unit: for each position in `which`, with the key and the quota at this position of `limited`.
fn takes<'q>(limited: &'q [(u128, Quota)], which: impl IntoIterator<Item = usize>) -> Vec<Hit<'q>> {
    let hit = |i: usize| Hit::new(limited[i].0, &limited[i].1, Op::take(1), Binding::Enforce);
    which.into_iter().map(hit).collect()
}

async fn is_allowed(store: &RedisStore, hits: &[Hit<'_>]) -> bool {
    let verdict = store.decide(Timing::BY_STORE, hits, &mut vec![Decision::default(); hits.len()]).await;
    verdict.expect("the cluster serves").allowed
}

/// If one slot refuses a request, the units that other slots took for it are refunded. Until the refund, another
/// request can be refused because of these units.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_several_slots_are_never_admitted_above_a_limit() {
    const TASKS: usize = 64;
    const TAKES: usize = 30;
    let cluster = Cluster::start(false, &[]);
    let store = cluster.store().await;
    // Six keys on three nodes. The limits are so small that the tasks reach them.
    let limit = |i: usize| a_day(200 + 40 * i as u64);
    let limited = (0..6).map(|i| (key_on(&cluster.nodes[0], i % 3, &limit(i), 100 + i as u128), limit(i)));
    let limited: Vec<(u128, Quota)> = limited.collect();
    let task = |seed: usize| {
        let (store, limited) = (store.clone(), limited.clone());
        tokio::spawn(async move {
            let (mut random, mut admitted) = (Random(seed as u64 + 1), [0; 6]);
            for _ in 0..TAKES {
                let first = random.index(6);
                let which = [first, (first + 1) % 6, (first + 2 + random.index(4)) % 6];
                let which = &which[..1 + random.index(3)];
                if is_allowed(&store, &takes(&limited, which.iter().copied())).await {
                    which.iter().for_each(|i| admitted[*i] += 1);
                }
            }
            admitted
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(task).collect();
    let mut admitted = [0; 6];
    for task in tasks {
        let by_task = task.await.expect("no task panics");
        admitted.iter_mut().zip(by_task).for_each(|(sum, of_task)| *sum += of_task);
    }
    for (i, sum) in admitted.iter().enumerate() {
        assert!(*sum <= 200 + 40 * i as u64, "{admitted:?}");
    }
    // Whatever is left can be taken, down to the last unit.
    for (i, sum) in admitted.iter_mut().enumerate() {
        while is_allowed(&store, &takes(&limited, [i])).await {
            *sum += 1;
        }
        assert_eq!(*sum, 200 + 40 * i as u64, "limit {i}");
    }
    assert_eq!((store.refunds_lost(), store.in_flight()), (0, 0));
}

#[tokio::test]
async fn a_key_is_admitted_exactly_its_limit_however_many_ask() {
    let cluster = Cluster::start(false, &[]);
    let store = cluster.store().await;
    let limited: Vec<(u128, Quota)> =
        (0..3).map(|i| (key_on(&cluster.nodes[0], i, &a_day(1), 7), a_day(500))).collect();
    let task = |i: usize| {
        let (store, limited) = (store.clone(), limited.clone());
        tokio::spawn(async move {
            let mut admitted = [0; 3];
            for turn in 0..30 {
                let key = (i + turn) % 3;
                admitted[key] += usize::from(is_allowed(&store, &takes(&limited, [key])).await);
            }
            admitted
        })
    };
    let mut sums = [0; 3];
    for task in (0..64).map(task).collect::<Vec<_>>() {
        let by_task = task.await.expect("no task panics");
        sums.iter_mut().zip(by_task).for_each(|(sum, of_task)| *sum += of_task);
    }
    assert_eq!(sums, [500; 3]);
}

/// How long requests to a frozen node may take. The other nodes need longer to notice that the node is down.
const LONGER: Duration = Duration::from_secs(2);

/// If one slot fails, the units that the other slots took are refunded. The failed slot takes its unit after the deadline,
/// and gives it back when its reply comes.
#[tokio::test]
async fn a_part_that_fails_has_the_request_fail_and_the_others_give_back() {
    let cluster = Cluster::start(false, &["--cluster-require-full-coverage", "no"]);
    let store =
        RedisStore::new(&Settings { timeout: LONGER, ..with_long_timeouts(&cluster.url()) }).expect("the URL is valid");
    store.wait_connected().await.expect("the cluster serves");
    let limited: Vec<(u128, Quota)> =
        (0..3).map(|i| (key_on(&cluster.nodes[0], i, &a_day(1), 7), a_day(500))).collect();
    cluster.nodes[1].freeze();
    let hits = takes(&limited, 0..3);
    let failed = store.decide(Timing::BY_STORE, &hits, &mut [Decision::default(); 3]).await;
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(store.failures(StoreErrorKind::Timeout), 1);
    until("the other slots have refunded", || store.in_flight() == 0).await;
    cluster.nodes[1].thaw();
    until("all three slots have given their units back", || store.given_back() == 3).await;
    for limit in &limited {
        assert_eq!(left(&store, limit).await, 500);
    }
    assert_eq!(store.refunds_lost(), 0);
}

/// A take by the guaranteed share of a region, beside a limit in another slot that refuses: the share and the bucket get
/// their units back.
#[tokio::test]
async fn a_take_by_the_share_gives_back_the_share_and_the_bucket() {
    let cluster = Cluster::start(false, &[]);
    // The deny cache would refuse without a call.
    let settings = Settings { deny_cache_entries: 0, ..with_long_timeouts(&cluster.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    let day = Duration::from_secs(86_400);
    let bucket = Quota::token_bucket(300, day).build().expect("the quota is valid");
    let bucket = bucket.across(AcrossRegions::Shared(Regions::new(3).expect("2 to 8"))).expect("it can be shared");
    let share = bucket.guaranteed(2).expect("a bucket has a share");
    let [near, far] = [0, 1].map(|i| key_on(&cluster.nodes[0], i, &a_day(1), 7));
    let full = (far, a_day(1));
    assert!(is_allowed(&store, &takes(std::slice::from_ref(&full), [0])).await);
    let settle = Op::settle(0, 2, Receipt::new(Time::EPOCH, 0));
    let by_share =
        [(&share, Op::take(2)), (&bucket, settle)].map(|(quota, op)| Hit::new(near, quota, op, Binding::Enforce));
    let refused = [by_share[0], by_share[1], Hit::new(far, &full.1, Op::take(1), Binding::Enforce)];
    for given_back in 1..4 {
        assert!(!is_allowed(&store, &refused).await);
        until("the refund is confirmed", || store.given_back() == given_back).await;
        assert_eq!(
            [left(&store, &(near, share.clone())).await, left(&store, &(near, bucket.clone())).await],
            [16, 300]
        );
    }
    assert!(is_allowed(&store, &by_share).await);
    assert_eq!([left(&store, &(near, share.clone())).await, left(&store, &(near, bucket.clone())).await], [14, 298]);
    assert_eq!(store.refunds_lost(), 0);
}

/// Nothing is sent to the second slot, because there is no connection to its node in time.
#[tokio::test]
async fn a_slot_without_a_connection_keeps_nothing() {
    let cluster = Cluster::start(false, &["--cluster-require-full-coverage", "no"]);
    let store = RedisStore::new(&with_long_timeouts(&cluster.url())).expect("the URL is valid");
    let limited = [0, 1].map(|i| (key_on(&cluster.nodes[0], i, &a_day(500), 7), a_day(500)));
    assert_eq!(left(&store, &limited[0]).await, 500);
    cluster.nodes[1].freeze();
    let failed =
        store.decide(Timing::BY_STORE.within(LONGER), &takes(&limited, 0..2), &mut [Decision::default(); 2]).await;
    assert!(failed.is_err(), "{failed:?}");
    until("the first slot has refunded", || store.in_flight() == 0).await;
    assert_eq!((store.failures(StoreErrorKind::NotSent), store.refunds_lost()), (1, 0));
    cluster.nodes[1].thaw();
    assert_eq!([left(&store, &limited[0]).await, left(&store, &limited[1]).await], [500, 500]);
}

/// If the circuit of one slot's node is open, the other slots get no command, whatever the order of the slots in the
/// request.
#[tokio::test]
async fn while_the_node_of_one_slot_is_not_asked_the_others_are_not_either() {
    let cluster = Cluster::start(false, &["--cluster-require-full-coverage", "no"]);
    let probe_every = PATIENCE;
    let settings = Settings { max_failures: 1, probe_every, timeout: WITHIN, ..with_long_timeouts(&cluster.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("the cluster serves");
    let limited = [0, 1].map(|i| (key_on(&cluster.nodes[0], i, &a_day(500), 7), a_day(500)));
    cluster.nodes[1].freeze();
    store
        .decide(Timing::BY_STORE, &takes(&limited, [1]), &mut [Decision::default()])
        .await
        .expect_err("a frozen node does not reply");
    let (with_long_timeouts, ran) = (Timing::BY_STORE.within(PATIENCE), scripts_run(&cluster.nodes[0]));
    for (turn, which) in (1..).zip([[0, 1], [1, 0], [1, 0]]) {
        let failed = store.decide(with_long_timeouts, &takes(&limited, which), &mut [Decision::default(); 2]).await;
        assert!(failed.is_err(), "{failed:?}");
        assert_eq!((store.failures(StoreErrorKind::CircuitOpen), store.refunds_lost()), (turn, 0));
    }
    assert_eq!((scripts_run(&cluster.nodes[0]), left(&store, &limited[0]).await), (ran, 500));
    cluster.nodes[1].thaw();
}

/// The caller does not wait for the verdict. Each slot gives its unit back: the first one at once, the second one when
/// its reply comes.
#[tokio::test]
async fn units_of_a_request_that_no_caller_waits_for_come_back() {
    let cluster = Cluster::start(false, &["--cluster-require-full-coverage", "no"]);
    let store = cluster.store().await;
    let limited = [0, 1].map(|i| (key_on(&cluster.nodes[0], i, &a_day(500), 7), a_day(500)));
    cluster.nodes[1].freeze();
    let ran = scripts_run(&cluster.nodes[0]);
    let task = tokio::spawn({
        let (store, limited) = (store.clone(), limited.clone());
        async move { store.decide(Timing::BY_STORE, &takes(&limited, 0..2), &mut [Decision::default(); 2]).await }
    });
    until("the first slot has taken a unit", || scripts_run(&cluster.nodes[0]) > ran).await;
    task.abort();
    assert!(task.await.expect_err("the task was aborted").is_cancelled());
    cluster.nodes[1].thaw();
    until("both slots have given their units back", || store.given_back() == 2).await;
    assert_eq!([left(&store, &limited[0]).await, left(&store, &limited[1]).await], [500, 500]);
    // Peeks take nothing, so nothing is given back.
    cluster.nodes[1].freeze();
    let looks = takes(&limited, 0..2).into_iter().map(|hit| hit.with_op(Op::Peek)).collect::<Vec<_>>();
    let late = store.decide(Timing::BY_STORE.within(WITHIN), &looks, &mut [Decision::default(); 2]).await;
    assert!(late.is_err(), "{late:?}");
    cluster.nodes[1].thaw();
    assert_eq!([left(&store, &limited[0]).await, left(&store, &limited[1]).await], [500, 500]);
    assert_eq!((store.in_flight(), store.refunds_lost(), store.given_back()), (0, 0, 2));
}

/// Returns the units that are left of a limit.
async fn left(store: &RedisStore, (key, quota): &(u128, Quota)) -> u64 {
    let look = [Hit::new(*key, quota, Op::Peek, Binding::Enforce)];
    let mut decisions = [Decision::default()];
    store.decide(Timing::BY_STORE.within(PATIENCE), &look, &mut decisions).await.expect("the node of the key serves");
    decisions[0].remaining
}

fn scripts_run(node: &Server) -> u64 {
    node.info("cmdstat_evalsha:calls=")
}

/// The node reads the refund only when the store has already given it up and counted it in `refunds_lost`. If the
/// refund still took effect, a bucket would admit more than its bound.
#[tokio::test]
async fn a_give_back_that_is_read_too_late_does_nothing() {
    let timeout = Duration::from_secs(1);
    let cluster = Cluster::start(false, &["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000"]);
    // The store gives up the connection before the time for the refund ends, because no PING is answered.
    let settings = Settings {
        timeout,
        connect_timeout: timeout,
        max_failures: u32::MAX,
        deny_cache_entries: 0,
        ..Settings::new(cluster.url())
    };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("the cluster serves");
    let day = Duration::from_secs(86_400);
    let bucket = Quota::token_bucket(10, day).build().expect("the quota is valid");
    let limited =
        [(key_on(&cluster.nodes[0], 0, &bucket, 7), bucket), (key_on(&cluster.nodes[0], 1, &a_day(1), 7), a_day(1))];
    assert!(is_allowed(&store, &takes(&limited, [1])).await);
    // The second slot must reply within the timeout of one second. If the machine is too busy for that, the test tries
    // again.
    for turn in 1.. {
        assert!(turn < 8, "the second slot did not reply in time in any turn");
        let (before, ran) = (left(&store, &limited[0]).await, scripts_run(&cluster.nodes[0]));
        let lost = store.refunds_lost();
        cluster.nodes[1].freeze();
        let task = tokio::spawn({
            let (store, limited) = (store.clone(), limited.clone());
            async move { store.decide(Timing::BY_STORE, &takes(&limited, 0..2), &mut [Decision::default(); 2]).await }
        });
        until("the first slot has taken a unit", || scripts_run(&cluster.nodes[0]) > ran).await;
        cluster.nodes[0].freeze();
        cluster.nodes[1].thaw();
        let verdict = task.await.expect("no task panics");
        let is_refund_sent = store.in_flight() > 0;
        until("the store has given up the refund", || store.in_flight() == 0).await;
        if is_refund_sent {
            sleep(2 * (timeout + timeout)).await;
        }
        cluster.nodes[0].thaw();
        if verdict.is_ok() && is_refund_sent && store.refunds_lost() > lost {
            until("the server has read the refund", || scripts_run(&cluster.nodes[0]) > ran + 1).await;
            assert_eq!(left(&store, &limited[0]).await, before - 1, "the late refund changes nothing");
            break;
        }
    }
}

/// The node that took a unit does not reply to the refund. The caller still gets the verdict by its deadline, and the
/// unit comes back when the node replies.
#[tokio::test]
async fn a_give_back_that_is_late_is_done_after_the_answer() {
    let cluster = Cluster::start(false, &["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000"]);
    let store =
        RedisStore::new(&Settings { timeout: WITHIN, max_failures: u32::MAX, ..with_long_timeouts(&cluster.url()) });
    let store = store.expect("the URL is valid");
    store.wait_connected().await.expect("the cluster serves");
    let quotas = [a_day(1_000_000), a_day(1)];
    let limited: Vec<(u128, Quota)> =
        (0..2).map(|i| (key_on(&cluster.nodes[0], i, &a_day(1), 7), quotas[i].clone())).collect();
    let hits = takes(&limited, 0..2);
    let with_long_timeouts = Timing::BY_STORE.within(PATIENCE);
    assert!(
        store.decide(with_long_timeouts, &hits, &mut [Decision::default(); 2]).await.expect("both nodes serve").allowed
    );
    // From now on every request is refused, because the limit on the second node is used up. The first node has to
    // freeze before it refunds its unit. If it freezes later, the test tries again.
    let deadline = Instant::now() + PATIENCE;
    let mut is_late = false;
    while !is_late {
        assert!(Instant::now() < deadline, "a refund must be late before the deadline");
        let task = tokio::spawn({
            let (store, limited) = (store.clone(), limited.clone());
            async move { store.decide(Timing::BY_STORE, &takes(&limited, 0..2), &mut [Decision::default(); 2]).await }
        });
        sleep(Duration::from_micros(500)).await;
        cluster.nodes[0].freeze();
        if let Ok(verdict) = task.await.expect("no task panics") {
            assert!(!verdict.allowed);
            is_late = store.in_flight() > 0;
        }
        cluster.nodes[0].thaw();
        until("all refunds have ended", || store.in_flight() == 0).await;
    }
    until("the unit has come back", || store.given_back() > 0).await;
    while left(&store, &limited[0]).await != 999_999 {
        assert!(Instant::now() < deadline, "all units come back");
    }
    assert_eq!(store.refunds_lost(), 0);
}

/// The first request has a window that is not a whole number of microseconds, which scripts do not support. The second
/// request has too many hits. Both fail, and no slot gets a command.
#[tokio::test]
async fn a_request_that_is_malformed_charges_nothing() {
    let cluster = Cluster::start(false, &[]);
    let store = cluster.store().await;
    let odd = Quota::fixed_window(5, Duration::from_nanos(1_000_000_001)).build().expect("the quota is valid");
    let limited: Vec<(u128, Quota)> =
        (0..3).map(|i| (key_on(&cluster.nodes[0], i, &a_day(1), 8), a_day(1000))).collect();
    let mut hits = takes(&limited, 0..2);
    hits.push(Hit::new(limited[2].0, &odd, Op::take(1), Binding::Enforce));
    let mut decisions = vec![Decision::default(); 300];
    let refused = store.decide(Timing::BY_STORE, &hits, &mut decisions[..3]).await;
    assert!(refused.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Malformed), "{refused:?}");
    let many = |count: usize| takes(&limited, (0..count).map(|i| i % 3));
    let refused = store.decide(Timing::BY_STORE, &many(MAX_HITS + 1), &mut decisions[..=MAX_HITS]).await;
    assert!(refused.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Malformed), "{refused:?}");
    store
        .decide(Timing::BY_STORE, &many(MAX_HITS), &mut decisions[..MAX_HITS])
        .await
        .expect("a request can have `MAX_HITS` hits");
    let used: Vec<u64> = decisions[..3].iter().map(|decision| 1000 - decision.remaining).collect();
    assert_eq!(used, [86, 85, 85], "only the 256 hits of the last request were charged");
}
