//! Tests invalid replies, and transactions that were executed only in part. In both cases, Redis may have charged the
//! request.

use spillgate_core::{Binding, Decision, Hit, Op, Store, StoreError, Timing};
use spillgate_redis::{RedisStore, Settings, StoreErrorKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::common::{PATIENCE, a_day, take, with_long_timeouts};
use crate::support::server::Server;

/// Starts a simulated Redis that replies `reply` to every script, and returns its URL.
async fn answering(reply: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let port = listener.local_addr().expect("the listener has an address").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(reply_to(client, reply));
        }
    });
    format!("redis://127.0.0.1:{port}/")
}

async fn reply_to(mut client: TcpStream, reply: &'static [u8]) {
    let known: [(&[u8], &[u8]); 4] =
        [(b"PING", b"+PONG\r\n"), (b"SETINFO", b"+OK\r\n"), (b"SCRIPT\r\n", b"+OK\r\n"), (b"EVALSHA", reply)];
    let (mut received, mut at) = (Vec::new(), 0);
    while let Ok(1..) = client.read_buf(&mut received).await {
        while at < received.len() {
            let found = known.iter().find(|(command, _)| received[at..].starts_with(command));
            // If only the beginning of a command has come, the loop waits for the rest.
            if found.is_none() && known.iter().any(|(command, _)| command.starts_with(&received[at..])) {
                break;
            }
            at += 1;
            if let Some((_, reply)) = found
                && client.write_all(reply).await.is_err()
            {
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_request_with_an_invalid_reply_may_have_been_applied() {
    let quota = a_day(1000);
    // This reply contradicts itself: no unit is used, and yet the peek is refused.
    let lies = b"$14\r\n\0\0\0\0\x09\0\0\0\0\0\0\0\0\0\r\n";
    let (taken, look) = (Op::take(1), Op::Peek);
    for (reply, op) in [(b"$3\r\nabc\r\n".as_slice(), taken), (b":1\r\n", taken), (b"$-1\r\n", taken), (lies, look)] {
        let store = RedisStore::new(&with_long_timeouts(&answering(reply).await)).expect("the URL is valid");
        let hits = [Hit::new(1, &quota, op, Binding::Enforce)];
        let error = store
            .decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut [Decision::default()])
            .await
            .expect_err("the reply is invalid");
        assert_eq!(
            (error.kind(), error.kind().may_have_been_applied()),
            (StoreErrorKind::Garbled, true),
            "{error}, {:?}",
            store.last_error()
        );
        assert_eq!(store.failures(StoreErrorKind::Garbled), 1);
    }
}

/// Sends two takes in one transaction. The second key has a set of another program as its value. Returns the error, and
/// how many units of the first key were charged.
async fn half(server: &Server, url: &str) -> (StoreError, u64) {
    let store = RedisStore::new(&Settings { scripts: false, ..with_long_timeouts(url) }).expect("the URL is valid");
    let quota = a_day(1000);
    let error = {
        let hits = [1, 2].map(|key| Hit::new(key, &quota, Op::take(1), Binding::Enforce));
        store
            .decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut [Decision::default(); 2])
            .await
            .expect_err("one value is a set")
    };
    server.run(&["ACL", "SETUSER", "limiter", "+@all"]);
    let (_, decision) = take(&store, 1, &quota, PATIENCE).await.expect("the value of the first key is a counter");
    (error, 999 - decision.remaining)
}

#[tokio::test]
async fn a_transaction_that_is_done_in_part_leaves_doubt() {
    let server = Server::start();
    server.run(&["ACL", "SETUSER", "limiter", "on", ">secret", "~sg:*", "+@all"]);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let store = RedisStore::new(&Settings { scripts: false, ..with_long_timeouts(&url) }).expect("the URL is valid");
    take(&store, 2, &a_day(1000), PATIENCE).await.expect("the server decides");
    let names: Vec<String> = redis::from_redis_value(server.run(&["KEYS", "*"])).expect("the reply is a list of names");
    server.run(&["DEL", &names[0]]);
    server.run(&["SADD", &names[0], "foreign"]);

    let (error, charged) = half(&server, &url).await;
    assert_eq!(
        (error.kind(), error.kind().may_have_been_applied(), charged),
        (StoreErrorKind::Garbled, true, 1),
        "{error}"
    );
    assert!(error.detail().contains("WRONGTYPE"), "{error}");

    // Without the right to MULTI, each command is executed by itself. Without another right, no command is executed.
    for (command, class, charges) in
        [("multi", StoreErrorKind::Garbled, 1), ("incrby", StoreErrorKind::NoPermission, 0)]
    {
        server.run(&["FLUSHALL"]);
        server.run(&["SADD", &names[0], "foreign"]);
        server.run(&["ACL", "SETUSER", "limiter", &format!("-{command}")]);
        let (error, charged) = half(&server, &url).await;
        assert_eq!((error.kind(), charged), (class, charges), "without {command}: {error}");
    }
}
