//! Checks the tables of the page "Coming from governor or tower_governor" with both libraries.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use governor::clock::FakeRelativeClock;
use governor::{Quota as Theirs, RateLimiter};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use spillgate::headers::HeaderStyle;
use spillgate::pace::Pacer;
use spillgate::tower::{RateLimitLayer, key};
use spillgate::{Limiter, ManualClock, MemoryOptions, MemoryStore, OnFull, Quota, Time};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::SmartIpKeyExtractor;

const OURS: Quota = Quota::per_minute(2).constant();
const TWO: NonZeroU32 = NonZeroU32::new(2).unwrap();
const THEIRS: Theirs = Theirs::per_minute(TWO);

async fn answer(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::default())
}

fn request(peer: &str, forwarded: Option<&str>) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let peer = SocketAddr::new(peer.parse().expect("an address"), 4711);
    request.extensions_mut().insert(ConnectInfo(peer));
    if let Some(forwarded) = forwarded {
        request.headers_mut().insert("x-forwarded-for", forwarded.parse().expect("a value"));
    }
    request
}

fn ours() -> RateLimitLayer<MemoryStore, ManualClock> {
    RateLimitLayer::new(frozen()).limit("client", &OURS, key::address())
}

fn frozen() -> Limiter<MemoryStore, ManualClock> {
    Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), ManualClock::at(Time::from_nanos(1 << 60)))
}

/// Returns the answers of a service to some requests. This is a macro and not a function, because the services have
/// different types.
macro_rules! answers {
    ($layer:expr, $requests:expr) => {{
        let service = $layer.layer(service_fn(answer));
        let mut answers = Vec::new();
        for request in $requests {
            let answer = service.clone().oneshot(request).await.expect("no failure");
            answers.push(answer.map(|body| body.boxed_unsync()));
        }
        answers
    }};
}

fn statuses<B>(answers: &[Response<B>]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status().as_u16()).collect()
}

macro_rules! theirs {
    ($($option:ident($($value:expr)?)),*) => {{
        let mut config = GovernorConfigBuilder::default();
        config.per_second(30).burst_size(2);
        GovernorLayer::new(config$(.$option($($value)?))*.finish().expect("the configuration is valid"))
    }};
}

#[test]
fn one_limiter_has_all_kinds_of_keys() {
    let (text, number) = (RateLimiter::keyed(THEIRS), RateLimiter::keyed(THEIRS));
    assert!(text.check_key(&"ann").is_ok() && number.check_key(&7).is_ok());
    let limiter = frozen();
    assert!(limiter.take_now(&OURS, "ann", 1).allowed && limiter.take_now(&OURS, 7_u64, 1).allowed);
}

#[test]
fn the_burst_of_a_rate_is_its_limit() {
    let (limiter, theirs) = (frozen(), RateLimiter::direct(THEIRS));
    for expected in [true, true, false] {
        assert_eq!((limiter.take_now(&OURS, "all", 1).allowed, theirs.check().is_ok()), (expected, expected));
    }
}

#[test]
fn old_keys_stay_until_retain_recent_is_called() {
    let clock = FakeRelativeClock::default();
    let theirs = RateLimiter::dashmap_with_clock(THEIRS, clock.clone());
    let limiter = frozen();
    for user in 0..1_000_u64 {
        assert!(theirs.check_key(&user).is_ok() && limiter.take_now(&OURS, user, 1).allowed);
    }
    for _ in 0..100 {
        clock.advance(Duration::from_secs(60));
        limiter.clock().advance(Duration::from_secs(60));
        for user in 1_000..1_100_u64 {
            let _ = (theirs.check_key(&user), limiter.take_now(&OURS, user, 1));
        }
    }
    assert_eq!(theirs.len(), 1_100);
    assert!(limiter.store().len() < 1_000, "{} keys are stored", limiter.store().len());
    theirs.retain_recent();
    assert_eq!(theirs.len(), 100);
}

#[test]
fn ten_million_keys_are_stored_by_default_and_a_full_store_refuses_new_keys() {
    let defaults = MemoryOptions::default();
    assert_eq!((defaults.max_keys, defaults.on_full), (10_000_000, OnFull::Deny));
    let limiter = Limiter::new(MemoryStore::new(MemoryOptions { max_keys: 1, ..defaults }));
    assert!(limiter.take_now(&OURS, "ann", 1).allowed && limiter.take_now(&OURS, "ann", 1).allowed);
    assert!(!limiter.take_now(&OURS, "bob", 1).allowed);
}

#[tokio::test]
async fn callers_can_wait() {
    RateLimiter::direct(THEIRS).until_ready().await;
    Pacer::new(Limiter::in_memory(), OURS).acquire("all").await.expect("the first one goes at once");
}

