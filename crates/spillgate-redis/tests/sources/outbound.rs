//! Tests limits on the calls that a program makes to the API of another service.

use std::sync::Arc;

use super::*;
use spillgate::pace::Pacer;
use spillgate::{Anchor, KeyHasher, Limiter, ManualClock, SystemClock};
use spillgate_redis::{RedisKey, TRANSACTION_COMMANDS};

async fn the_window_starts_at_the_first_call(store: &impl Store) {
    let quota = build(Quota::fixed_window(3, SECOND).anchor(Anchor::FirstHit));
    let calls = [
        (700, Ok(2)),
        // The clock reaches a whole second here, but that does not begin a new window.
        (1000, Ok(1)),
        (1500, Ok(0)),
        (1600, Err(100)),
        (1699, Err(1)),
        (1700, Ok(2)),
        // This call is still in the window that began at 1700 ms.
        (2699, Ok(1)),
        (5000, Ok(2)),
    ];
    for (t_ms, expected) in calls {
        let (_, decision) = take(store, at(t_ms), 1, &quota, 1).await;
        let found = match decision.allowed {
            true => Ok(decision.remaining),
            false => Err(decision.retry_after.millis_ceil().expect("the wait is finite")),
        };
        assert_eq!(found, expected, "at {t_ms} ms");
    }
}

#[tokio::test]
async fn a_window_starts_at_the_first_call() {
    let server = Server::start();
    the_window_starts_at_the_first_call(&redis(&server)).await;
    the_window_starts_at_the_first_call(&memory()).await;
}

/// Uses one counter for each second. The limit is on the sum of ten counters.
async fn seconds_are_summed(store: &impl Store) {
    let quota = build(Quota::sliding_window_counter(100, SECOND * 10).segments(10));
    let mut calls = [0; 60];
    for second in 0..60u64 {
        // The number of calls in a second rises, then falls.
        let requests = 30 - second.abs_diff(30);
        for i in 0..requests {
            let now = at(second * 1000 + i * 30);
            calls[second as usize] += u64::from(take(store, now, 1, &quota, 1).await.1.allowed);
        }
        let sum: u64 = calls[second.saturating_sub(9) as usize..=second as usize].iter().sum();
        let look = take(store, at(second * 1000 + 999), 1, &quota, 0).await.1;
        assert!(sum <= 100, "{sum} calls were allowed in ten seconds");
        // The peek comes 999 ms after the beginning of a second. So its window of ten seconds begins 1 ms before the
        // ten seconds of `sum`. For this millisecond, the peek adds 1/1000 of the calls in the second before `sum`.
        // This second has at most 30 calls, and 30/1000 is rounded up to one unit.
        assert!(
            (sum..=sum + 1).contains(&(100 - look.remaining)),
            "the last ten seconds have {sum} calls, but a peek reports {look:?}"
        );
    }
    assert!(calls.iter().sum::<u64>() > 400, "{calls:?}");
}

#[tokio::test]
async fn counters_of_seconds_are_summed_over_the_window() {
    let server = Server::start();
    seconds_are_summed(&redis(&server)).await;
    seconds_are_summed(&memory()).await;
}

/// In a sorted set whose members are only times, a second call at the same time would replace the first one.
async fn one_instant_counts_twice(store: &impl Store) {
    let builders = [
        Quota::sliding_window_log(5, SECOND),
        Quota::sliding_window_counter(5, SECOND).segments(10),
        Quota::fixed_window(5, SECOND).anchor(Anchor::FirstHit),
        Quota::token_bucket(5, SECOND),
    ];
    for quota in builders.map(build) {
        for left in (0..5).rev() {
            assert_eq!(take(store, at(7), 1, &quota, 1).await.1.remaining, left, "{quota:?}");
        }
        assert!(!take(store, at(7), 1, &quota, 1).await.1.allowed, "{quota:?}");
    }
}

#[tokio::test]
async fn two_requests_at_one_instant_count_twice() {
    let server = Server::start();
    one_instant_counts_twice(&redis(&server)).await;
    one_instant_counts_twice(&memory()).await;
}

#[tokio::test]
async fn the_clock_is_the_stores_and_not_the_callers() {
    let server = Server::start();
    let time = || {
        let (seconds, micros): (u64, u64) = reply_to(&server, &["TIME"]);
        seconds * 1_000_000_000 + micros * 1000
    };
    let quota = build(Quota::sliding_window_log(10, SECOND * 3600));
    // The clock of one caller is in 1970, and the clock of the other caller is in 2106.
    let callers = [0, u64::from(u32::MAX)].map(|seconds| ManualClock::at(Time::from_nanos(seconds * 1_000_000_000)));
    let mut admitted = 0;
    for clock in callers {
        let limiter = Limiter::with_clock(redis(&server), clock);
        for _ in 0..8 {
            let hits = [Hit::new(7, &quota, Op::take(1), Binding::Enforce)];
            let before = time();
            let verdict = limiter.decide(&hits, &mut [Decision::default()]).await.expect("the store answers");
            if verdict.source == Source::Store {
                assert!((before..=time()).contains(&verdict.now.as_nanos()), "{verdict:?}");
            }
            admitted += u64::from(verdict.allowed);
        }
    }
    assert_eq!(admitted, 10, "the calls of both callers count in one window");
}

