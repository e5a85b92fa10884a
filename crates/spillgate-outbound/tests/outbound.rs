//! Two programs on one Redis call an HTTP server that counts in fixed windows of its own clock.
//!
//! The environment variable `OUTBOUND_SECONDS` sets how long they call the server, and turns on the exact expectations.
//! If it is not set, the tests are short, and tolerate the delays of a busy machine.

#![allow(clippy::print_stdout, reason = "the tests print what they have measured")]
#![allow(clippy::disallowed_methods, reason = "the far side has a real clock")]

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use spillgate_limiter::{KeyHasher, Limiter, Quota, SystemClock};
use spillgate_outbound::client::{ClientLayer, FarSide};
use spillgate_outbound::pace::PaceError;
use spillgate_redis::{RedisStore, Settings};
use spillgate_testkit::{DEADLINE, RedisServer, start_bound};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tower::{Layer as _, ServiceExt as _, service_fn};

/// The variable of a process that the tests start: the URL of Redis, the address of the far side, the fastest pace, and
/// how many seconds the process runs.
const CALLER: &str = "OUTBOUND_CALLER";
const PROCESSES: usize = 2;
const TASKS: usize = 4;
const LIMIT: u64 = 10;
const RELEASED: &str = "x-released";

/// The server that is called.
#[derive(Clone)]
struct Far(Arc<Mutex<Counter>>);

struct Counter {
    start: Instant,
    limit: u64,
    says: bool,
    number: u64,
    count: u64,
    /// For each call: the time since the start, whether it was refused, and how long it was under way.
    calls: Vec<(Duration, bool, Duration)>,
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is after 1970")
}

