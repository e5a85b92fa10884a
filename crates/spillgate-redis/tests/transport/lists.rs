//! Tests lists. A list is read as a whole or not at all, within its time, and in bounded memory. If Redis has confirmed
//! a write of one server, no other server undoes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use spillgate_redis::{RedisStore, StoreErrorKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::common::{PATIENCE, with_long_timeouts};
use crate::support::server::Server;
use crate::transport::proxy::{Delay, delayed};

/// Starts a simulated Redis whose list has two entries. Its first `short` scans show only one of them, on whichever
/// connection they come. Returns the URL of this Redis.
async fn forgetting(short: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let port = listener.local_addr().expect("the listener has an address").port();
    let short = Arc::new(AtomicUsize::new(short));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(reply_to(client, Arc::clone(&short)));
        }
    });
    format!("redis://127.0.0.1:{port}/")
}

async fn reply_to(mut client: TcpStream, short: Arc<AtomicUsize>) {
    let (mut received, mut at) = (Vec::new(), 0);
    let known: [(&[u8], &[u8]); 5] = [
        (b"PING\r\n", b"+PONG\r\n"),
        (b"SETINFO\r\n", b"+OK\r\n"),
        (b"SCRIPT\r\n", b"+OK\r\n"),
        (b"HLEN\r\n", b":2\r\n"),
        (b"HSCAN\r\n", b"*2\r\n$1\r\n0\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n"),
    ];
    let one: &[u8] = b"*2\r\n$1\r\n0\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n";
    while let Ok(1..) = client.read_buf(&mut received).await {
        while at < received.len() {
            let found = known.iter().find(|(command, _)| received[at..].starts_with(command));
            // If only the beginning of a command has come, the loop waits for the rest.
            if found.is_none() && known.iter().any(|(command, _)| command.starts_with(&received[at..])) {
                break;
            }
            at += 1;
            let Some((command, reply)) = found else { continue };
            let less = |short: usize| short.checked_sub(1);
            let is_short =
                *command == b"HSCAN\r\n" && short.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
            if client.write_all(if is_short { one } else { reply }).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_list_is_scanned_again_if_entries_are_missing() {
    for (short, is_read) in [(0, true), (2, true), (3, false)] {
        let store = RedisStore::new(&with_long_timeouts(&forgetting(short).await)).expect("the URL is valid");
        let read = store.read_list("blocks", 10, PATIENCE).await;
        let names = read.map(|entries| entries.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
        match is_read {
            true => assert_eq!(names, Ok(vec![b"a".to_vec(), b"b".to_vec()]), "{short}"),
            false => assert_eq!(names.map_err(|error| error.kind()), Err(StoreErrorKind::Other), "{short}"),
        }
    }
}

#[tokio::test]
async fn a_slow_store_cannot_make_a_reading_long() {
    let server = Server::start();
    let fill = "for i = 1, 1000 do redis.call('HSET', KEYS[1], 'entry ' .. i, string.rep('x', 100)) end";
    server.run(&["EVAL", fill, "1", "sg:{lists}:blocks"]);
    // There are at least five replies, because no page has more than a few hundred entries.
    let late = delayed(server.port(), Delay::of(Duration::from_millis(400)), 1).await;
    let store = RedisStore::new(&with_long_timeouts(&format!("redis://127.0.0.1:{late}/"))).expect("the URL is valid");
    let read = store.read_list("blocks", 1000, PATIENCE).await.expect("there is time");
    assert_eq!(read.len(), 1000);
    // One reply comes in time, but the others do not.
    let read = store.read_list("blocks", 1000, Duration::from_millis(1500)).await;
    assert_eq!(read.map_err(|error| error.kind()), Err(StoreErrorKind::Timeout));
}

#[tokio::test]
async fn a_list_with_very_long_entries_is_not_kept_in_memory() {
    let server = Server::start();
    let fill = "for i = 1, 20 do redis.call('HSET', KEYS[1], i, string.rep('x', ARGV[1])) end";
    let store = RedisStore::new(&with_long_timeouts(&format!("redis://127.0.0.1:{}/", server.port()))).expect("a URL");
    for (bytes, is_read) in [("6000", true), ("100000", false)] {
        server.run(&["EVAL", fill, "1", "sg:{lists}:blocks", bytes]);
        let read = store.read_list("blocks", 20, PATIENCE).await;
        match is_read {
            true => assert_eq!(read.map(|entries| entries.len()), Ok(20)),
            false => assert!(read.is_err_and(|error| error.to_string().contains("has more than 245760 bytes"))),
        }
    }
}

#[tokio::test]
async fn in_a_list_that_becomes_full_every_write_that_was_done_stays() {
    let server = Server::start();
    let url = with_long_timeouts(&format!("redis://127.0.0.1:{}/", server.port()));
    let [store, other] = [&url, &url].map(|url| RedisStore::new(url).expect("the URL is valid"));
    let put = async |store: &RedisStore, name: &[u8], text: &[u8]| {
        let version = (text, Duration::from_secs(60));
        let written = store.put_in_list(("blocks", 1), (name, text), version, PATIENCE).await.expect("Redis answers");
        (name.to_vec(), written.is_done)
    };
    for round in 0..500 {
        server.run(&["DEL", "sg:{lists}:blocks"]);
        // The list has space for one more entry. Two stores write the same entry, and one of them also writes a
        // different one.
        let (first, second, third) =
            tokio::join!(put(&store, b"a", b"1"), put(&other, b"a", b"2"), put(&store, b"b", b"3"));
        let entries = store.read_list("blocks", 10, PATIENCE).await.expect("Redis answers");
        let mut done: Vec<_> =
            [first, second, third].into_iter().filter_map(|(name, is_done)| is_done.then_some(name)).collect();
        done.dedup();
        assert_eq!(entries.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), done, "round {round}");
        // The list is full now.
        assert_eq!(put(&other, b"c", b"4").await, (b"c".to_vec(), false));
    }
}
