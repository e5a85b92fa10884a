//! A far side (a service that is called) that names its exact limit refuses almost no call, however long calls and
//! answers take.
//!
//! The tests pause the time of tokio, so that an hour takes no time. Each far side counts in fixed windows of its own
//! clock.

#![allow(clippy::print_stdout, reason = "the tests print what they have measured")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderName, StatusCode};
use spillgate_limiter::{Limiter, MemoryOptions, MemoryStore, Quota, Time, TokioClock};
use spillgate_outbound::client::FarSide;
use spillgate_testkit::Random;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const HUNDRED: Quota = Quota::per_second(100).constant();

/// How the answers name the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    /// With `RateLimit-Policy` and `RateLimit`.
    Policy,
    /// With `X-RateLimit-Remaining` and `-Reset`, with a fraction of a second.
    Exact,
    /// With the same fields in whole seconds, rounded up.
    WholeSeconds,
    /// Only with `Retry-After` in a refusal, in whole seconds, rounded up.
    RetryAfter,
    /// Only with `Retry-After` in a refusal, rounded down, so it can be 0.
    RetryAfterTooEarly,
}

#[derive(Debug)]
struct Counter {
    start: Instant,
    limit: u64,
    window: Duration,
    says: Says,
    number: u128,
    count: u64,
    /// The time of each call since the start, and whether it was refused.
    calls: Vec<(Duration, bool)>,
}

type Far = Arc<Mutex<Counter>>;

fn far(limit: u64, window: Duration, says: Says) -> Far {
    Arc::new(Mutex::new(Counter { start: Instant::now(), limit, window, says, number: 0, count: 0, calls: Vec::new() }))
}

impl Counter {
    fn answer(&mut self) -> (StatusCode, HeaderMap) {
        let (now, window_ns) = (self.start.elapsed(), self.window.as_nanos());
        let number = now.as_nanos() / window_ns;
        if number != self.number {
            (self.number, self.count) = (number, 0);
        }
        self.count += 1;
        let refused = self.count > self.limit;
        self.calls.push((now, refused));
        let (limit, left) = (self.limit, self.limit.saturating_sub(self.count));
        let reset = Duration::from_nanos((window_ns - now.as_nanos() % window_ns) as u64);
        let seconds = reset.as_nanos().div_ceil(SECOND.as_nanos());
        let mut fields = Vec::new();
        let mut x = |reset: String| {
            fields.push(("x-ratelimit-limit", limit.to_string()));
            fields.push(("x-ratelimit-remaining", left.to_string()));
            fields.push(("x-ratelimit-reset-after", reset));
        };
        match self.says {
            Says::Policy => {
                fields.push(("ratelimit-policy", format!("\"calls\";q={limit};w={}", self.window.as_secs())));
                fields.push(("ratelimit", format!("\"calls\";r={left};t={seconds}")));
            }
            Says::Exact => x(format!("{:.3}", reset.as_secs_f64())),
            Says::WholeSeconds => x(seconds.to_string()),
            Says::RetryAfter if refused => fields.push(("retry-after", seconds.to_string())),
            Says::RetryAfterTooEarly if refused => fields.push(("retry-after", reset.as_secs().to_string())),
            Says::RetryAfter | Says::RetryAfterTooEarly => {}
        }
        let status = if refused { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        let fields = fields
            .into_iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("these characters are a value")));
        (status, fields.collect())
    }

    /// Returns how many calls came between the seconds `from` and `to`, and how many of them were refused.
    fn calls(&self, from: u64, to: u64) -> (usize, usize) {
        let calls = self.calls.iter().filter(|(at, _)| (SECOND * from as u32..SECOND * to as u32).contains(at));
        (calls.clone().count(), calls.filter(|(_, refused)| *refused).count())
    }
}

fn new_far_side(fastest: &Quota) -> FarSide<MemoryStore, TokioClock> {
    FarSide::new(Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), TokioClock::start()), fastest)
}

/// Sends calls as fast as the pace allows. Each call takes a random time between `shortest` and `longest`.
async fn send_for(far: Far, seconds: u64, (shortest, longest): (Duration, Duration)) {
    let (api, start, mut random) = (new_far_side(&HUNDRED), Instant::now(), Random(5));
    let mut calls = JoinSet::new();
    while start.elapsed() < SECOND * seconds as u32 {
        let turn = api.acquire("api").await.expect("a turn comes");
        let mut half = || shortest / 2 + (longest - shortest).mul_f64(random.below(500) as f64 / 1_000.0);
        let (there, back, far) = (half(), half(), Arc::clone(&far));
        calls.spawn(async move {
            sleep(there).await;
            let (status, fields) = far.lock().expect("no call panics").answer();
            sleep(back).await;
            turn.answered(status, &fields).await.expect("the store answers");
        });
    }
    calls.join_all().await;
}

