//! No more units leave a pacer in any interval than its quotas allow, whatever its callers do.
//!
//! Random callers of 1 to 500 units come, wait with and without deadlines, and go away: before their turn, and after it
//! was granted. The time of tokio is paused, so that hours take no time, and each call leaves exactly when its turn is
//! granted. The variable `PACING_RUNS` sets how many random runs each test makes.

#![allow(clippy::print_stdout, reason = "the tests print what they have measured")]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_limiter::{Limiter, MemoryOptions, MemoryStore, Quota, Store, TokioClock};
use spillgate_outbound::pace::Pacer;
use spillgate_testkit::{Random, Remote};
use tokio::time::{Instant, advance, sleep};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
/// One unit in 10 ms, so that the timers of tokio, which count milliseconds, make no call late.
const QUEUE: Quota = Quota::leaky_bucket(100, SECOND).queue(100_000).constant();
const UNIT: Duration = Duration::from_millis(10);
/// By how much a late call may be followed too early: see `docs/src/guarantees/bounds.md`.
const LATE: Duration = Duration::from_millis(2);
const LARGEST: u64 = 500;

/// When calls left, and with how many units, in the order of time.
type Left = Arc<Mutex<Vec<(Instant, u64)>>>;

fn runs() -> u64 {
    std::env::var("PACING_RUNS").map_or(12, |text| text.parse().expect("PACING_RUNS is a number"))
}

fn memory() -> MemoryStore {
    MemoryStore::new(MemoryOptions::default())
}

fn local() -> Arc<Limiter<MemoryStore, TokioClock>> {
    Arc::new(Limiter::with_clock(memory(), TokioClock::start()))
}

fn remote(delay: Duration) -> Arc<Limiter<Remote<MemoryStore>, TokioClock>> {
    Arc::new(Limiter::with_clock(Remote::new(memory()).with_delay(delay), TokioClock::start()))
}

/// What a caller does after it has asked for its turn.
#[derive(Clone, Copy)]
enum Then {
    Waits,
    /// Goes away after this time, without looking whether its turn was granted meanwhile.
    Drops(Duration),
}

fn call<S: Store + 'static>(
    pacer: &Pacer<S, TokioClock>,
    left: &Left,
    units: u64,
    longest: Option<Duration>,
    then: Then,
) -> tokio::task::JoinHandle<()> {
    let (turn, left) = (pacer.acquire_units("api", units, longest), Arc::clone(left));
    tokio::spawn(async move {
        let mut turn = pin!(turn);
        let granted = match then {
            Then::Waits => turn.await.is_ok(),
            Then::Drops(after) => {
                let first = poll_fn(|context| Poll::Ready(turn.as_mut().poll(context))).await;
                match first {
                    Poll::Ready(answer) => answer.is_ok(),
                    Poll::Pending => return sleep(after).await,
                }
            }
        };
        if granted {
            left.lock().push((Instant::now(), units));
        }
    })
}

/// Random callers at these pacers, which are the programs of one far side. Returns what has left.
async fn random_calls<S: Store + 'static>(
    pacers: &[Pacer<S, TokioClock>],
    random: &mut Random,
    calls: usize,
) -> Vec<(Instant, u64)> {
    // A timer ends at a whole millisecond of the runtime. From here on, everything happens at such times.
    sleep(Duration::from_millis(1)).await;
    let left = Left::default();
    let mut callers: Vec<tokio::task::JoinHandle<()>> = Vec::new();
    for _ in 0..calls {
        let units = match random.below(3) {
            0 => 1,
            1 => 1 + random.below(20),
            _ => 1 + random.below(LARGEST),
        };
        let longest = random.one_in(4).then(|| Duration::from_millis(random.below(60_000)));
        let then = match random.below(6) {
            0 => Then::Drops(Duration::from_millis(random.below(20))),
            1 => Then::Drops(Duration::from_millis(random.below(20_000))),
            _ => Then::Waits,
        };
        callers.push(call(random.pick(pacers), &left, units, longest, then));
        match random.below(40) {
            // Sometimes the queue becomes empty.
            0 => sleep(Duration::from_millis(random.below(60_000))).await,
            1..10 => sleep(Duration::from_millis(random.below(3_000))).await,
            10..20 => tokio::task::yield_now().await,
            _ => {}
        }
        if random.one_in(8) {
            callers[random.index(callers.len())].abort();
        }
    }
    for caller in callers {
        let ended = tokio::time::timeout(HOUR * 1_000, caller).await;
        assert!(ended.is_ok(), "a caller waits for ever");
    }
    assert!(pacers.iter().all(|pacer| pacer.waiting() == 0));
    let mut left = std::mem::take(&mut *left.lock());
    left.sort_by_key(|(at, _)| *at);
    left
}