#[tokio::test]
async fn a_forged_address_is_believed() {
    let forged = || ["203.0.113.1", "203.0.113.2", "203.0.113.3"].map(|it| request("192.0.2.7", Some(it)));
    assert_eq!(statuses(&answers!(theirs!(key_extractor(SmartIpKeyExtractor)), forged())), [200; 3]);
    assert_eq!(statuses(&answers!(ours(), forged())), [200, 200, 429]);
    let behind = ours().trusted_proxies(["192.0.2.7/32".parse().expect("a network")]);
    let chain = || ["1.1.1.1, 203.0.113.1", "2.2.2.2, 203.0.113.1", "3.3.3.3, 203.0.113.1"];
    let chains = chain().map(|chain| request("192.0.2.7", Some(chain)));
    assert_eq!(statuses(&answers!(behind, chains)), [200, 200, 429]);
    let chains = chain().map(|chain| request("192.0.2.7", Some(chain)));
    assert_eq!(statuses(&answers!(theirs!(key_extractor(SmartIpKeyExtractor)), chains)), [200; 3]);
}

#[tokio::test]
async fn a_client_with_ipv6_has_a_whole_network() {
    let one_client = || ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(|address| request(address, None));
    assert_eq!(statuses(&answers!(theirs!(), one_client())), [200; 3]);
    assert_eq!(statuses(&answers!(ours(), one_client())), [200, 200, 429]);
    assert_eq!(statuses(&answers!(ours().ipv6_prefix(128), one_client())), [200; 3]);
}

#[tokio::test]
async fn refusals_say_when_to_come_back() {
    let three = || [(); 3].map(|()| request("192.0.2.7", None));
    let (theirs, ours) = (answers!(theirs!(), three()).remove(2), answers!(ours(), three()).remove(2));
    assert_eq!((theirs.status().as_u16(), ours.status().as_u16()), (429, 429));
    assert!(theirs.headers().contains_key("retry-after"));
    assert_eq!(ours.headers()["retry-after"], "30");
    assert_eq!(ours.headers()["content-type"], "application/problem+json");
    let text = theirs.into_body().collect().await.expect("no failure").to_bytes();
    assert!(text.starts_with(b"Too Many Requests!"), "{text:?}");
}

#[tokio::test]
async fn header_fields_can_be_chosen() {
    let one = || [request("192.0.2.7", None)];
    let names = |answer: &Response<_>| -> Vec<String> { answer.headers().keys().map(ToString::to_string).collect() };
    assert!(names(&answers!(theirs!(), one())[0]).is_empty());
    assert!(names(&answers!(theirs!(use_headers()), one())[0]).iter().all(|name| name.starts_with("x-ratelimit-")));
    assert_eq!(names(&answers!(ours(), one())[0]), ["ratelimit-policy", "ratelimit"]);
    let ours = ours().header_style(HeaderStyle::XRateLimit);
    assert_eq!(names(&answers!(ours, one())[0]), ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]);
}

/// The inner limit allows each client two requests. The outer limit allows three requests of all clients. One client
/// sends three, and then another client sends one.
#[tokio::test]
async fn an_outer_limit_is_charged_even_if_an_inner_one_refuses() {
    let outer = {
        let mut config =
            GovernorConfigBuilder::default().key_extractor(tower_governor::key_extractor::GlobalKeyExtractor);
        config.per_second(3_600).burst_size(3);
        GovernorLayer::new(config.finish().expect("the configuration is valid"))
    };
    let requests = || ["192.0.2.7", "192.0.2.7", "192.0.2.7", "192.0.2.8"].map(|address| request(address, None));
    let service = outer.layer(theirs!().layer(service_fn(answer)));
    let mut seen = Vec::new();
    for request in requests() {
        seen.push(service.clone().oneshot(request).await.expect("no failure").status().as_u16());
    }
    assert_eq!(seen, [200, 200, 429, 429], "the refused request has used up the outer limit");
    const ALL: Quota = Quota::per_hour(3).constant();
    let ours = ours().limit("all", &ALL, key::everything());
    assert_eq!(statuses(&answers!(ours, requests())), [200, 200, 429, 200]);
}

#[tokio::test]
async fn instances_share_limits_if_they_share_a_store() {
    let limiter = Arc::new(frozen());
    let instance = || RateLimitLayer::new(Arc::clone(&limiter)).limit("client", &OURS, key::address());
    let two = || [(); 2].map(|()| request("192.0.2.7", None));
    let (first, second) = (instance(), instance());
    assert_eq!(statuses(&answers!(first, two())), [200, 200]);
    assert_eq!(statuses(&answers!(second, two())), [429, 429]);
    let (first, second) = (theirs!(), theirs!());
    assert_eq!(statuses(&answers!(first, two())), [200, 200]);
    assert_eq!(statuses(&answers!(second, two())), [200, 200]);
}
