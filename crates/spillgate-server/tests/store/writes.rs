//! Tests of what the log says about writes of operators while the shared store is slow or away.
//!
//! An operator who looks for the reason of a change trusts these lines.

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::Value;

use crate::store::fleet::{LONG_DEADLINE, decided, logged, metric, rules, serve, until_store};
use crate::support::redis::Redis;
use crate::support::{DEADLINE, eventually, http};

const LIMIT: &str = "  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}\n";
const ASK: &str = r#"{"domain":"api","descriptors":[{"user":"7"}]}"#;
const BLOCK: &str = r#"{"key":"user","value":"8","for":"1h"}"#;
const WRITE: (&str, &str) = ("x-spillgate-admin", "1");

#[test]
fn a_write_is_done_and_logged_although_its_caller_has_gone() {
    let (redis, folder) = (Redis::start(), rules(LIMIT));
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &["--log-level", "error"]].concat());
    until_store(server.http(), "user", "none");
    assert_eq!([(); 2].map(|()| decided(server.http(), "user", "7").0), [200, 429]);
    redis.hold_writes();
    let mut stream = TcpStream::connect_timeout(&server.admin(), DEADLINE).expect("the server listens");
    let head = format!(
        "POST /reset HTTP/1.1\r\nhost: localhost\r\nx-spillgate-admin: 1\r\ncontent-length: {}\r\n\r\n",
        ASK.len()
    );
    stream.write_all(format!("{head}{ASK}").as_bytes()).expect("the bytes are sent");
    eventually("the write waits for the store", || (metric(&server, "spillgate_store_in_flight") > 0).then_some(()));
    drop(stream);
    // Only the connection that reads this metric is left when the connection of the write has ended.
    eventually("the connection has ended", || (metric(&server, "spillgate_connections") == 1).then_some(()));
    assert!(server.process.stderr().is_empty(), "the write still waits: {:?}", server.process.stderr());
    redis.release_writes();
    let line = logged(&server.process, "a write on the admin listener");
    assert!(line.contains("1 limit reset: caller ") && line.contains("of rule user in domain api"), "{line}");
    assert!(line.contains("token=\"none\"") && line.ends_with("status=200"), "{line}");
    assert_eq!(decided(server.http(), "user", "7").0, 200, "the write was done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_over_http2_is_done_and_logged_although_its_caller_has_cancelled_it() {
    let (redis, folder) = (Redis::start(), rules(LIMIT));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    until_store(server.http(), "user", "none");
    assert_eq!([(); 2].map(|()| decided(server.http(), "user", "7").0), [200, 429]);
    redis.hold_writes();
    let stream = tokio::net::TcpStream::connect(server.admin()).await.expect("the server listens");
    let (mut client, mut connection) = h2::client::handshake(stream).await.expect("the server speaks HTTP/2");
    let mut pings = connection.ping_pong().expect("the connection has pings");
    tokio::spawn(connection);
    let request = ::http::Request::post("http://localhost/reset").header("x-spillgate-admin", "1").body(());
    let (answer, mut body) = client.send_request(request.expect("the request is valid"), false).expect("it is sent");
    body.send_data(ASK.into(), true).expect("the body is sent");
    pings.ping(h2::Ping::opaque()).await.expect("the server has read the request");
    tokio::task::block_in_place(|| {
        eventually("the write waits for the store", || {
            (metric(&server, "spillgate_store_in_flight") > 0).then_some(())
        });
    });
    body.send_reset(h2::Reason::CANCEL);
    drop(answer);
    pings.ping(h2::Ping::opaque()).await.expect("the server has read the cancellation");
    redis.release_writes();
    let line = tokio::task::block_in_place(|| logged(&server.process, "a write on the admin listener"));
    assert!(line.contains("1 limit reset: caller ") && line.ends_with("status=200"), "{line}");
    assert_eq!(decided(server.http(), "user", "7").0, 200, "the write was done");
}

#[test]
fn a_write_that_the_store_did_not_answer_has_an_unknown_outcome() {
    let (mut redis, folder) = (Redis::start(), rules(LIMIT));
    let server = serve(&folder, &redis.url(), &["--store-deadline", "1s"]);
    until_store(server.http(), "user", "7");
    // Three units are refused. A single unit could become zero, because the counts in the list of callers are halved
    // every ten minutes.
    assert_eq!([(); 3].map(|()| decided(server.http(), "user", "7").0), [429; 3]);
    redis.hold_writes();
    let write = |path: &str, body: &str| {
        let answer = http::request(server.admin(), "POST", path, &[WRITE], body).expect("the server answers");
        assert_eq!(answer.status, 503, "{}", answer.body);
        answer.body
    };
    let answer = write("/reset", ASK);
    assert!(answer.contains("the reset may have been made"), "{answer}");
    let line = logged(&server.process, "a write on the admin listener");
    assert!(line.contains("change=\"unknown: caller ") && line.ends_with("status=503"), "{line}");
    let answer = write("/block", BLOCK);
    assert!(
        answer.contains("may have changed its list") && answer.contains("the change may have been made"),
        "{answer}"
    );
    logged(&server.process, "route=\"/block\" change=\"unknown\"");
    // Without a connection, nothing can be changed, and the answers and the log say so.
    redis.kill();
    eventually("a reset is not sent", || write("/reset", ASK).contains("nothing was reset").then_some(()));
    logged(&server.process, "route=\"/reset\" change=\"nothing\"");
    eventually("a block is not sent", || {
        let answer = write("/block", BLOCK);
        (answer.contains("did not change its list") && answer.contains("nothing was changed")).then_some(())
    });
    logged(&server.process, "route=\"/block\" change=\"nothing\"");
    // The line names the caller as insight does.
    let top: Value = serde_json::from_str(&http::get(server.admin(), "/top", &[]).body).expect("the page is JSON");
    let id = top["limits"][0]["refused"]["callers"][0]["id"].as_str().expect("the caller was counted");
    assert!(line.contains(&format!("caller {id} of rule user in domain api")), "{line}\n{top}");
}