/// Checks that at most `bound(s)` units leave in any interval of length `s`. Both ends of an interval belong to it, and
/// the shortest interval of some calls begins with the first one and ends with the last one.
fn check(left: &[(Instant, u64)], what: &str, bound: impl Fn(Duration) -> u64) {
    for (from, (begin, _)) in left.iter().enumerate() {
        let mut units = 0;
        for (at, more) in &left[from..] {
            units += more;
            let (length, most) = (*at - *begin, bound(*at - *begin));
            assert!(units <= most, "{what}: {units} units left in {length:?}, {most} may");
        }
    }
}

fn whole(length: Duration, unit: Duration) -> u64 {
    (length.as_nanos() / unit.as_nanos()) as u64
}

/// `c + s/T`, with the largest cost of all calls that left.
fn check_queue(left: &[(Instant, u64)], what: &str, late: Duration) {
    let largest = left.iter().map(|(_, units)| *units).max().unwrap_or(0);
    check(left, what, |length| largest + whole(length + late, UNIT));
}

#[tokio::test(start_paused = true)]
async fn turns_of_callers_that_went_away_make_no_later_call_too_early() {
    let mut calls = 0;
    for seed in 1..=runs() {
        let mut random = Random(seed);
        let left = random_calls(&[Pacer::new(local(), QUEUE)], &mut random, 150).await;
        check_queue(&left, &format!("seed {seed}"), Duration::ZERO);
        calls += left.len();
        // On a store that answers later, sometimes after the turn of an earlier caller.
        let delay = Duration::from_millis(random.below(400));
        let left = random_calls(&[Pacer::new(remote(delay), QUEUE)], &mut random, 150).await;
        check_queue(&left, &format!("seed {seed}, answers after {delay:?}"), LATE);
        calls += left.len();
    }
    println!("{calls} calls left one program; no interval has more than c + s/T units");
}

#[tokio::test(start_paused = true)]
async fn programs_that_share_a_queue_keep_its_bound_together() {
    let mut calls = 0;
    for seed in 1..=runs() {
        let mut random = Random(seed);
        let limiter = local();
        let pacers = [(); 3].map(|()| Pacer::new(Arc::clone(&limiter), QUEUE));
        let left = random_calls(&pacers, &mut random, 200).await;
        check_queue(&left, &format!("seed {seed}"), Duration::ZERO);
        calls += left.len();
        let (limiter, delay) = (remote(Duration::from_millis(3)), Duration::from_millis(3) + LATE);
        let pacers = [(); 3].map(|()| Pacer::new(Arc::clone(&limiter), QUEUE));
        let left = random_calls(&pacers, &mut random, 200).await;
        check_queue(&left, &format!("seed {seed}, with delays"), delay);
        calls += left.len();
    }
    println!("{calls} calls left three programs; no interval has more than c + s/T units");
}

