//! Callers of a pacer wait for their turn, in the order in which they came.
//!
//! Most tests pause the time of tokio, so that an hour takes no time.

#![allow(clippy::print_stdout, reason = "the tests print what they have measured")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_limiter::{Denied, Limiter, MemoryOptions, MemoryStore, Quota, Store, TokioClock};
use spillgate_outbound::pace::{PaceError, Pacer};
use spillgate_testkit::{Fault, Random};
use tokio::time::{Instant, sleep};

type Remote = spillgate_testkit::Remote<MemoryStore>;

const SECOND: Duration = Duration::from_secs(1);
const QUEUE: Quota = Quota::leaky_bucket(10, SECOND).queue(100_000).constant();
const BUCKET: Quota = Quota::token_bucket(10, SECOND).burst(1).constant();

fn memory() -> MemoryStore {
    MemoryStore::new(MemoryOptions::default())
}

fn local(quota: Quota) -> Pacer<MemoryStore, TokioClock> {
    Pacer::new(Limiter::with_clock(memory(), TokioClock::start()), quota)
}

fn remote(quota: Quota) -> (Pacer<Remote, TokioClock>, Arc<Limiter<Remote, TokioClock>>) {
    let store = Remote::new(memory()).with_delay(Duration::from_micros(200));
    let limiter = Arc::new(Limiter::with_clock(store, TokioClock::start()));
    (Pacer::new(Arc::clone(&limiter), quota), limiter)
}

/// Starts 50 callers at once. Returns how long each of them waited for its turn.
async fn times<S: Store + 'static>(pacer: &Pacer<S, TokioClock>) -> Vec<Duration> {
    let start = Instant::now();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut callers = Vec::new();
    for number in 0..50 {
        let (turn, order) = (pacer.acquire("api"), Arc::clone(&order));
        callers.push(tokio::spawn(async move {
            turn.await.expect("a turn comes");
            order.lock().push((number, start.elapsed()));
        }));
        tokio::task::yield_now().await;
    }
    for caller in callers {
        caller.await.expect("no caller panics");
    }
    let order = order.lock();
    assert!(order.iter().map(|(number, _)| *number).eq(0..50), "first in, first out");
    order.iter().map(|(_, at)| *at).collect()
}

