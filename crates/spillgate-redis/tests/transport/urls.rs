//! Tests how a store reaches Redis: Unix sockets, TLS, users and databases.

use std::fs;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use spillgate_redis::{Cause, Error, RedisStore, Settings, StoreErrorKind, Tls};
use spillgate_testkit::free_port;
use tempfile::TempDir;

use crate::support::common::limiter;
use crate::support::common::{PATIENCE, a_day, take, until_decided, with_long_timeouts};
use crate::support::server::Server;

/// Sends two takes. The second one must find the state that the first one wrote.
async fn assert_decides(settings: &Settings) {
    let (store, quota) = (RedisStore::new(settings).expect("the URL is valid"), a_day(1000));
    for left in [999, 998] {
        let (verdict, decision) = take(&store, 1, &quota, PATIENCE).await.expect("the server answers");
        assert_eq!((verdict.allowed, decision.remaining), (true, left));
    }
}

#[tokio::test]
async fn by_a_unix_socket() {
    let folder = TempDir::new().expect("the folder can be made");
    let socket = folder.path().join("redis.sock");
    let _server = Server::start_at(0, &["--unixsocket", &socket.to_string_lossy()]);
    assert_decides(&with_long_timeouts(&format!("unix://{}", socket.display()))).await;
}

#[tokio::test]
async fn with_a_password_in_a_database() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let url = format!("redis://:secret@127.0.0.1:{}/3", server.port());
    assert_decides(&with_long_timeouts(&url)).await;
    let client = redis::Client::open(url).expect("the URL is valid");
    let keys: u64 = redis::cmd("DBSIZE")
        .query(&mut client.get_connection().expect("the server is up"))
        .expect("the text is a number");
    assert_eq!(keys, 1);
}

/// A certificate and its key, in PEM.
type Pem = (String, String);

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("the name is valid");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("the system has random numbers"))
        .expect("the certificate can be signed")
}

fn signed_by(authority: &CertifiedIssuer<'_, KeyPair>, name: &str) -> Pem {
    let key = KeyPair::generate().expect("the system has random numbers");
    let mut params = CertificateParams::new([name.to_owned()]).expect("the name is valid");
    params.distinguished_name.push(DnType::CommonName, name);
    (params.signed_by(&key, authority).expect("the certificate can be signed").pem(), key.serialize_pem())
}

/// Starts a Redis server that accepts only clients with a certificate of this authority. Returns the server, its port
/// for TLS, and the folder of its certificates.
fn start_secure(authority: &CertifiedIssuer<'_, KeyPair>, port: u16, more: &[&str]) -> (Server, u16, TempDir) {
    let own = signed_by(authority, "127.0.0.1");
    start_with_certificate(&own, &authority.pem(), port, &[&["--tls-auth-clients", "yes"], more].concat())
}

/// Starts a Redis server with this certificate. Returns the server, its port for TLS, and the folder of its
/// certificates.
fn start_with_certificate(own: &Pem, ca: &str, port: u16, more: &[&str]) -> (Server, u16, TempDir) {
    let folder = TempDir::new().expect("the folder can be made");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("the file can be written");
        path.to_string_lossy().into_owned()
    };
    let (ca, certificate, key) = (file("ca.pem", ca), file("certificate.pem", &own.0), file("key.pem", &own.1));
    let tls_port = free_port();
    let arguments = [
        ["--tls-port", &tls_port.to_string()],
        ["--tls-ca-cert-file", &ca],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
    ];
    (Server::start_at(port, &[arguments.as_flattened(), more].concat()), tls_port, folder)
}

async fn connected(port: u16, ca: &str, client: Option<&Pem>) -> Result<(), Error> {
    let client = client.map(|(chain, key)| (chain.clone().into_bytes(), key.clone().into_bytes()));
    connected_by(port, Tls { ca: Some(ca.to_owned().into_bytes()), client, ..Tls::default() }).await
}

async fn connected_by(port: u16, tls: Tls) -> Result<(), Error> {
    let settings = Settings {
        tls,
        connect_timeout: Duration::from_secs(3),
        ..Settings::new(format!("rediss://127.0.0.1:{port}/"))
    };
    RedisStore::new(&settings)?.wait_connected().await
}

#[tokio::test]
async fn with_certificates_on_both_sides() {
    let (authority, other) = (authority("ours"), authority("another"));
    let (_server, port, _folder) = start_secure(&authority, 0, &[]);
    let client = signed_by(&authority, "limiter");
    let tls = Tls {
        ca: Some(authority.pem().into_bytes()),
        client: Some((client.0.clone().into_bytes(), client.1.clone().into_bytes())),
        ..Tls::default()
    };
    let url = format!("rediss://127.0.0.1:{port}/");
    assert_decides(&Settings { tls, ..with_long_timeouts(&url) }).await;

    let unknown = connected(port, &other.pem(), Some(&client))
        .await
        .expect_err("no trusted authority signed the server's certificate");
    assert_eq!(unknown.cause(), Cause::Certificate, "{unknown}");
    let refused = connected(port, &authority.pem(), None).await.expect_err("the server wants a certificate");
    assert_eq!(
        (refused.kind(), refused.cause()),
        (StoreErrorKind::Disconnected, Cause::ClientCertificate),
        "{refused}"
    );
    let refused = connected(port, &authority.pem(), Some(&signed_by(&other, "limiter"))).await;
    let refused = refused.expect_err("no trusted authority signed the client's certificate");
    assert_eq!(
        (refused.kind(), refused.cause()),
        (StoreErrorKind::Disconnected, Cause::ClientCertificate),
        "{refused}"
    );
}

