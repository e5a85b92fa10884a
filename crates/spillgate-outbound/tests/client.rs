//! A client keeps the limit of the far side (the service that it calls), even if it knows the limit only from answers.
//!
//! The far side here counts in fixed windows of its own clock. The tests pause the time of tokio, so that a minute
//! takes no time.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use spillgate_limiter::{FallbackStore, Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, Time, TokioClock};
use spillgate_outbound::client::{ClientError, ClientLayer, ClientService, FarSide};
use spillgate_outbound::pace::PaceError;
use spillgate_testkit::{Fault, Remote};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Layer as _, Service, ServiceExt as _};

const SECOND: Duration = Duration::from_secs(1);
const TEN: Quota = Quota::per_second(10).constant();
const HUNDRED: Quota = Quota::per_second(100).constant();

type Paced = FarSide<MemoryStore, TokioClock>;
type Body = Full<Bytes>;

fn far_side(fastest: &Quota) -> Paced {
    FarSide::new(Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), TokioClock::start()), fastest)
}

/// How an answer of the far side names its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    Nothing,
    /// With `RateLimit` and `RateLimit-Policy`.
    Standard,
    /// With `X-RateLimit-Limit`, `-Remaining` and `-Reset` in seconds from now.
    X,
}

/// A far side that counts calls in fixed windows, and refuses what exceeds the limit.
#[derive(Clone)]
struct Service10(Arc<Mutex<Counter>>);

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

impl Service10 {
    fn new(limit: u64, window: Duration, says: Says) -> Service10 {
        let start = Instant::now();
        Service10(Arc::new(Mutex::new(Counter { start, limit, window, says, number: 0, count: 0, calls: Vec::new() })))
    }

    fn set_limit(&self, limit: u64) {
        self.0.lock().expect("no call panics").limit = limit;
    }

    /// Returns how many calls came between `from` and `to`, and how many of them were refused.
    fn calls(&self, from: Duration, to: Duration) -> (usize, usize) {
        let counter = self.0.lock().expect("no call panics");
        let calls = counter.calls.iter().filter(|(at, _)| (from..to).contains(at));
        (calls.clone().count(), calls.filter(|(_, refused)| *refused).count())
    }
}

impl Counter {
    fn answer(&mut self) -> Response<Body> {
        let now = self.start.elapsed();
        let number = now.as_nanos() / self.window.as_nanos();
        if number != self.number {
            (self.number, self.count) = (number, 0);
        }
        self.count += 1;
        let refused = self.count > self.limit;
        self.calls.push((now, refused));
        let left = self.limit.saturating_sub(self.count);
        let window_ns = self.window.as_nanos();
        let reset = (window_ns - now.as_nanos() % window_ns).div_ceil(SECOND.as_nanos());
        let answer = Response::builder().status(if refused { 429 } else { 200 });
        let answer = match self.says {
            Says::Nothing => answer,
            Says::Standard => answer
                .header("ratelimit-policy", format!("\"calls\";q={};w={}", self.limit, self.window.as_secs()))
                .header("ratelimit", format!("\"calls\";r={left};t={reset}")),
            Says::X => answer
                .header("x-ratelimit-limit", self.limit)
                .header("x-ratelimit-remaining", left)
                .header("x-ratelimit-reset", reset.to_string()),
        };
        let answer = if refused && self.says != Says::Nothing {
            answer.header("retry-after", reset.to_string())
        } else {
            answer
        };
        answer.body(Body::default()).expect("the answer is valid")
    }
}

impl Service<Request<Body>> for Service10 {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            // A call takes 15 ms to the far side, and its answer takes 15 ms back.
            sleep(SECOND * 3 / 200).await;
            let answer = service.0.lock().expect("no call panics").answer();
            sleep(SECOND * 3 / 200).await;
            Ok(answer)
        })
    }
}

fn get() -> Request<Body> {
    Request::get("https://api.example.com/items").body(Body::default()).expect("the request is valid")
}