/// The shortest and the longest time that a call takes, for fast and for slow connections.
fn latencies() -> [(Duration, Duration); 4] {
    [(10, 10), (100, 200), (1_000, 1_000), (2_000, 2_000)]
        .map(|(shortest, longest)| (Duration::from_millis(shortest), Duration::from_millis(longest)))
}

#[tokio::test(start_paused = true)]
async fn at_most_one_percent_is_refused_after_five_seconds() {
    for (limit, window, seconds) in [(10, 1, 120), (5, 1, 120), (1, 3, 300), (100, 60, 600), (1, 60, 7_200)] {
        for says in [Says::Policy, Says::Exact, Says::WholeSeconds] {
            for latency in latencies() {
                let far = far(limit, SECOND * window, says);
                send_for(Arc::clone(&far), seconds, latency).await;
                let (calls, refused) = far.lock().expect("no call panics").calls(5, seconds);
                let most = limit * seconds / u64::from(window);
                let case =
                    format!("{limit} in {window} s, {says:?}, {latency:?}: {calls} of {most}, {refused} refused");
                println!("{case}");
                assert!(refused * 100 <= calls, "{case}");
                assert!(calls as u64 * 2 >= most, "{case}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_halved_and_restored_is_followed_both_ways() {
    for says in [Says::Policy, Says::Exact, Says::WholeSeconds] {
        for latency in latencies() {
            let far = far(20, SECOND, says);
            let sending = tokio::spawn(send_for(Arc::clone(&far), 240, latency));
            sleep(SECOND * 60).await;
            far.lock().expect("no call panics").limit = 10;
            sleep(SECOND * 60).await;
            far.lock().expect("no call panics").limit = 20;
            sending.await.expect("the calls end");
            let far = far.lock().expect("no call panics");
            for (from, to, limit) in [(40, 60, 20), (100, 120, 10), (220, 240, 20)] {
                let (calls, refused) = far.calls(from, to);
                let case = format!("{limit} in a second, {says:?}, {latency:?}: {calls} in 20 s, {refused} refused");
                println!("{case}");
                assert!(calls >= limit * 12 && calls <= limit * 20 && refused * 100 <= calls, "{case}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_far_side_that_says_only_when_to_come_back_refuses_few_calls() {
    for says in [Says::RetryAfter, Says::RetryAfterTooEarly] {
        let far = far(10, SECOND, says);
        send_for(Arc::clone(&far), 600, latencies()[1]).await;
        let (calls, refused) = far.lock().expect("no call panics").calls(5, 600);
        assert!(refused * 100 <= calls && calls > 3_000, "{says:?}: {calls} calls, {refused} refused");
    }
}

fn fields(fields: &[(&'static str, &str)]) -> HeaderMap {
    let value = |text: &str| text.parse().expect("these characters are a value");
    fields.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
}

/// Returns the time between two calls after an answer, when the pause that the answer asks for has ended.
async fn interval_after(status: u16, answer: &[(&'static str, &str)]) -> Duration {
    let api = new_far_side(&HUNDRED);
    let turn = api.acquire("api").await.expect("a turn comes");
    let status = StatusCode::from_u16(status).expect("a status");
    turn.answered(status, &fields(answer)).await.expect("the store answers");
    let mut goes = Vec::new();
    for _ in 0..20 {
        api.acquire("api").await.expect("a turn comes");
        goes.push(Instant::now());
    }
    (goes[19] - goes[0]) / 19
}

#[tokio::test(start_paused = true)]
async fn every_refusal_makes_the_pace_slower() {
    const POLICY: (&str, &str) = ("ratelimit-policy", "\"calls\";q=1000;w=1");
    let ms = Duration::from_millis;
    for status in [429, 503] {
        for answer in [
            &[][..],
            &[("retry-after", "0")],
            &[("retry-after", "Thu, 01 Jan 2015 00:00:00 GMT")],
            &[("retry-after", "100")],
        ] {
            let interval = interval_after(status, answer).await;
            assert!((ms(20)..ms(23)).contains(&interval), "half of the pace: {status} {answer:?} {interval:?}");
        }
        let interval = interval_after(status, &[POLICY, ("retry-after", "100")]).await;
        assert!((ms(12)..ms(14)).contains(&interval), "20 % slower: {status} {interval:?}");
    }
    let interval = interval_after(200, &[("retry-after", "100")]).await;
    assert!((ms(10)..ms(12)).contains(&interval), "an answer that is no refusal: {interval:?}");
}

#[tokio::test(start_paused = true)]
async fn calls_that_were_under_way_together_make_the_pace_slower_once() {
    let (api, mut turns) = (new_far_side(&HUNDRED), Vec::new());
    for _ in 0..50 {
        turns.push(api.acquire("api").await.expect("a turn comes"));
    }
    for turn in turns {
        turn.answered(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new()).await.expect("the store answers");
    }
    let start = Instant::now();
    for _ in 0..21 {
        api.acquire("api").await.expect("a turn comes");
    }
    assert!((SECOND * 2 / 5..SECOND / 2).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_longer_pause_replaces_a_shorter_one_and_stays_when_a_shorter_one_comes() {
    let (api, mut turns) = (new_far_side(&HUNDRED), Vec::new());
    for _ in 0..3 {
        turns.push(api.acquire("api").await.expect("a turn comes"));
    }
    for (turn, pause) in turns.into_iter().zip(["2", "60", "5"]) {
        turn.answered(StatusCode::TOO_MANY_REQUESTS, &fields(&[("retry-after", pause)]))
            .await
            .expect("the store answers");
    }
    let start = Instant::now();
    api.acquire("api").await.expect("a turn comes");
    assert!((SECOND * 60..SECOND * 61).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn old_answers_do_not_make_the_pace_faster_than_the_limit() {
    let (api, mut turns) = (new_far_side(&HUNDRED), Vec::new());
    let policy = |limit: &str| fields(&[("ratelimit-policy", &format!("\"calls\";q={limit};w=1"))]);
    let first = api.acquire("api").await.expect("a turn comes");
    first.answered(StatusCode::OK, &policy("25")).await.expect("the store answers");
    for _ in 0..20 {
        turns.push(api.acquire("api").await.expect("a turn comes"));
    }
    for turn in turns {
        turn.answered(StatusCode::OK, &policy("50")).await.expect("the store answers");
        sleep(SECOND / 4).await;
    }
    let start = Instant::now();
    for _ in 0..51 {
        api.acquire("api").await.expect("a turn comes");
    }
    assert!(start.elapsed() >= SECOND * 99 / 100, "51 calls in {:?} at 50 a second", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn two_refusals_in_spite_of_the_named_limit_are_not_undone_by_the_next_answer() {
    let (api, policy) = (new_far_side(&HUNDRED), fields(&[("ratelimit-policy", "\"calls\";q=100;w=1")]));
    let answer = async |status| {
        let turn = api.acquire("api").await.expect("a turn comes");
        turn.answered(status, &policy).await.expect("the store answers");
    };
    answer(StatusCode::TOO_MANY_REQUESTS).await;
    let interval_ms = async || {
        let start = Instant::now();
        for _ in 0..100 {
            answer(StatusCode::OK).await;
        }
        start.elapsed().as_millis() / 100
    };
    assert_eq!(interval_ms().await, 10, "one refusal can be a limit that has just changed");
    answer(StatusCode::TOO_MANY_REQUESTS).await;
    let mut intervals = Vec::new();
    for _ in 0..7 {
        intervals.push(interval_ms().await);
        sleep(SECOND * 4).await;
    }
    // The pace is 20 % slower at first, and rises by 1 % each second. After 25 seconds, it is what the answers say.
    assert!(intervals[0] == 12 && intervals[6] == 10 && intervals.is_sorted_by(|a, b| a >= b), "{intervals:?}");
}

#[tokio::test(start_paused = true)]
async fn headroom_and_further_quotas_make_the_pace_slower() {
    let calls_in_ten_seconds = async |api: FarSide<MemoryStore, TokioClock>| {
        let (start, mut calls) = (Instant::now(), 0);
        while api.acquire_within("api", (SECOND * 10).saturating_sub(start.elapsed())).await.is_ok() {
            calls += 1;
        }
        calls
    };
    assert!((950..=954).contains(&calls_in_ten_seconds(new_far_side(&HUNDRED)).await));
    assert!((499..=502).contains(&calls_in_ten_seconds(new_far_side(&HUNDRED).headroom_percent(100)).await));
    // The test begins at a full hour, so that no new window begins during the test.
    let clock = TokioClock::at(Time::from_nanos(1_800_000_000_000_000_000));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock);
    let also = FarSide::new(limiter, &HUNDRED).and(Quota::fixed_window(7, SECOND * 3_600).constant());
    assert_eq!(calls_in_ten_seconds(also).await, 7);
}