/// Returns a certificate as `openssl req -x509` makes it: it is self-signed, and can sign other certificates.
fn own_authority(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pem {
    let mut params = CertificateParams::new([name.to_owned()]).expect("the name is valid");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    let key = KeyPair::generate().expect("the system has random numbers");
    (params.self_signed(&key).expect("the certificate can be signed").pem(), key.serialize_pem())
}

#[tokio::test]
async fn a_certificate_that_is_its_own_authority_is_trusted_where_it_is_named() {
    let served = async |own: &Pem, ca: &str| {
        let (_server, port, _folder) = start_with_certificate(own, &own.0, 0, &["--tls-auth-clients", "no"]);
        connected(port, ca, None).await
    };
    let own = own_authority("127.0.0.1", |_| ());
    assert_eq!(served(&own, &own.0).await, Ok(()));
    let both = authority("another").pem() + &own.0;
    assert_eq!(served(&own, &both).await, Ok(()));
    let cause = |refused: Result<(), Error>| refused.expect_err("the certificate is wrong").cause();
    // Such a certificate is still refused if it is not the trusted one, names another host, or has expired.
    assert_eq!(cause(served(&own, &own_authority("127.0.0.1", |_| ()).0).await), Cause::Certificate);
    let elsewhere = own_authority("redis.example", |_| ());
    assert_eq!(cause(served(&elsewhere, &elsewhere.0).await), Cause::CertificateName);
    let expired = own_authority("127.0.0.1", |params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
    assert_eq!(cause(served(&expired, &expired.0).await), Cause::CertificateDates);
}

#[tokio::test]
async fn a_certificate_without_the_hosts_name_is_excused_by_the_settings_alone() {
    let (ours, other) = (authority("ours"), authority("another"));
    let own = signed_by(&ours, "redis.example");
    let (_server, port, _folder) = start_with_certificate(&own, &ours.pem(), 0, &["--tls-auth-clients", "no"]);
    let ca = || Some(ours.pem().into_bytes());
    let refused =
        connected_by(port, Tls { ca: ca(), ..Tls::default() }).await.expect_err("the certificate has another name");
    assert_eq!(refused.cause(), Cause::CertificateName, "{refused}");
    let named = |name: &str| Tls { ca: ca(), server_name: Some(name.to_owned()), ..Tls::default() };
    connected_by(port, named("redis.example")).await.expect("the certificate has this name");
    connected_by(port, named("redis.test")).await.expect_err("the certificate does not have this name");
    connected_by(port, Tls { ca: ca(), skip_name_check: true, ..Tls::default() }).await.expect("any name is accepted");
    let stranger = Tls { ca: Some(other.pem().into_bytes()), skip_name_check: true, ..Tls::default() };
    let refused = connected_by(port, stranger).await.expect_err("no trusted authority signed the certificate");
    assert_eq!(refused.cause(), Cause::Certificate, "{refused}");
}

/// The user has only the rights that the store needs. The slot map names a node's port for TLS.
#[tokio::test]
async fn with_certificates_and_users_in_a_cluster() {
    let authority = authority("ours");
    let bus = free_port().to_string();
    let more = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--tls-cluster", "yes"];
    let (server, port, _folder) = start_secure(&authority, free_port(), &more);
    server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    server.run(&limiter(&["+asking", "+cluster|slots"]));
    let (chain, key) = signed_by(&authority, "limiter");
    let client = Some((chain.into_bytes(), key.into_bytes()));
    let tls = Tls { ca: Some(authority.pem().into_bytes()), client, ..Tls::default() };
    let url = format!("rediss-cluster://limiter:secret@127.0.0.1:{},127.0.0.1:{port}", free_port());
    let settings = Settings { tls, ..with_long_timeouts(&url) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("the server accepts connections");
    assert_eq!(store.nodes().len(), 1);
    assert_eq!(store.nodes()[0].address, format!("127.0.0.1:{port}"));
    until_decided(&store, &a_day(1000)).await;
}

#[test]
fn an_invalid_certificate_is_rejected_at_once() {
    for broken in ["", "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n"] {
        let tls = Tls { ca: Some(broken.as_bytes().to_vec()), ..Tls::default() };
        assert!(RedisStore::new(&Settings { tls, ..Settings::new("rediss://127.0.0.1/") }).is_err(), "{broken:?}");
    }
}