/// A sorted set would need a member for each call.
#[tokio::test]
async fn a_window_costs_the_same_however_many_calls_it_counted() {
    let server = Server::start();
    let store = redis(&server);
    let builders = [
        Quota::fixed_window(1_000_000, SECOND * 86_400).anchor(Anchor::FirstHit),
        Quota::sliding_window_counter(1_000_000, SECOND * 86_400),
    ];
    for quota in builders.map(build) {
        let name = RedisKey::of(&Hit::new(7, &quota, Op::Peek, Binding::Enforce)).to_string();
        take(&store, None, 7, &quota, 1).await;
        let first: u64 = reply_to(&server, &["STRLEN", &name]);
        for _ in 0..2000 {
            take(&store, None, 7, &quota, 1).await;
        }
        assert_eq!(reply_to::<u64>(&server, &["STRLEN", &name]), first);
        assert!((1..=20).contains(&first), "the state has {first} bytes");
    }
}

/// The store logs in to Redis as a user who may not run scripts.
#[tokio::test]
async fn where_scripts_are_refused_the_window_is_counted_without() {
    let server = Server::start();
    let allowed = TRANSACTION_COMMANDS.map(|command| format!("+{}", command.to_lowercase()));
    let words = ["ACL", "SETUSER", "limiter", "on", ">secret", "~sg:*", "-@all"];
    server.run(&words.into_iter().chain(allowed.iter().map(String::as_str)).collect::<Vec<_>>());
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let store = RedisStore::new(&Settings { url, scripts: false, ..settings(&server) }).expect("the URL is valid");
    let window = Duration::from_millis(500);
    let quota = build(Quota::fixed_window(50, window).anchor(Anchor::FirstHit));
    let (first, decision) = take(&store, None, 7, &quota, 1).await;
    assert_eq!((first.allowed, decision.remaining), (true, 49));
    let mut last = first;
    let mut admitted = 1;
    while admitted < 200 {
        let (verdict, _) = take(&store, None, 7, &quota, 1).await;
        admitted += u64::from(verdict.allowed);
        last = verdict;
    }
    // The 200 admitted calls fill four windows of 50. The first window begins with the first call, so the last call
    // comes after three whole windows. Redis stores the end of a window in whole milliseconds, so each of these windows
    // can be up to a millisecond shorter.
    let passed = last.now.as_nanos() - first.now.as_nanos();
    assert!(
        passed + 3_000_000 >= 3 * quota.window_ns(),
        "200 calls, 50 in each window, were admitted after only {passed} ns"
    );
    let stats: String = reply_to(&server, &["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_exec:") && !stats.contains("cmdstat_eval"), "{stats}");
    until_empty(&server).await;
}

/// Each of two programs has 40 callers. Together, the programs may make one call every 10 ms.
#[tokio::test]
async fn programs_with_pacers_share_one_queue() {
    const QUEUE: Quota = Quota::leaky_bucket(100, SECOND).constant();
    let server = Server::start();
    let program = || {
        let keys = KeyHasher::with_secret([7; 16]);
        Pacer::new(Limiter::with_keys(redis(&server), SystemClock::start(), keys), QUEUE)
    };
    let start = Instant::now();
    let (programs, order) = ([program(), program()], Arc::new([const { std::sync::Mutex::new(Vec::new()) }; 2]));
    let mut callers = Vec::new();
    for caller in 0..40 {
        for (program, pacer) in programs.iter().enumerate() {
            let (turn, order) = (pacer.acquire("api"), Arc::clone(&order));
            callers.push(tokio::spawn(async move {
                turn.await.expect("a turn comes");
                order[program].lock().expect("no caller panics").push(caller);
            }));
        }
        tokio::task::yield_now().await;
    }
    for caller in callers {
        caller.await.expect("no caller panics");
    }
    // Between 80 calls are 79 pauses, which a busy machine only makes longer.
    assert!(start.elapsed() >= Duration::from_millis(785), "{:?}", start.elapsed());
    for order in order.iter() {
        assert!(order.lock().expect("no caller panics").iter().copied().eq(0..40), "first in, first out");
    }
}