/// Checks the bound of the second quota, and for fixed windows also that no window of the store has more than the limit.
fn check_second(left: &[(Instant, u64)], number: usize, start: Instant, what: &str) {
    match number {
        0 => check(left, what, |length| 1_000 * (whole(length, HOUR) + 1)),
        1 => {
            check(left, what, |length| 1_000 * (whole(length + HOUR - Duration::from_nanos(1), HOUR) + 1));
            let window = |at: Instant| (at - start).as_secs() / 3_600;
            for (at, _) in left {
                let same = left.iter().filter(|(other, _)| window(*other) == window(*at));
                let units: u64 = same.map(|(_, units)| *units).sum();
                assert!(units <= 1_000, "{what}: {units} units in a window of 1,000");
            }
        }
        2 => check(left, what, |length| 1_000 + whole(length * 1_000, HOUR)),
        _ => check(left, what, |length| 1_000 + whole(length, HOUR / 1_000)),
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_quota_counts_a_call_when_it_goes_and_not_when_its_turn_is_reserved() {
    let mut calls = 0;
    for seed in 1..=runs() {
        let quotas = [
            Quota::sliding_window_log(1_000, HOUR),
            Quota::fixed_window(1_000, HOUR),
            Quota::sliding_window_counter(1_000, HOUR).segments(1),
            Quota::per_hour(1_000),
        ];
        for (number, quota) in quotas.into_iter().enumerate() {
            let mut random = Random(seed);
            let quota = quota.build().expect("the quota is valid");
            let what = format!("seed {seed}, {quota:?}");
            let limiter = local();
            // The windows of the store begin at whole hours of its clock.
            let into_hour = Duration::from_nanos(limiter.now().as_nanos() % 3_600_000_000_000);
            let start = Instant::now().checked_sub(into_hour).unwrap_or_else(Instant::now);
            let pacers = [(); 2].map(|()| Pacer::new(Arc::clone(&limiter), QUEUE).and(quota.clone()));
            let left = random_calls(&pacers, &mut random, 60).await;
            check_queue(&left, &what, Duration::ZERO);
            check_second(&left, number, start, &what);
            calls += left.len();
        }
    }
    println!("{calls} calls left; no interval has more units than either quota allows");
}

/// Returns how many units left, and in which time.
fn total(left: &[(Instant, u64)]) -> (u64, Duration) {
    let length = left.last().zip(left.first()).map_or(Duration::ZERO, |((last, _), (first, _))| *last - *first);
    (left.iter().map(|(_, units)| *units).sum(), length)
}

#[tokio::test(start_paused = true)]
async fn the_bound_of_a_queue_is_reached() {
    let (pacer, left) = (Pacer::new(local(), QUEUE), Left::default());
    let calls = [1, 100, LARGEST].map(|units| call(&pacer, &left, units, None, Then::Waits));
    for caller in calls {
        caller.await.expect("no caller panics");
    }
    let (units, length) = total(&left.lock());
    println!("{units} units left in {length:?}, the bound is {}", LARGEST + whole(length, UNIT));
    assert_eq!(units, LARGEST + whole(length, UNIT));
}

#[tokio::test(start_paused = true)]
async fn a_program_that_stood_still_sends_no_burst() {
    let (pacer, left) = (Pacer::new(local(), QUEUE), Left::default());
    pacer.acquire("api").await.expect("the first one goes at once");
    let calls: Vec<_> = (0..300).map(|_| call(&pacer, &left, 1, None, Then::Waits)).collect();
    tokio::task::yield_now().await;
    // The program gets no time for a second, while the time for a hundred calls comes.
    advance(SECOND + Duration::from_millis(5)).await;
    for caller in calls {
        caller.await.expect("no caller panics");
    }
    check_queue(&left.lock(), "after a second", LATE);
    assert_eq!((left.lock().len(), pacer.lost()), (300, 0));
}

#[tokio::test(start_paused = true)]
async fn a_late_call_is_followed_at_most_two_milliseconds_too_early() {
    let (pacer, left) = (Pacer::new(local(), QUEUE), Left::default());
    pacer.acquire("api").await.expect("the first one goes at once");
    let calls = [100, LARGEST].map(|units| call(&pacer, &left, units, None, Then::Waits));
    tokio::task::yield_now().await;
    advance(UNIT + SECOND / 2).await;
    for caller in calls {
        caller.await.expect("no caller panics");
    }
    let (units, length) = total(&left.lock());
    println!("{units} units left in {length:?}, the bound is {}", LARGEST + whole(length + LATE, UNIT));
    assert_eq!((units, length), (LARGEST + 100, UNIT * 100 - LATE));
    assert_eq!(units, LARGEST + whole(length + LATE, UNIT));
    // The store thinks that the last call went half a second earlier. Nobody waits any more, and still no call is early.
    drop(call(&pacer, &left, 1, None, Then::Waits).await);
    check_queue(&left.lock(), "after the queue became empty", LATE);
}

#[tokio::test(start_paused = true)]
async fn the_bound_of_a_second_quota_is_reached() {
    let quota = Quota::sliding_window_log(1_000, HOUR).constant();
    let (pacer, left) = (Pacer::new(local(), QUEUE).and(quota), Left::default());
    let calls = [490, 490, 20, 490].map(|units| call(&pacer, &left, units, None, Then::Waits));
    for caller in calls {
        caller.await.expect("no caller panics");
    }
    let left = left.lock();
    let ((hour, length), (all, longer)) = (total(&left[..3]), total(&left));
    println!("{hour} units left in {length:?}, and {all} in {longer:?}: the window has 1,000 in an hour");
    assert_eq!((hour, all), (1_000, 1_490));
    assert!(length < HOUR && longer == HOUR, "{length:?}, {longer:?}");
}
