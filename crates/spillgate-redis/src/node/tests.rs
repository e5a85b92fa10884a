//! Tests of a node whose Redis server does not reply.

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, RedisConnectionInfo};
use spillgate_core::{Binding, Circuit, Hit, Op, Quota, StoreErrorKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::Node;
use crate::command::Command;
use crate::command::request::ScriptCall;
use crate::connect::connector::Connector;
use crate::connect::endpoint::{Endpoint, Location};
use crate::connection::reply::Caller;
use crate::error::Error;
use crate::settings::Settings;

/// Starts a Redis server that accepts connections and replies only to the first PING. Returns a node for this server.
/// The node has one connection, which may wait for at most two replies.
async fn silent() -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("the test server has a port");
    let port = listener.local_addr().expect("the socket has an address").port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                client.write_all(b"+PONG\r\n").await.expect("the node accepts the reply to its PING");
                while client.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
            });
        }
    });
    let minute = Duration::from_secs(60);
    let probe_every = Duration::from_millis(1);
    let settings = Settings { connections: 1, connect_timeout: minute, probe_every, ..Settings::new("") };
    let connector =
        Connector::new(RedisConnectionInfo::default(), None, &Settings { scripts: false, ..settings.clone() });
    let location = Location::Address(ConnectionAddr::Tcp("127.0.0.1".to_owned(), port));
    Node::new(Endpoint { connector: Arc::new(Connector { waiting_max: 2, ..connector }), location }, &settings)
}

/// A request that fails as `Overloaded` was not sent, so it says nothing about Redis.
#[tokio::test]
async fn a_connection_with_too_many_pending_replies_says_nothing_about_the_server() {
    let server = silent().await;
    let minute = || Instant::now() + Duration::from_secs(60);
    server.wait_connected(minute()).await.expect("the server accepts the connection");
    let quota = Quota::per_minute(5).build().expect("the quota is valid");
    let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    let call = Command::Script(ScriptCall::new(None, &hits).expect("the request is well formed"));
    let kind =
        async |deadline| server.send(&call, &Caller::default().0, false, deadline).await.err().map(|error| error.kind);
    // On a busy machine, the millisecond can be over before the request is sent.
    let mut late = Some(StoreErrorKind::NotSent);
    while late == Some(StoreErrorKind::NotSent) {
        late = kind(Instant::now() + Duration::from_millis(1)).await;
    }
    assert_eq!(late, Some(StoreErrorKind::Timeout));
    assert_eq!(server.circuit(), Circuit::Closed, "a request with little time does not count as a failure");
    // Now the connection waits for two replies, which is its maximum: to the take, and to a PING.
    let why = Error::new(StoreErrorKind::Busy, "a slow script");
    server.pool.is_down(&why);
    sleep(Duration::from_millis(2)).await;
    assert_eq!(
        kind(minute()).await,
        Some(StoreErrorKind::Overloaded),
        "this request is the probe, and the connection accepts no more requests"
    );
    assert_eq!((server.circuit(), server.last_error()), (Circuit::Open, Some(why)));
}

/// A proxy in front of Redis can forget a login, or withdraw it when the password changes. The connection would then
/// refuse every request, for ever.
#[tokio::test]
async fn a_connection_that_is_no_longer_logged_in_is_made_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("the test server has a port");
    let port = listener.local_addr().expect("the socket has an address").port();
    let location = Location::Address(ConnectionAddr::Tcp("127.0.0.1".to_owned(), port));
    let minute = Duration::from_secs(60);
    let settings = Settings { connections: 1, connect_timeout: minute, scripts: false, ..Settings::new("") };
    let connector = Arc::new(Connector::new(RedisConnectionInfo::default(), None, &settings));
    let node = Node::new(Endpoint { connector, location }, &settings);
    let (_, accepted) = tokio::join!(node.wait_connected(Instant::now() + minute), async {
        let (mut client, _) = listener.accept().await.expect("the node connects");
        let mut ping = Vec::new();
        while !ping.ends_with(b"PING\r\n") {
            client.read_buf(&mut ping).await.expect("the node sends a PING");
        }
        client.write_all(b"+PONG\r\n").await.expect("the node accepts the reply to its PING");
        client
    });
    let (mut reader, mut writer) = accepted.into_split();
    // The request is refused.
    tokio::spawn(async move {
        let _ = reader.read(&mut [0; 4096]).await;
        let _ = writer.write_all(b"-NOAUTH first\r\n").await;
        // The socket stays open, so only the refusal can end the connection.
        while reader.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
    });
    let quota = Quota::per_minute(5).build().expect("the quota is valid");
    let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    let call = Command::Script(ScriptCall::new(None, &hits).expect("the request is well formed"));
    let refused =
        node.send(&call, &Caller::default().0, false, Instant::now() + minute).await.err().map(|error| error.kind);
    assert_eq!(refused, Some(StoreErrorKind::NoPermission));
    let again = tokio::time::timeout(minute, listener.accept()).await;
    assert!(again.is_ok(), "the node connects again, and logs in with the current password");
}
