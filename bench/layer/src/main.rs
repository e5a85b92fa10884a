//! Measures what a layer of tower adds to a request: the layer of spillgate beside tower_governor.
//!
//! Both layers count by the address of the peer and wrap the same service. The service alone is measured too, and its
//! time is subtracted. All services exist at the same time and take turns, so that a slow phase of the machine affects
//! all of them.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use clap::Parser;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use kit::{Cost, Spread, spread, together};
use spillgate::headers::HeaderStyle;
use spillgate::tower::{RateLimitLayer, key};
use spillgate::{Limiter, Quota};
use tower::{Layer, Service};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// Every request is allowed, because the burst is large. A used unit is free again after 86.4 s, so the state of an
/// address does not expire between two requests.
const QUOTA: Quota = Quota::per_day(1_000).burst(1_000_000).constant();
const BURST: u32 = 1_000_000;
const INTERVAL: Duration = Duration::from_millis(86_400);

#[derive(Parser)]
#[command(name = "layer", about)]
struct Options {
    /// Number of threads that share each layer
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Number of different addresses
    #[arg(long, default_value_t = 10_000)]
    addresses: u32,
    /// Requests of each thread in each repetition
    #[arg(long, default_value_t = 300_000)]
    requests: u32,
    #[arg(long, default_value_t = 31)]
    repetitions: usize,
}

/// Sends the requests of one thread to a service. The second argument is the number of the thread.
type Run = Box<dyn Fn(&Options, u32) -> usize + Sync>;

fn main() -> ExitCode {
    kit::print("layer", run(&Options::parse()))
}

fn run(options: &Options) -> Result<String, String> {
    let subjects = subjects()?;
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); subjects.len()];
    // The first round is a warm-up and is not recorded.
    for repetition in 0..=options.repetitions {
        for turn in 0..subjects.len() {
            let which = (turn + repetition) % subjects.len();
            let cost = together(options.threads, |thread| (subjects[which].1)(options, thread as u32));
            if repetition > 0 {
                costs[which].push(cost);
            }
        }
        eprint!("\rrepetition {repetition} of {}", options.repetitions);
    }
    eprintln!();
    Ok(report(options, &subjects, &costs))
}

fn subjects() -> Result<Vec<(&'static str, Run)>, String> {
    let ours = |style| {
        let layer = RateLimitLayer::new(Limiter::in_memory()).limit("address", &QUOTA, key::address());
        layer.header_style(style)
    };
    let mut theirs = GovernorConfigBuilder::default();
    theirs.period(INTERVAL).burst_size(BURST);
    let without = theirs.finish().ok_or("tower_governor refuses its configuration")?;
    let with = theirs.use_headers().finish().ok_or("tower_governor refuses its configuration")?;
    Ok(vec![
        ("the service alone", service(Bare)),
        ("spillgate, no header fields", service(ours(HeaderStyle::Off).layer(Bare))),
        ("tower_governor, no header fields", service(GovernorLayer::new(without).layer(Bare))),
        ("spillgate, three X-RateLimit fields", service(ours(HeaderStyle::XRateLimit).layer(Bare))),
        ("tower_governor, two X-RateLimit fields", service(GovernorLayer::new(with).layer(Bare))),
        ("spillgate, fields of draft 11", service(ours(HeaderStyle::Draft11).layer(Bare))),
    ])
}

/// A service that answers with a content type and an empty body.
#[derive(Clone)]
struct Bare;

impl Service<Request<()>> for Bare {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        black_box(request);
        let mut response = Response::default();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        ready(Ok(response))
    }
}

fn service<S, B>(service: S) -> Run
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone + Sync + 'static,
{
    Box::new(move |options, thread| {
        let mut service = service.clone();
        let mut cx = Context::from_waker(Waker::noop());
        let mut answered = 0;
        for number in 0..options.requests {
            // A multiplicative hash spreads the requests over all addresses.
            let address = (number.wrapping_mul(2_654_435_761) >> 8) % options.addresses + (thread << 24 >> 24);
            let peer = SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + address), 4711));
            let mut request = Request::new(());
            request.extensions_mut().insert(ConnectInfo(peer));
            assert!(service.poll_ready(&mut cx).is_ready());
            let Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut cx) else { return 0 };
            assert_eq!(response.status(), 200);
            black_box(response);
            answered += 1;
        }
        answered
    })
}

fn report(options: &Options, subjects: &[(&'static str, Run)], costs: &[Vec<Cost>]) -> String {
    let mut out = kit::machine();
    let _ = writeln!(
        out,
        "\n{} threads, {} addresses, {} repetitions of {} requests. What a layer adds is the CPU time of a request with \
         the layer, minus that of the service alone in the same repetition.\n\n\
         | service | CPU ns per request, median (min to max) | what the layer adds, in ns | added time / added time of \
         tower_governor with the same choice of header fields |\n|---|---|---|---|",
        options.threads,
        options.addresses,
        options.repetitions,
        options.threads as u32 * options.requests,
    );
    let added = |which: usize| costs[which].iter().zip(&costs[0]).map(|(cost, bare)| cost.cpu_ns - bare.cpu_ns);
    for (which, (name, _)) in subjects.iter().enumerate() {
        let of: Spread = spread(costs[which].iter().map(|cost| cost.cpu_ns));
        let theirs = if which < 3 { 2 } else { 4 };
        let ratio = spread(added(which).zip(added(theirs)).map(|(ours, theirs)| ours / theirs));
        let _ = match which {
            0 => writeln!(out, "| {name} | {of:.0} | - | - |"),
            _ => writeln!(out, "| {name} | {of:.0} | {:.0} | {ratio:.2} |", spread(added(which))),
        };
    }
    out
}
