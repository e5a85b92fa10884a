//! Counts the allocations of a request on each path (a function call, gRPC or an HTTP endpoint). Requests to a server
//! use one connection that is kept open. The program prints markdown.
//!
//! For comparison, the program also counts the allocations of the servers `tonic` and `axum` of the folder
//! `bench/limits`. These two servers send the same answers as spillgate, but without deciding.

#[path = "../../limits/src/answer.rs"]
#[allow(dead_code)]
mod answer;
#[path = "../../limits/src/axum_server.rs"]
mod axum_server;
mod client;
mod counting;
#[path = "../../limits/src/tonic_server.rs"]
mod tonic_server;

use std::convert::Infallible;
use std::error::Error;
use std::future::ready;
use std::hint::black_box;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;

use bytes::Bytes;
use http_body_util::Empty;
use prost::Message;
use spillgate::headers::HeaderStyle;
use spillgate::insight::{CallerName, LimitInsight, Take};
use spillgate::rules::{Action, Request, Rules, RulesFile};
use spillgate::tower::{RateLimitLayer, key};
use spillgate::{Limiter, MemoryOptions, MemoryStore, Quota, Time};
use spillgate_server::listener::{App, Listen, Running, Server};
use spillgate_server::settings::{SettingsFile, Sources, resolve};
use tower::{Layer as _, Service as _};

use answer::pb;
use client::{Call, connect, http_request, send_http};
use counting::{Counting, each};
use spillgate_grpc::Grpc;
use spillgate_http::{HttpOptions, HttpState};
use spillgate_service::metrics::Metrics;
use spillgate_service::{Backend, CallerKeys, Client, Insight, Service, ServiceOptions};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Outcome = Result<(), Box<dyn Error>>;

const RULES: &str = include_str!("../../rules.yaml");
const SETTINGS: &str = "forward_auth: {domain: bench, descriptors: [[{key: user_id, from: client_ip}]]}";
const CHECK: &str = r#"{"domain":"bench","descriptors":[{"user_id":"user:7"}],"cost":1}"#;
const HIT: &str = r#"{"bucket":"b","key":"user:7","limit":1000000000,"window_ms":3600000,"algorithm":"token_bucket"}"#;
const RLS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The result for one path of a request.
struct Row {
    path: &'static str,
    /// Allocations per request.
    allocations: f64,
    /// The bound for allocations per request. The test fails if the average is half an allocation above it, or more.
    most: f64,
    /// The name of a server that sends the same answer without a decision, and its allocations per request.
    at_once: Option<(&'static str, f64)>,
}

fn main() -> Outcome {
    if std::env::args().len() > 1 {
        println!("Prints the allocations of a request on each path, as markdown. There are no arguments.");
        return Ok(());
    }
    println!("### Allocations per request, after many requests on the same connection\n");
    println!(
        "| path | allocations per request | bound | allocations per request of a server that answers without a \
        decision |\n|---|---|---|---|"
    );
    for Row { path, allocations, most, at_once } in count()? {
        let at_once = at_once.map_or(String::from("-"), |(name, count)| format!("{count:.1} ({name})"));
        println!("| {path} | {allocations:.1} | {most} | {at_once} |");
    }
    Ok(())
}

fn count() -> Result<Vec<Row>, Box<dyn Error>> {
    let service = service()?;
    let (running, grpc, http) = serve(&service)?;
    let (tonic, axum) = do_nothing()?;
    let (tonic, axum) = (of_call(tonic), of_http(axum, "POST", "/v1/check", CHECK));
    let row = |path, most, allocations| Row { path, allocations, most, at_once: None };
    let rows = vec![
        row("library, `Limiter::take_now`", 0.0, of_library()?),
        row("library, `RateLimitLayer` without header fields", 0.0, of_layer(HeaderStyle::Off)),
        row("library, `RateLimitLayer` with the fields of draft 11", 4.0, of_layer(HeaderStyle::Draft11)),
        row("`Service::decide`", 0.0, of_decide(&service)),
        row("`Service::decide` with insight", 0.0, of_decide(&watching(CallerKeys::Hashed)?)),
        row("`Service::decide` with insight, names kept", 0.0, of_decide(&watching(CallerKeys::Plain)?)),
        row("library, `LimitInsight::count_named`, new callers", 0.0, of_insight()?),
        Row { at_once: Some(("tonic", tonic)), ..row("gRPC `ShouldRateLimit`", 13.0, of_call(grpc)) },
        Row {
            at_once: Some(("axum", axum)),
            ..row("HTTP `POST /v1/check`", 5.0, of_http(http, "POST", "/v1/check", CHECK))
        },
        row("HTTP `POST /v1/hit`", 5.0, of_http(http, "POST", "/v1/hit", HIT)),
        row("HTTP `GET /v1/forward-auth`", 7.0, of_http(http, "GET", "/v1/forward-auth", "")),
        row("HTTP `GET /healthz`, which decides nothing", 4.0, of_http(http, "GET", "/healthz", "")),
    ];
    running.handle().drain();
    running.wait()?;
    Ok(rows)
}

fn service() -> Result<Arc<Service>, Box<dyn Error>> {
    Ok(Arc::new(service_with(ServiceOptions::default())?))
}

/// Returns a service that watches the callers of each limit.
fn watching(keys: CallerKeys) -> Result<Service, Box<dyn Error>> {
    service_with(ServiceOptions { insight: Insight { max_callers: 65_536, keys }, ..ServiceOptions::default() })
}

fn service_with(options: ServiceOptions) -> Result<Service, Box<dyn Error>> {
    let rules = Rules::parse(&[RulesFile { name: "rules.yaml".into(), text: RULES.into() }])?;
    let limiter = Limiter::new(Backend::Memory(MemoryStore::new(MemoryOptions::default())));
    Ok(Service::new(rules, limiter, options, Arc::new(Metrics::new())))
}

/// Starts spillgate in the same way as `spillgate serve`. Returns the server, and its addresses for gRPC and for HTTP.
fn serve(service: &Arc<Service>) -> Result<(Running, SocketAddr, SocketAddr), Box<dyn Error>> {
    let file = SettingsFile { name: "settings.yaml".into(), text: SETTINGS.into() };
    let settings =
        resolve(&Sources { file: Some(file), ..Sources::default() }).expect("the settings are valid").settings;
    let mut server = Server::new(settings.limits.clients, Some(1), Arc::clone(service.metrics()));
    let mut bind = |app| match server.bind(&Listen::Tcp("127.0.0.1:0".parse()?), app)? {
        Listen::Tcp(address) => Ok::<_, Box<dyn Error>>(address),
        Listen::Unix(_) => Err("the address is not a TCP address".into()),
    };
    let grpc = bind(App::Grpc(Grpc::new(Arc::clone(service), settings.allow.grpc, settings.limits.body)?))?;
    let http = bind(App::Http(HttpState::new(Arc::clone(service), HttpOptions::from(&settings))?))?;
    Ok((server.start()?, grpc, http))
}

/// Starts the servers `tonic` and `axum` of the folder `limits`, and returns their addresses. The servers end with this
/// process.
fn do_nothing() -> Result<(SocketAddr, SocketAddr), Box<dyn Error>> {
    let free = || TcpListener::bind("127.0.0.1:0")?.local_addr();
    let (tonic, axum) = (free()?, free()?);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    thread::spawn(move || runtime().block_on(tonic_server::serve(tonic)).expect("tonic serves"));
    thread::spawn(move || {
        let serve = async { axum_server::serve(tokio::net::TcpListener::bind(axum).await?).await };
        runtime().block_on(serve).expect("axum serves");
    });
    for address in [tonic, axum] {
        while TcpStream::connect(address).is_err() {
            thread::yield_now();
        }
    }
    Ok((tonic, axum))
}

fn of_library() -> Result<f64, Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new(MemoryOptions::default()));
    let quota = Quota::per_hour(1_000_000_000).build()?;
    Ok(each(|| _ = black_box(limiter.take_now(&quota, ("bench", "user:7"), 1))))
}