#[tokio::test(start_paused = true)]
async fn calls_go_at_the_rate_and_in_the_order_in_which_they_came() {
    for times in [
        times(&local(QUEUE)).await,
        times(&local(BUCKET)).await,
        times(&remote(QUEUE).0).await,
        times(&remote(BUCKET).0).await,
    ] {
        for pair in times.windows(2) {
            assert!(pair[1] - pair[0] >= Duration::from_millis(99), "{times:?}");
        }
        assert!(times[49] < Duration::from_millis(5_100), "no turn is wasted: {times:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_quota_that_is_short_is_waited_for() {
    const PER_HOUR: Quota = Quota::per_hour(1_000).constant();
    let pacer = local(QUEUE).and(PER_HOUR);
    let start = Instant::now();
    for _ in 0..1_000 {
        pacer.acquire("api").await.expect("a turn comes");
    }
    assert!(start.elapsed() < SECOND * 101, "ten in a second, and not one in 3.6 s: {:?}", start.elapsed());
    for _ in 0..36 {
        pacer.acquire("api").await.expect("a turn comes");
    }
    assert!(start.elapsed() > SECOND * 101, "now the limit of the hour has too few units: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept_and_what_cannot_be_in_time_is_an_error_at_once() {
    for quota in [QUEUE, BUCKET] {
        let pacer = local(quota);
        let start = Instant::now();
        pacer.acquire("api").await.expect("the first one goes at once");
        let error = pacer.acquire_within("api", Duration::from_millis(50)).await.expect_err("the turn is later");
        assert!(matches!(error, PaceError::TooLate { wait: Some(_) }), "{error}");
        assert_eq!(start.elapsed(), Duration::ZERO);
        pacer.acquire_within("api", Duration::from_millis(150)).await.expect("the turn is in time");
        // A caller that joins behind others cannot know its turn at once.
        let _others: Vec<_> = (0..10).map(|_| tokio::spawn(pacer.acquire("api"))).collect();
        tokio::task::yield_now().await;
        let before = Instant::now();
        pacer.acquire_within("api", Duration::from_millis(300)).await.expect_err("ten others are first");
        assert!(before.elapsed() <= Duration::from_millis(301), "{:?}", before.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn keys_have_queues_of_their_own_and_the_number_of_callers_is_bounded() {
    let pacer = local(QUEUE).max_waiters(3);
    for key in 0_u64..100 {
        pacer.acquire(key).await.expect("the first one of a key goes at once");
    }
    let waiting: Vec<_> = (0_u64..3).map(|key| tokio::spawn(pacer.acquire(key))).collect();
    tokio::task::yield_now().await;
    assert_eq!((pacer.waiting(), pacer.acquire(0_u64).await), (3, Err(PaceError::Full)));
    for caller in waiting {
        caller.await.expect("no caller panics").expect("a turn comes");
    }
    assert_eq!(pacer.waiting(), 0);
    pacer.acquire(0_u64).await.expect("the queue has capacity again");
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_store_is_an_error_and_a_call_that_never_fits_does_not_block_the_queue() {
    let (pacer, limiter) = remote(BUCKET);
    limiter.store().set(Fault::Disconnected);
    assert!(matches!(pacer.acquire("api").await, Err(PaceError::Store(_))));
    limiter.store().set(Fault::None);
    assert_eq!(pacer.acquire_units("api", 2, None).await, Err(PaceError::Never));
    pacer.acquire("api").await.expect("the store answers");
    assert_eq!(pacer.waiting(), 0);
}

/// Returns the units that a leaky bucket of 1,000 in a second has reserved since `start`.
async fn reserved(limiter: &Limiter<Remote, TokioClock>, quota: &Quota, start: Instant) -> u64 {
    let left = limiter.peek(quota, "api").await.expect("the store answers").reset_after_ns;
    (start.elapsed() + Duration::from_nanos(left)).as_nanos().div_ceil(1_000_000) as u64
}

/// 10,000 callers wait, and 3,000 of them go away at random times.
#[tokio::test(start_paused = true)]
async fn cancelled_turns_go_to_the_next_caller() {
    const FAST: Quota = Quota::leaky_bucket(1_000, SECOND).queue(100_000).constant();
    let ((pacer, limiter), start) = (remote(FAST), Instant::now());
    let mut random = Random(7);
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut callers = BTreeMap::new();
    for number in 0..10_000_u32 {
        let (turn, order) = (pacer.acquire("api"), Arc::clone(&order));
        let caller = async move {
            turn.await.expect("a turn comes");
            order.lock().push(number);
        };
        callers.insert(number, tokio::spawn(caller));
        if number % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut cancelled = 0;
    while cancelled < 3_000 {
        let number = random.below(10_000) as u32;
        if callers.get(&number).is_some_and(|caller| !caller.is_finished()) {
            callers.remove(&number).inspect(tokio::task::JoinHandle::abort);
            cancelled += 1;
        }
        if random.one_in(2) {
            sleep(Duration::from_micros(random.below(2_000))).await;
        }
    }
    for caller in callers.into_values() {
        caller.await.expect("no caller panics");
    }
    let order = std::mem::take(&mut *order.lock());
    assert!(order.is_sorted(), "first in, first out");
    let went = order.len() as u64;
    let turns = start.elapsed().as_millis() as u64 + 1;
    println!("{went} went, {cancelled} were cancelled, {} turns were lost; {turns} ms", pacer.lost());
    assert!((went..=went + 10).contains(&turns), "{went} went in {turns} turns");
    assert_eq!((went, pacer.waiting()), (7_000, 0));
    let reserved = reserved(&limiter, &FAST, start).await;
    // The first turn begins when the delay of the store is over.
    assert!(reserved.abs_diff(went + pacer.lost()) <= 1, "{reserved} reserved, {went} went, {} lost", pacer.lost());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_caller_stops_no_caller_that_needs_more_units() {
    let pacer = local(QUEUE);
    pacer.acquire("api").await.expect("the first one goes at once");
    let [cancelled, next] = [(); 2].map(|()| tokio::spawn(pacer.acquire("api")));
    sleep(Duration::from_millis(1)).await;
    cancelled.abort();
    sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    let large = tokio::spawn(pacer.acquire_units("api", 10, None));
    let small = tokio::spawn(pacer.acquire("api"));
    for caller in [next, large, small] {
        caller.await.expect("no caller panics").expect("a turn comes");
    }
    assert!(start.elapsed() < SECOND * 3 / 2, "{:?}", start.elapsed());
    assert_eq!((pacer.waiting(), pacer.lost()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_large_turn_goes_to_small_callers_at_the_same_rate() {
    let pacer = local(QUEUE);
    pacer.acquire("api").await.expect("the first one goes at once");
    let large = tokio::spawn(pacer.acquire_units("api", 10, None));
    sleep(Duration::from_millis(1)).await;
    let small = [(); 10].map(|()| tokio::spawn(pacer.acquire("api")));
    sleep(Duration::from_millis(1)).await;
    large.abort();
    let mut times = Vec::new();
    for caller in small {
        caller.await.expect("no caller panics").expect("a turn comes");
        times.push(Instant::now());
    }
    assert!(times.windows(2).all(|two| two[1] - two[0] >= Duration::from_millis(99)), "{times:?}");
    assert!(times[9] - times[0] < SECOND, "{times:?}");
    // Turns that were reserved for the small callers come later, when no caller is left.
    assert_eq!((pacer.waiting(), pacer.lost()), (0, 10));
}

/// Callers of 1 to 10 units, some with deadlines. One in five is cancelled.
#[tokio::test(start_paused = true)]
async fn no_random_mix_of_callers_stops_a_queue_and_every_unit_is_used_or_lost() {
    const FAST: Quota = Quota::leaky_bucket(1_000, SECOND).queue(100_000).constant();
    for seed in 0..40 {
        let ((pacer, limiter), mut random, start) = (remote(FAST), Random(seed), Instant::now());
        let used = Arc::new(Mutex::new(0));
        let mut callers: Vec<tokio::task::JoinHandle<()>> = Vec::new();
        for _ in 0..60 {
            let longest = random.one_in(3).then(|| Duration::from_millis(random.below(300)));
            let units = 1 + random.below(10);
            let (turn, used) = (pacer.acquire_units("api", units, longest), Arc::clone(&used));
            callers.push(tokio::spawn(async move {
                if turn.await.is_ok() {
                    *used.lock() += units;
                }
            }));
            if random.one_in(4) {
                sleep(Duration::from_millis(random.below(20))).await;
            }
            if random.one_in(5) {
                callers[random.index(callers.len())].abort();
            }
        }
        for caller in callers {
            let ended = tokio::time::timeout(SECOND * 100, caller).await;
            assert!(ended.is_ok(), "a caller waits for ever: seed {seed}");
        }
        let (reserved, used) = (reserved(&limiter, &FAST, start).await, *used.lock());
        assert_eq!(pacer.waiting(), 0, "seed {seed}");
        // The bucket can be empty for a while, when no queue exists. Then `reserved` is too high, because it counts
        // that time too.
        assert!(used + pacer.lost() <= reserved, "{used} used, {} lost of {reserved}: seed {seed}", pacer.lost());
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_refuses_all_its_callers_and_its_units_count_as_lost() {
    const FAST: Quota = Quota::leaky_bucket(1_000, SECOND).queue(100_000).constant();
    let ((pacer, limiter), start) = (remote(FAST), Instant::now());
    limiter.store().set(Fault::AnswerLost);
    let callers: Vec<_> = (0..200).map(|_| tokio::spawn(pacer.acquire("api"))).collect();
    for caller in callers {
        let error = caller.await.expect("no caller panics").expect_err("the answers are lost");
        assert!(matches!(error, PaceError::Store(_)), "{error}");
    }
    assert!(start.elapsed() <= Duration::from_millis(20), "32 callers are refused at once: {:?}", start.elapsed());
    limiter.store().set(Fault::None);
    assert_eq!((pacer.lost(), pacer.waiting()), (200, 0));
    assert!(reserved(&limiter, &FAST, start).await.abs_diff(200) <= 2, "one turn for each caller");
}

#[test]
fn callers_learn_that_the_runtime_of_their_queue_has_ended() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    let (first, second) = (runtime().expect("a runtime starts"), runtime().expect("a runtime starts"));
    let pacer = Pacer::new(Limiter::in_memory(), Quota::leaky_bucket(1, Duration::from_secs(3_600)).constant());
    first.block_on(pacer.acquire("api")).expect("the first one goes at once");
    let owner = first.spawn(pacer.acquire("api"));
    while pacer.waiting() == 0 {
        std::thread::yield_now();
    }
    let waiting = second.spawn(pacer.acquire("api"));
    while pacer.waiting() == 1 {
        std::thread::yield_now();
    }
    first.shutdown_background();
    assert_eq!(second.block_on(waiting).expect("no caller panics"), Err(PaceError::Stopped));
    drop(owner);
}

#[test]
fn a_caller_of_a_runtime_that_has_ended_does_not_change_the_next_queue() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    let (first, second) = (runtime().expect("a runtime starts"), runtime().expect("a runtime starts"));
    let (pacer, waiting) = loop {
        let pacer = Pacer::new(Limiter::in_memory(), QUEUE);
        first.block_on(pacer.acquire("api")).expect("the first one goes at once");
        let mut waiting = Box::pin(pacer.acquire("api"));
        let waits = first.block_on(async {
            tokio::select! {
                biased;
                _ = &mut waiting => false,
                () = async {} => true,
            }
        });
        // The turn comes in 100 ms. On a busy machine, that time can be over before the caller waits.
        if waits {
            break (pacer, waiting);
        }
    };
    first.shutdown_timeout(SECOND * 10);
    let next = second.spawn(pacer.acquire_units("api", 10, None));
    while pacer.waiting() == 0 && !next.is_finished() {
        std::thread::yield_now();
    }
    drop(waiting);
    assert_eq!(second.block_on(next).expect("no caller panics"), Ok(()));
    assert_eq!(pacer.waiting(), 0);
    assert_eq!(second.block_on(pacer.acquire("api")), Ok(()));
}

#[test]
#[should_panic(expected = "refusals must be free")]
fn a_quota_with_a_penalty_is_refused() {
    let _ = local(Quota::token_bucket(10, SECOND).penalty(SECOND).constant());
}

#[test]
#[should_panic(expected = "refusals must be free")]
fn a_quota_that_charges_refusals_is_refused() {
    let _ = local(Quota::token_bucket(10, SECOND).denied(Denied::Charged).constant());
}

#[test]
#[should_panic(expected = "are one counter")]
fn two_quotas_that_would_be_one_counter_are_refused() {
    let _ = local(BUCKET).and(Quota::token_bucket(5, SECOND).constant());
}

#[test]
#[should_panic(expected = "two leaky buckets would space out all calls")]
fn two_queues_are_refused() {
    const SLOW: Quota = Quota::leaky_bucket(1_000, Duration::from_secs(3_600)).constant();
    let _ = local(QUEUE).and(SLOW);
}
