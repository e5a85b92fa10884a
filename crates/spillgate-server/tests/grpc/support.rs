//! Helpers for the tests of the gRPC listener: a server on a free port, and functions that build requests and summarize
//! answers.

use std::cell::Cell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::panic;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillgate::rules::{Rules, RulesFile};
use spillgate::{Clock, Limiter, MemoryOptions, MemoryStore, SystemClock};
use spillgate_grpc::Grpc;
use spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use spillgate_server::listener::{App, Handle, Limits, Listen, Running, Server};
use spillgate_service::metrics::{Format, Metrics, Page};
use spillgate_service::{Backend, Grants, Service, ServiceOptions};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub(crate) type Client = RateLimitServiceClient<Channel>;

/// The time limit of one step of a test. A step normally takes much less time.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const ALL_GRANTS: Grants = Grants { refund: true, overriding: true };

pub(crate) fn limits() -> Limits {
    Limits {
        connections: 1000,
        streams: 128,
        unread: 64 << 20,
        in_flight: 64 << 20,
        idle: Duration::from_secs(60),
        receive: Duration::from_secs(10),
        handshake: Duration::from_secs(60),
        drain: Duration::from_secs(10),
        age: None,
        age_grace: Duration::ZERO,
    }
}

/// The settings of a server that can be different in each test.
pub(crate) struct Setup {
    pub(crate) limits: Limits,
    pub(crate) grants: Grants,
    pub(crate) shadow: bool,
    pub(crate) listen: Listen,
}

impl Default for Setup {
    fn default() -> Self {
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        Setup { limits: limits(), grants: ALL_GRANTS, shadow: false, listen: Listen::Tcp(any) }
    }
}

pub(crate) struct TestServer {
    pub(crate) listen: Listen,
    pub(crate) handle: Handle,
    pub(crate) running: Option<Running>,
    pub(crate) service: Arc<Service>,
    pub(crate) metrics: Arc<Metrics>,
}

impl TestServer {
    pub(crate) fn start(rules: &[&str]) -> TestServer {
        TestServer::start_with(rules, Setup::default())
    }

    pub(crate) fn start_with(rules: &[&str], setup: Setup) -> TestServer {
        let files: Vec<RulesFile> = (1..)
            .zip(rules)
            .map(|(number, text)| RulesFile { name: format!("{number}.yaml"), text: (*text).into() })
            .collect();
        let rules = Rules::parse(&files).unwrap();
        let metrics = Arc::new(Metrics::new());
        let limiter = Limiter::new(Backend::Memory(MemoryStore::new(MemoryOptions::default())));
        let options = ServiceOptions { shadow: setup.shadow, ..ServiceOptions::default() };
        let service = Arc::new(Service::new(rules, limiter, options, Arc::clone(&metrics)));
        let grpc = Grpc::new(Arc::clone(&service), setup.grants, 64 * 1024).unwrap();
        let mut server = Server::new(setup.limits, Some(2), Arc::clone(&metrics));
        let listen = server.bind(&setup.listen, App::Grpc(grpc)).unwrap();
        let running = server.start().unwrap();
        TestServer { listen, handle: running.handle(), running: Some(running), service, metrics }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match &self.listen {
            Listen::Tcp(address) => *address,
            Listen::Unix(path) => panic!("{} is not a network address", path.display()),
        }
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address())).unwrap().timeout(DEADLINE).connect().await.unwrap()
    }

    pub(crate) async fn client(&self) -> Client {
        RateLimitServiceClient::new(self.channel().await)
    }

    /// Returns all metrics as text.
    pub(crate) fn page(&self) -> String {
        self.service.update_metrics();
        let mut page = Page::new(Format::Text);
        std::iter::from_fn(|| page.next(&self.metrics)).collect()
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> std::net::TcpStream {
        let mut stream = std::net::TcpStream::connect(self.address()).unwrap();
        // The write fails if the server has already closed the connection. The test checks later whether the connection
        // is open.
        let _ = stream.write_all(bytes);
        stream
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.handle.drain();
    }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry { key: key.into(), value: value.into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

pub(crate) fn hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

pub(crate) fn refund(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), is_negative_hits: true, ..descriptor(entries) }
}

pub(crate) fn overriding(entries: &[(&str, &str)], requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    RateLimitDescriptor { limit: Some(RateLimitOverride { requests_per_unit, unit }), ..descriptor(entries) }
}

pub(crate) fn request(domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: domain.into(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

pub(crate) async fn ask(
    client: &mut Client,
    domain: &str,
    descriptors: &[RateLimitDescriptor],
) -> Result<RateLimitResponse, Status> {
    client.should_rate_limit(request(domain, descriptors)).await.map(tonic::Response::into_inner)
}

/// Returns the overall code of an answer, and the code and the remaining units of each descriptor.
pub(crate) fn summary(response: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let status = |status: &DescriptorStatus| (status.code(), status.limit_remaining);
    (response.overall_code(), response.statuses.iter().map(status).collect())
}

/// Returns the whole seconds since the Unix epoch.
pub(crate) fn now_s() -> u64 {
    SystemClock::start().now().as_nanos() / 1_000_000_000
}

/// Runs a test of limits with windows of an hour or a day. If the test fails, and an hour ended during the test, runs
/// the test again: a new window may have begun with counts of zero, so the failure proves nothing.
pub(crate) async fn in_one_hour<F: Future<Output = ()> + 'static>(test: impl Fn() -> F) {
    again_if_changed(|| now_s() / 3600, test).await;
}

/// Runs `test`, and runs it again if it fails and `hour` has changed meanwhile.
async fn again_if_changed<F: Future<Output = ()> + 'static>(hour: impl Fn() -> u64, test: impl Fn() -> F) {
    let tasks = tokio::task::LocalSet::new();
    loop {
        let begun = hour();
        match tasks.run_until(tasks.spawn_local(test())).await {
            Ok(()) => return,
            Err(failed) if hour() == begun => panic::resume_unwind(failed.into_panic()),
            Err(_) => {}
        }
    }
}

#[tokio::test]
async fn a_test_runs_again_only_if_it_fails_and_the_hour_changes() {
    for (failures, runs) in [(0, 1), (1, 2), (2, 3)] {
        let (hour, begun) = (Cell::new(0), Rc::new(Cell::new(0)));
        let next_hour = || hour.replace(hour.get() + 1);
        let counted = Rc::clone(&begun);
        again_if_changed(next_hour, || {
            let begun = Rc::clone(&counted);
            async move {
                begun.set(begun.get() + 1);
                assert!(begun.get() > failures, "this attempt fails on purpose");
            }
        })
        .await;
        assert_eq!(begun.get(), runs);
    }
    let failed = tokio::task::LocalSet::new();
    let same_hour = || again_if_changed(|| 7, || async { panic!("this test fails on purpose") });
    assert!(failed.run_until(failed.spawn_local(same_hour())).await.is_err_and(|error| error.is_panic()));
}

/// Polls until `done` returns true. Panics after [`DEADLINE`].
pub(crate) async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !done() {
        assert!(tokio::time::Instant::now() < deadline, "gave up after {DEADLINE:?} waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