/// Every other request has a new caller. The time advances by a second for each request, so that new minutes begin and
/// old callers leave.
fn of_insight() -> Result<f64, Box<dyn Error>> {
    let (limiter, quota) = (Limiter::new(MemoryStore::new(MemoryOptions::default())), Quota::per_minute(1).build()?);
    let start = limiter.now();
    let options = spillgate::insight::Options { callers: 256, names: true, seed: 0 };
    let insight = LimitInsight::new(&quota, options, start);
    let decision = limiter.take_now(&quota, "user:7", 2);
    let mut number = 0_u64;
    Ok(each(|| {
        number += 1;
        let caller = if number.is_multiple_of(2) { number } else { 7 };
        let key = limiter.hit(&quota, caller, 1).key;
        let now = Time::from_nanos(start.as_nanos() + number * 1_000_000_000);
        insight.count_named(now, key, &Take::of(2, &decision), || CallerName::of(["user=", "7"]));
    }))
}

/// Requests pass the layer on their way to a service that allocates nothing.
fn of_layer(style: HeaderStyle) -> f64 {
    const QUOTA: Quota = Quota::per_hour(1_000_000_000).constant();
    let layer = RateLimitLayer::new(Limiter::in_memory()).limit("path", &QUOTA, key::path()).header_style(style);
    let mut service = layer.layer(tower::service_fn(|_: http::Request<()>| {
        ready(Ok::<_, Infallible>(http::Response::new(Empty::<Bytes>::new())))
    }));
    each(|| {
        let answer = pin!(service.call(http::Request::new(())));
        assert!(answer.poll(&mut Context::from_waker(Waker::noop())).is_ready(), "memory answers at once");
    })
}

fn of_decide(service: &Service) -> f64 {
    let mut request = Request::new("bench");
    request.add([("user_id", "user:7")], Action::Take(1), None);
    each(|| {
        let loaded = service.rules();
        let answer = pin!(service.decide(&loaded, &request, Client::default()));
        assert!(answer.poll(&mut Context::from_waker(Waker::noop())).is_ready(), "memory answers at once");
    })
}

fn of_call(server: SocketAddr) -> f64 {
    let entry = pb::rate_limit_descriptor::Entry { key: "user_id".into(), value: "user:7".into() };
    let descriptor = pb::RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let message = pb::RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 1 };
    let mut call = Call::new(server, RLS, &message.encode_to_vec());
    each(|| call.send())
}

fn of_http(server: SocketAddr, method: &str, path: &str, body: &str) -> f64 {
    let (mut stream, request) = (connect(server), http_request(method, path, body));
    each(|| send_http(&mut stream, &request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_allocates_more_than_its_bound() {
        // No server runs yet, so only insight could be the reason for an allocation here.
        assert_eq!(of_insight().expect("the quota is valid"), 0.0, "insight has all its memory from the start");
        for Row { path, allocations, most, .. } in count().expect("servers run") {
            // A buffer grows now and then, so the average can be slightly above a whole number.
            assert!(allocations < most + 0.5, "{path}: {allocations} allocations per request, at most {most} expected");
        }
    }
}