async fn answer(State(far): State<Far>, headers: HeaderMap) -> Response<String> {
    let mut counter = far.0.lock().expect("no call panics");
    let now = since_1970();
    if now.as_secs() != counter.number {
        (counter.number, counter.count) = (now.as_secs(), 0);
    }
    counter.count += 1;
    let refused = counter.count > counter.limit;
    let released = headers.get(RELEASED).and_then(|text| text.to_str().ok()?.parse().ok()).map(Duration::from_nanos);
    let at = counter.start.elapsed();
    counter.calls.push((at, refused, now.saturating_sub(released.unwrap_or(now))));
    let status = if refused { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let answer = Response::builder().status(status);
    let answer = match counter.says {
        true => answer
            .header("ratelimit-policy", format!("\"calls\";q={};w=1", counter.limit))
            .header("ratelimit", format!("\"calls\";r={};t=1", counter.limit.saturating_sub(counter.count))),
        false => answer,
    };
    answer.body(String::new()).expect("the answer is valid")
}

impl Far {
    async fn serve(says: bool) -> (Far, SocketAddr) {
        let counter = Counter { start: Instant::now(), limit: LIMIT, says, number: 0, count: 0, calls: Vec::new() };
        let far = Far(Arc::new(Mutex::new(counter)));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the socket is bound");
        let app = Router::new().route("/", get(answer)).with_state(far.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (far, address)
    }

    /// Forgets the calls so far, which were made while the processes started.
    fn restart(&self) {
        let mut counter = self.0.lock().expect("no call panics");
        (counter.start, counter.calls) = (Instant::now(), Vec::new());
    }

    fn set_limit(&self, limit: u64) {
        self.0.lock().expect("no call panics").limit = limit;
    }

    /// Returns how many calls came between `from` and `to`, and how many of them were refused.
    fn calls(&self, from: Duration, to: Duration) -> (usize, usize) {
        let counter = self.0.lock().expect("no call panics");
        let calls = counter.calls.iter().filter(|(at, ..)| (from..to).contains(at));
        (calls.clone().count(), calls.filter(|(_, refused, _)| *refused).count())
    }

    /// Returns the median and the longest time between the grant of a turn and the arrival of its call at the server.
    fn under_way(&self) -> (Duration, Duration) {
        let counter = self.0.lock().expect("no call panics");
        let mut times: Vec<Duration> = counter.calls.iter().map(|(.., time)| *time).collect();
        times.sort_unstable();
        (times[times.len() / 2], times[times.len() - 1])
    }

    /// Waits until the calls of the last two seconds use most of `limit`, and hardly more. From then on the callers
    /// follow the limit, even if a busy machine needs long for that.
    async fn until_followed(&self, limit: u64) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let now = self.0.lock().expect("no call panics").start.elapsed();
            let calls = self.calls(now.saturating_sub(Duration::from_secs(2)), now).0 as u64;
            if (limit * 2 * 2 / 3..=limit * 2 + 2).contains(&calls) {
                return;
            }
            assert!(Instant::now() < deadline, "{calls} calls in two seconds at {limit}/s");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn until_called(&self) {
        while self.0.lock().expect("no call panics").calls.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A process that calls the far side. It is killed when the test ends.
struct Caller(Child);

impl Caller {
    fn start(redis: &str, far: SocketAddr, fastest: u64, seconds: u64) -> Caller {
        let test = std::env::current_exe().expect("this test has a path");
        let mut command = Command::new(test);
        // The name of the test, without the name of the program: other tests can be in modules of the same program.
        let module = module_path!().split_once("::").map_or_else(String::new, |(_, module)| format!("{module}::"));
        command.args(["--exact", &format!("{module}a_caller"), "--nocapture"]);
        command.env(CALLER, format!("{redis} {far} {fastest} {seconds}"));
        let child = start_bound(&command, [Stdio::null(), Stdio::null(), Stdio::inherit()]);
        Caller(child.expect("the process starts"))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn send(far: SocketAddr, mut request: Request<Full<Bytes>>) -> Result<Response<()>, std::io::Error> {
    let released = since_1970().as_nanos().to_string();
    request.headers_mut().insert(RELEASED, released.parse().expect("digits are a value"));
    let stream = TcpStream::connect(far).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(std::io::Error::other)?;
    Ok(answer.map(drop))
}

/// Runs only in the processes that the tests start.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller() {
    let Ok(words) = std::env::var(CALLER) else { return };
    let mut words = words.split(' ');
    let mut next = || words.next().expect("four words");
    let (redis, far): (_, SocketAddr) = (next(), next().parse().expect("an address"));
    let (fastest, seconds): (u64, u64) = (next().parse().expect("a number"), next().parse().expect("a number"));
    let settings = Settings::for_calls(redis);
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("Redis answers");
    let limiter = Limiter::with_keys(store, SystemClock::start(), KeyHasher::with_secret([3; 16]));
    let api = FarSide::new(limiter, &Quota::per_second(fastest).constant());
    let client = ClientLayer::new(api).layer(service_fn(move |request| send(far, request)));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            while Instant::now() < end {
                let request = Request::get("http://far.example/").body(Full::default()).expect("the request is valid");
                client.clone().oneshot(request).await.expect("the far side answers");
            }
        });
    }
    tasks.join_all().await;
}

fn seconds(short: u64) -> (u64, bool) {
    let set = std::env::var("OUTBOUND_SECONDS").ok();
    (set.as_ref().map_or(short, |text| text.parse().expect("a number")), set.is_some())
}

fn callers(redis: &RedisServer, far: SocketAddr, fastest: u64, seconds: u64) -> Vec<Caller> {
    (0..PROCESSES).map(|_| Caller::start(&redis.url(), far, fastest, seconds)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_tasks_in_two_processes_keep_a_known_limit() {
    let (seconds, exact) = seconds(4);
    let redis = RedisServer::start();
    let (far, address) = Far::serve(false).await;
    let _callers = callers(&redis, address, LIMIT, seconds + 10 + DEADLINE.as_secs());
    far.until_called().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let deadline = Instant::now() + DEADLINE;
    loop {
        far.restart();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let (calls, refused) = far.calls(Duration::ZERO, Duration::from_secs(seconds));
        let (median, longest) = far.under_way();
        let used = 100.0 * calls as f64 / (seconds * LIMIT) as f64;
        println!("{calls} calls in {seconds} s, {refused} refused; {used:.1} % of the rate is used");
        println!("from the release to the far side: median {median:?}, longest {longest:?}");
        if exact {
            assert_eq!(refused, 0);
            assert!(used >= 92.0, "{used} % is too little");
        }
        if calls > 0 && refused * 4 <= calls && used < 110.0 {
            break;
        }
        // A busy machine stops the processes for a while, and then they send their late calls together. So one period
        // with too many calls proves nothing. Callers that do not keep the limit exceed it in every period.
        assert!(!exact && Instant::now() < deadline, "{calls} calls, {refused} refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_tasks_in_two_processes_learn_a_limit_and_follow_it() {
    let (seconds, exact) = seconds(12);
    let redis = RedisServer::start();
    let (far, address) = Far::serve(true).await;
    let _callers = callers(&redis, address, 100, seconds + 10 + 3 * DEADLINE.as_secs());
    far.until_called().await;
    far.restart();
    let third = Duration::from_secs(seconds) / 3;
    let limits = [LIMIT, LIMIT / 2, LIMIT];
    for limit in limits {
        far.set_limit(limit);
        if exact {
            tokio::time::sleep(third).await;
        } else {
            far.until_followed(limit).await;
        }
    }
    if exact {
        check_thirds(&far, third, limits);
    } else {
        let (calls, refused) = far.calls(Duration::ZERO, DEADLINE * 3);
        assert!(refused * 4 <= calls, "{refused} of {calls} calls were refused");
    }
}

/// Checks that the callers used each of the three limits. Each limit was set for a third of the time.
fn check_thirds(far: &Far, third: Duration, limits: [u64; 3]) {
    let (calls, refused) = far.calls(Duration::from_secs(5).min(third), third * 3);
    println!("{calls} calls after the first 5 s, {refused} refused");
    assert!(refused * 100 <= calls, "{refused} of {calls} calls were refused");
    for (part, limit) in (0..).zip(limits) {
        // The first half of each third is left out, because the pace first has to follow the new limit.
        let (from, to) = (third * part + third / 2, third * (part + 1));
        let (calls, refused) = far.calls(from, to);
        let used = 100.0 * calls as f64 / (to - from).as_secs_f64() / limit as f64;
        println!("limit {limit}/s: {calls} calls in {:?}, {used:.1} % of the rate, {refused} refused", to - from);
        assert!(used > 85.0 && used < 115.0, "{used} % at {limit}/s");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_redis_a_longer_pause_replaces_a_shorter_one_for_all_programs() {
    let redis = RedisServer::start();
    let far_side = async || {
        let settings = Settings::for_calls(redis.url());
        let store = RedisStore::new(&settings).expect("the URL is valid");
        store.wait_connected().await.expect("Redis answers");
        let limiter = Limiter::with_keys(store, SystemClock::start(), KeyHasher::with_secret([3; 16]));
        FarSide::new(limiter, &Quota::per_second(100).constant())
    };
    let (one, other) = (far_side().await, far_side().await);
    let (first, second) = (one.acquire("api").await.expect("a turn"), other.acquire("api").await.expect("a turn"));
    for (turn, seconds) in [(first, "100"), (second, "1000")] {
        let headers = HeaderMap::from_iter([(http::header::RETRY_AFTER, seconds.parse().expect("digits are a value"))]);
        turn.answered(StatusCode::TOO_MANY_REQUESTS, &headers).await.expect("Redis answers");
    }
    for far_side in [one, other] {
        let error = far_side.acquire_within("api", Duration::from_secs(500)).await.map(drop).expect_err("it is paused");
        assert!(matches!(error, PaceError::TooLate { wait: Some(_) }), "{error}");
    }
}
