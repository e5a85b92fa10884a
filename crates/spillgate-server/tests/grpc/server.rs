//! Tests of three parts of the gRPC listener: health, reflection and Unix sockets.
//!
//! Orchestrators and debugging tools depend on these parts, and the reported health must agree with the readiness.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use hyper_util::rt::TokioIo;
use spillgate_grpc::Grpc;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use spillgate_server::listener::{App, Limits, Listen, Server};
use spillgate_service::Readiness;
use tonic::codegen::tokio_stream;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};

use crate::grpc::support::*;

const RULES: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 20}
";

const RLS: &str = "envoy.service.ratelimit.v3.RateLimitService";

#[tokio::test]
async fn health_reports_the_readiness_of_the_service() {
    let server = TestServer::start(&[RULES]);
    let mut health = HealthClient::new(server.channel().await);
    let mut check = async |name: &str| {
        let answer = health.check(HealthCheckRequest { service: name.into() }).await;
        answer.map(|answer| answer.into_inner().status())
    };
    for name in ["", RLS] {
        assert_eq!(check(name).await.unwrap(), ServingStatus::Serving);
    }
    assert_eq!(check("unknown").await.unwrap_err().code(), tonic::Code::NotFound);
    server.service.set_readiness(Readiness::StoreDown);
    assert_eq!(check("").await.unwrap(), ServingStatus::NotServing);
    server.service.set_readiness(Readiness::Ready);
    assert_eq!(check("").await.unwrap(), ServingStatus::Serving);
    server.service.set_readiness(Readiness::Draining);
    server.service.set_readiness(Readiness::Ready);
    assert_eq!(check("").await.unwrap(), ServingStatus::NotServing, "a server that drains never becomes ready again");
}

/// Health probes for Envoy's reference rate limit server ask about a service named `ratelimit`. spillgate must answer
/// these probes too.
#[tokio::test]
async fn health_knows_the_name_that_the_reference_server_has() {
    let server = TestServer::start(&[RULES]);
    let mut health = HealthClient::new(server.channel().await);
    let asked = || HealthCheckRequest { service: "ratelimit".into() };
    assert_eq!(health.check(asked()).await.unwrap().into_inner().status(), ServingStatus::Serving);
    let mut watch = health.watch(asked()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.service.set_readiness(Readiness::Draining);
    assert_eq!(health.check(asked()).await.unwrap().into_inner().status(), ServingStatus::NotServing);
}

#[tokio::test]
async fn a_health_watch_follows_and_ends_when_the_server_drains() {
    let server = TestServer::start(&[RULES]);
    let mut health = HealthClient::new(server.channel().await);
    let mut watch = health.watch(HealthCheckRequest { service: RLS.into() }).await.unwrap().into_inner();
    let mut next = async || watch.message().await.unwrap().map(|message| message.status());
    assert_eq!(next().await, Some(ServingStatus::Serving));
    server.service.set_readiness(Readiness::StoreDown);
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    server.service.set_readiness(Readiness::Ready);
    assert_eq!(next().await, Some(ServingStatus::Serving));
    server.service.set_readiness(Readiness::Draining);
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    assert_eq!(next().await, None);
}

/// tonic reads the messages of reflection in a task of its own. What that task cannot read concerns no other call.
#[tokio::test]
async fn a_reflection_message_that_does_not_fit_concerns_no_other_call_of_its_connection() {
    let limits = Limits { in_flight: 0, ..limits() };
    let server = TestServer::start_with(&[RULES], Setup { limits, ..Setup::default() });
    let channel = server.channel().await;
    for _ in 0..3 {
        let asked = v1::ServerReflectionRequest {
            host: "h".repeat(10_000),
            message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
        };
        let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
        let answers = client.server_reflection_info(tokio_stream::once(asked)).await;
        let answer = answers.unwrap().into_inner().message().await;
        assert!(!matches!(answer, Ok(Some(_))), "the message takes more bytes than the connection has: {answer:?}");
        let asked = request("api", &[descriptor(&[("user", "a")])]);
        let answer = RateLimitServiceClient::new(channel.clone()).should_rate_limit(asked).await;
        assert_eq!(answer.expect("the call is answered").into_inner().overall_code(), Code::Ok);
    }
}

#[tokio::test]
async fn watches_have_a_bound_and_checks_are_still_answered() {
    let server = TestServer::start(&[RULES]);
    let mut health = HealthClient::new(server.channel().await);
    let mut open = Vec::new();
    let full = loop {
        match health.watch(HealthCheckRequest::default()).await {
            Ok(watch) => open.push(watch.into_inner()),
            Err(status) => break status,
        }
    };
    assert_eq!((open.len(), full.code()), (4, tonic::Code::ResourceExhausted), "{full}");
    assert!(health.check(HealthCheckRequest::default()).await.is_ok());
    assert!(HealthClient::new(server.channel().await).watch(HealthCheckRequest::default()).await.is_ok());
    open.pop();
    // The server learns of the end of the call when the connection tells it.
    let freed = async {
        while health.watch(HealthCheckRequest::default()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, freed).await.expect("the place of an ended call is free again");
}

#[tokio::test]
async fn reflection_names_the_services_in_both_versions() {
    let server = TestServer::start(&[RULES]);
    let expected = ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"];

    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(server.channel().await);
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let v1::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer else {
        panic!("the answer does not list the services: {answer:?}");
    };
    let names: Vec<&str> = list.service.iter().map(|service| &*service.name).collect();
    assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");

    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
            "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor".into(),
        )),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(server.channel().await);
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(files) = answer else {
        panic!("the answer contains no file descriptors: {answer:?}");
    };
    assert!(!files.file_descriptor_proto.is_empty());
}

async fn unix_client(path: &Path) -> Client {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(path).await?)) }
    });
    let endpoint = Endpoint::from_static("http://local").timeout(DEADLINE);
    RateLimitServiceClient::new(endpoint.connect_with_connector(connector).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_serves_replaces_a_stale_file_and_is_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rls.sock");
    // When a server is killed, its socket file stays, but no process listens on it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());

    let setup = || Setup { listen: Listen::Unix(path.clone()), ..Setup::default() };
    let mut server = TestServer::start_with(&[RULES], setup());
    let metadata = std::fs::metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
    let mut client = unix_client(&path).await;
    let response = ask(&mut client, "api", &[descriptor(&[("user", "7")])]).await.unwrap();
    assert_eq!(response.overall_code(), Code::Ok);

    let grpc = Grpc::new(server.service.clone(), ALL_GRANTS, 1024).unwrap();
    let mut second = Server::new(limits(), Some(1), server.metrics.clone());
    let taken = second.bind(&Listen::Unix(path.clone()), App::Grpc(grpc.clone())).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    let file = folder.path().join("precious");
    std::fs::write(&file, "not a socket").unwrap();
    second.bind(&Listen::Unix(file.clone()), App::Grpc(grpc)).unwrap_err();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not a socket");

    drop(client);
    server.handle.drain();
    let running = server.running.take().unwrap();
    tokio::task::spawn_blocking(|| running.wait()).await.unwrap().unwrap();
    assert!(!path.exists());
}