/// Eight tasks send requests, one after the other, until `time` has passed.
async fn send_for(client: ClientService<Service10, MemoryStore, TokioClock>, time: Duration) {
    let end = Instant::now() + time;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        tasks.spawn(async move {
            while Instant::now() < end {
                client.clone().oneshot(get()).await.expect("the far side answers");
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_known_limit_is_kept_and_used() {
    let (service, api) = (Service10::new(10, SECOND, Says::Nothing), far_side(&TEN));
    send_for(ClientLayer::new(api).layer(service.clone()), SECOND * 60).await;
    let (calls, refused) = service.calls(Duration::ZERO, SECOND * 60);
    assert_eq!(refused, 0, "of {calls} calls");
    assert!((558..=573).contains(&calls), "{calls} calls are not 93 to 95 percent of 600");
    let gaps = service.0.lock().expect("no call panics").calls.windows(2).map(|two| two[1].0 - two[0].0).min();
    assert!(gaps > Some(SECOND / 12), "the calls come one after another: {gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_limit_is_learned_and_followed_both_ways() {
    let (service, api) = (Service10::new(10, SECOND, Says::Standard), far_side(&HUNDRED));
    let sending = tokio::spawn(send_for(ClientLayer::new(api).layer(service.clone()), SECOND * 90));
    sleep(SECOND * 30).await;
    service.set_limit(5);
    sleep(SECOND * 30).await;
    service.set_limit(10);
    sending.await.expect("the tasks end");
    let (calls, refused) = service.calls(SECOND * 5, SECOND * 90);
    assert!(refused * 100 <= calls, "{refused} of {calls} calls were refused after 5 s");
    for (from, limit) in [(10, 10), (35, 5), (70, 10)] {
        let (calls, _) = service.calls(SECOND * from, SECOND * (from + 20));
        assert!((17 * limit..=20 * limit).contains(&calls), "{calls} calls in 20 s at {limit}/s");
    }
}

#[tokio::test(start_paused = true)]
async fn units_that_are_left_are_spread_over_the_time_that_is_left() {
    let (service, api) = (Service10::new(100, SECOND * 60, Says::X), far_side(&HUNDRED));
    send_for(ClientLayer::new(api).layer(service.clone()), SECOND * 300).await;
    let (calls, refused) = service.calls(SECOND * 5, SECOND * 300);
    assert!(refused * 100 <= calls, "{refused} of {calls} calls were refused after 5 s");
    assert!(calls >= 400, "{calls} calls in five minutes at 100 a minute");
}

#[tokio::test(start_paused = true)]
async fn without_any_field_a_refusal_halves_the_pace_and_it_rises_again() {
    let (service, api) = (Service10::new(10, SECOND, Says::Nothing), far_side(&HUNDRED));
    send_for(ClientLayer::new(api).layer(service.clone()), SECOND * 600).await;
    let (calls, refused) = service.calls(SECOND * 5, SECOND * 600);
    assert!(refused * 20 <= calls, "{refused} of {calls} calls were refused");
    assert!(calls >= 3_000, "{calls} calls in ten minutes at ten a second");
}

#[tokio::test(start_paused = true)]
async fn retry_after_pauses_all_callers() {
    let api = far_side(&TEN);
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", "20".parse().expect("a value"));
    for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
        let turn = api.acquire("api").await.expect("a turn");
        turn.answered(status, &headers).await.expect("the store answers");
        let paused = Instant::now();
        let error = api.acquire_within("api", SECOND * 19).await.map(drop).expect_err("the pause is longer");
        assert_eq!(error, PaceError::TooLate { wait: Some(SECOND * 20) });
        api.acquire("other").await.expect("another far side has no pause");
        api.acquire("api").await.expect("a turn");
        assert!((SECOND * 20..SECOND * 21).contains(&paused.elapsed()), "{:?}", paused.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_bounded() {
    let api = far_side(&TEN).longest_pause(SECOND * 60);
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", "999999999999999".parse().expect("a value"));
    let turn = api.acquire("api").await.expect("a turn");
    turn.answered(StatusCode::TOO_MANY_REQUESTS, &headers).await.expect("the store answers");
    let paused = Instant::now();
    api.acquire("api").await.expect("a turn");
    assert!(paused.elapsed() <= SECOND * 61, "{:?}", paused.elapsed());
}

#[tokio::test(start_paused = true)]
async fn while_the_store_fails_a_call_gets_an_error() {
    let local = || MemoryStore::new(MemoryOptions::default());
    let store = FallbackStore::new(
        Remote::new(local()).with(Fault::Disconnected),
        local(),
        NonZeroU32::new(3).expect("3 is not 0"),
    );
    let api = FarSide::new(Limiter::with_clock(store, TokioClock::start()), &TEN);
    for _ in 0..3 {
        let error = api.acquire("api").await.map(drop).expect_err("the store fails");
        assert!(matches!(error, PaceError::Store(_)), "{error}");
    }
    assert_eq!(api.pacer().waiting(), 0);
}

/// Answers 503 to the first calls.
#[derive(Clone)]
struct Busy(Arc<Mutex<(u32, Vec<Request<Body>>)>>);

impl Service<Request<Body>> for Busy {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Response<Body>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut state = self.0.lock().expect("no call panics");
        state.1.push(request);
        if state.0 == 0 {
            return std::future::ready(Ok(Response::new(Body::default())));
        }
        state.0 -= 1;
        let answer = Response::builder().status(503).header("retry-after", "2").body(Body::default());
        std::future::ready(Ok(answer.expect("the answer is valid")))
    }
}

#[tokio::test(start_paused = true)]
async fn only_idempotent_requests_without_a_body_are_sent_again() {
    for (method, body, refusals, retries, status, sent) in [
        ("GET", "", 2, 2, 200, 3),
        ("GET", "", 2, 1, 503, 2),
        ("GET", "", 2, 0, 503, 1),
        ("DELETE", "", 1, 3, 200, 2),
        ("POST", "", 1, 3, 503, 1),
        ("PUT", "text", 1, 3, 503, 1),
    ] {
        let busy = Busy(Arc::new(Mutex::new((refusals, Vec::new()))));
        let client = ClientLayer::new(far_side(&TEN)).retries(retries).layer(busy.clone());
        let request = Request::builder().method(method).uri("https://api.example.com/a?b").header("x", "y");
        let request = request.body(Body::from(body)).expect("the request is valid");
        let begun = Instant::now();
        let answer = client.oneshot(request).await.expect("the far side answers");
        let requests = &busy.0.lock().expect("no call panics").1;
        assert_eq!((answer.status().as_u16(), requests.len()), (status, sent), "{method} {body}");
        assert!(
            requests
                .iter()
                .all(|sent| sent.uri().path() == "/a" && sent.headers()["x"] == "y" && sent.method() == method)
        );
        assert!(begun.elapsed() >= SECOND * 2 * (sent as u32 - 1), "each retry waits for the far side");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_wait_too_long_is_not_sent() {
    let busy = Busy(Arc::new(Mutex::new((0, Vec::new()))));
    let client = ClientLayer::new(far_side(&TEN)).longest_wait(SECOND / 20).layer(busy.clone());
    assert!(client.clone().oneshot(get()).await.is_ok());
    let error = client.oneshot(get()).await.expect_err("the next turn is in 95 ms");
    assert!(matches!(error, ClientError::Pace(PaceError::TooLate { .. })), "{error}");
    assert_eq!(busy.0.lock().expect("no call panics").1.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_without_a_turn_returns_the_last_answer() {
    let busy = Busy(Arc::new(Mutex::new((9, Vec::new()))));
    let client = ClientLayer::new(far_side(&TEN)).longest_wait(SECOND).retries(2).layer(busy.clone());
    let answer = client.oneshot(get()).await.expect("the request was sent, so it has an answer");
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (503, &"2".parse().expect("a value")));
    assert_eq!(busy.0.lock().expect("no call panics").1.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn retries_wait_for_a_jitter() {
    let busy = Busy(Arc::new(Mutex::new((20, Vec::new()))));
    let client = ClientLayer::new(far_side(&TEN)).retries(20).jitter(SECOND * 3_600).layer(busy);
    let begun = Instant::now();
    client.oneshot(get()).await.expect("the far side answers");
    // Without jitter, the pauses and the pace take less than an hour. The sum of twenty random jitters is about ten
    // hours.
    assert!(begun.elapsed() > SECOND * 3_600, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_not_ready_collects_no_turns() {
    for is_below in [true, false] {
        let (times, start) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let stalls = tower::service_fn({
            let times = Arc::clone(&times);
            move |_: Request<Body>| {
                times.lock().expect("no call panics").push(start.elapsed());
                async move {
                    tokio::time::sleep_until((start + SECOND * 5).max(Instant::now() + SECOND / 200)).await;
                    Ok::<_, Infallible>(Response::new(Body::default()))
                }
            }
        });
        let (pace, four) = (ClientLayer::new(far_side(&TEN)), tower::limit::ConcurrencyLimitLayer::new(4));
        let mut calls = JoinSet::new();
        let (below, above) = (pace.layer(four.layer(stalls.clone())), four.layer(pace.layer(stalls)));
        for _ in 0..60 {
            let (below, above) = (below.clone(), above.clone());
            calls.spawn(async move {
                if is_below { below.oneshot(get()).await.is_ok() } else { above.oneshot(get()).await.is_ok() }
            });
        }
        assert!(calls.join_all().await.into_iter().all(|is_ok| is_ok));
        let times = times.lock().expect("no call panics");
        let most =
            times.iter().map(|at| times.iter().filter(|other| (*at..*at + SECOND).contains(other)).count()).max();
        assert!(most <= Some(11), "{most:?} calls in a second, {is_below}");
    }
}

/// Answers 503 to its first call. Then it is not ready until a given time.
#[derive(Clone)]
struct Stalled {
    times: Arc<Mutex<Vec<Duration>>>,
    was_called: Arc<AtomicBool>,
    start: Instant,
    until: Duration,
    sleep: Arc<Mutex<Pin<Box<tokio::time::Sleep>>>>,
}

impl Service<Request<Body>> for Stalled {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if !self.was_called.load(Ordering::Relaxed) || self.start.elapsed() >= self.until {
            return Poll::Ready(Ok(()));
        }
        let mut sleep = self.sleep.lock().expect("no call panics");
        sleep.as_mut().poll(context).map(Ok)
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.times.lock().expect("no call panics").push(self.start.elapsed());
        let status = if self.was_called.swap(true, Ordering::Relaxed) { 200 } else { 503 };
        std::future::ready(Ok(Response::builder().status(status).body(Body::default()).expect("the answer is valid")))
    }
}

#[tokio::test(start_paused = true)]
async fn retries_that_wait_for_the_client_collect_no_turns() {
    let (times, start, until) = (Arc::new(Mutex::new(Vec::new())), Instant::now(), SECOND * 20);
    let pace = ClientLayer::new(far_side(&TEN)).retries(1).jitter(Duration::ZERO);
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let sleep = Arc::new(Mutex::new(Box::pin(tokio::time::sleep_until(start + until))));
        let client = Stalled { times: Arc::clone(&times), was_called: Arc::default(), start, until, sleep };
        calls.spawn(pace.layer(client).oneshot(get()));
    }
    assert!(calls.join_all().await.into_iter().all(|answer| answer.is_ok_and(|answer| answer.status() == 200)));
    let times = times.lock().expect("no call panics");
    let most = times.iter().map(|at| times.iter().filter(|other| (*at..*at + SECOND).contains(other)).count()).max();
    assert!(times.len() == 40 && most <= Some(11), "{most:?} calls in a second: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn one_host_has_one_pace_however_it_is_written() {
    let busy = Busy(Arc::new(Mutex::new((0, Vec::new()))));
    let client = ClientLayer::new(far_side(&Quota::per_minute(1).constant())).longest_wait(SECOND).layer(busy);
    for (uri, host, goes) in [
        ("https://api.example.com/", "", true),
        ("https://API.example.com:443/", "", false),
        ("http://user@api.example.com:80/", "", false),
        ("/", "Api.Example.Com", false),
        ("https://api.example.com:8443/", "", true),
        ("/", "api.example.com:8443", false),
        ("/", "", true),
    ] {
        let request = Request::get(uri).header("host", host).body(Body::default()).expect("the request is valid");
        assert_eq!(client.clone().oneshot(request).await.is_ok(), goes, "{uri} {host}");
    }
}

#[tokio::test(start_paused = true)]
async fn hosts_and_keys_have_a_pace_of_their_own() {
    let busy = Busy(Arc::new(Mutex::new((0, Vec::new()))));
    let api = far_side(&Quota::per_minute(1).constant());
    let to = |host: &str| Request::get(format!("https://{host}/")).body(Body::default()).expect("the request is valid");
    let layer = ClientLayer::new(api).longest_wait(SECOND);
    let by_host = layer.clone().layer(busy.clone());
    let by_path = layer.key(|parts| parts.uri.path().as_bytes().to_vec()).layer(busy);
    assert!(by_host.clone().oneshot(to("a.example")).await.is_ok());
    assert!(by_host.clone().oneshot(to("b.example")).await.is_ok());
    assert!(by_host.oneshot(to("a.example")).await.is_err());
    assert!(by_path.clone().oneshot(to("a.example")).await.is_ok());
    assert!(by_path.oneshot(to("b.example")).await.is_err());
}

proptest::proptest! {
    #[test]
    fn no_answer_stops_the_calls_for_longer_than_the_bound(
        refused in proptest::prelude::any::<bool>(),
        field in proptest::sample::select(&FIELDS[..]),
        value in proptest::prop_oneof!["[0-9a-zA-Z\";=.,: +-]{0,40}", "[0-9]{1,25}(s|m|h|ms)?", "\"a\";[qwrt]=[0-9]{1,15}"],
    ) {
        let clock = ManualClock::at(Time::from_nanos(1_790_000_000_000_000_000));
        let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
        let api = FarSide::new(limiter, &TEN).longest_pause(SECOND * 60);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("the runtime starts").block_on(async {
            let mut headers = HeaderMap::new();
            headers.insert(field, value.parse().expect("these characters are a value"));
            let turn = api.acquire("api").await.expect("a turn");
            let status = if refused { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            turn.answered(status, &headers).await.expect("the store answers");
            // At the slowest pace, a call is sent at least every 0.105 s * 10,000, which is less than 1,100 s.
            clock.advance(SECOND * 60 + SECOND * 1_100);
            api.acquire_within("api", Duration::ZERO).await.expect("the pause is over");
        });
    }
}

const FIELDS: [&str; 9] = [
    "retry-after",
    "date",
    "ratelimit",
    "ratelimit-policy",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "anthropic-ratelimit-requests-reset",
];

#[test]
fn a_pace_that_cannot_be_kept_is_refused_at_once() {
    for fastest in [Quota::token_bucket(1, SECOND * 86_400 * 365), Quota::token_bucket(100_000_000, SECOND)] {
        let fastest = fastest.constant();
        assert!(std::panic::catch_unwind(|| FarSide::new(Limiter::in_memory(), &fastest)).is_err(), "{fastest:?}");
    }
    let _ = FarSide::new(Limiter::in_memory(), &Quota::token_bucket(1, SECOND * 86_400).constant());
    let _ = FarSide::new(Limiter::in_memory(), &Quota::per_second(1_000_000).constant());
}
