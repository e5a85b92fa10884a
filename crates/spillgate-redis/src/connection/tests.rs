//! Tests of connections against a simulated Redis.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{join, join_all};
use redis::{Cmd, Pipeline, RedisError, RedisResult, ServerErrorKind, Value, cmd};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex};
use tokio::time::timeout;

use super::Connection;
use super::reply::Caller;
use crate::command::request::EncodedTake;
use crate::command::script::Script;

const PATIENCE: Duration = Duration::from_secs(60);

/// A connection whose driver runs as a task, and the other end of its stream.
fn connected(waiting_max: usize) -> (Connection, DuplexStream) {
    let (ours, theirs) = duplex(1 << 16);
    let (connection, driver) = Connection::new(ours, waiting_max);
    tokio::spawn(driver);
    (connection, theirs)
}

fn ping() -> Cmd {
    cmd("PING")
}

fn take<'t>(script: &'static Script, key: &'t [u8], argument: &'t [u8]) -> EncodedTake<'t> {
    EncodedTake { script, time: b"", key, argument }
}

/// Sends a take for a caller without an heir.
async fn send_take(connection: &Connection, take: &EncodedTake<'_>) -> RedisResult<Value> {
    let caller = Caller::default();
    connection.send_take(&caller.0, take).await
}

/// Returns the next `length` bytes that the connection has written.
async fn read(server: &mut DuplexStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    timeout(PATIENCE, server.read_exact(&mut bytes))
        .await
        .expect("the bytes come in time")
        .expect("the connection is open");
    bytes
}

fn text(value: &str) -> Value {
    Value::BulkString(value.as_bytes().to_vec())
}

fn code(error: &RedisError) -> Option<ServerErrorKind> {
    match error.kind() {
        redis::ErrorKind::Server(kind) => Some(kind),
        _ => None,
    }
}

/// Returns the call of a script, as the client library `redis` encodes it.
fn call(script: &Script, keys: &[&str], arguments: &str) -> Vec<u8> {
    let mut call = cmd("EVALSHA");
    call.arg(script.sha()).arg(keys.len()).arg(keys).arg("").arg(arguments);
    call.get_packed_command()
}

#[tokio::test]
async fn takes_of_one_turn_are_one_call_and_each_has_its_reply() {
    let (connection, mut server) = connected(100);
    for count in [1, 2, 9, 10, 31, 32] {
        let keys: Vec<String> = (0..count).map(|i| format!("key-{i}")).collect();
        let arguments: Vec<String> = (0..count).map(|i| format!("{i:03}")).collect();
        let takes: Vec<_> = keys
            .iter()
            .zip(&arguments)
            .map(|(key, argument)| take(Script::TAKE_BUCKET, key.as_bytes(), argument.as_bytes()))
            .collect();
        let requests = join_all(takes.iter().map(|take| send_take(&connection, take)));
        let server_side = async {
            let names: Vec<&str> = keys.iter().map(String::as_str).collect();
            let expected = call(Script::TAKE_BUCKET, &names, &arguments.concat());
            assert_eq!(read(&mut server, expected.len()).await, expected, "{count} takes");
            let one = |i: usize| format!("$2\r\n{i:02}\r\n");
            let all: String = (0..count).map(one).collect();
            let list = if count == 1 { all } else { format!("*{count}\r\n{all}") };
            server.write_all(list.as_bytes()).await.expect("the socket accepts it");
        };
        let (replies, ()) = join(requests, server_side).await;
        for (i, reply) in replies.into_iter().enumerate() {
            assert_eq!(reply.expect("a reply"), text(&format!("{i:02}")));
        }
    }
}

#[tokio::test]
async fn takes_beyond_a_call_and_those_of_other_scripts_or_times_are_calls_of_their_own() {
    let (connection, mut server) = connected(100);
    let bucket = take(Script::TAKE_BUCKET, b"b", b"1");
    let window = take(Script::TAKE_WINDOW, b"w", b"2");
    let timed = EncodedTake { time: b"000000009", ..bucket };
    let takes: Vec<_> = [window, timed].into_iter().chain([bucket; 33]).collect();
    let requests = join_all(takes.iter().map(|take| send_take(&connection, take)));
    let server_side = async {
        let mut at_a_time = cmd("EVALSHA");
        at_a_time.arg(Script::TAKE_BUCKET.sha()).arg(1).arg("b").arg("000000009").arg("1");
        let calls = [
            call(Script::TAKE_WINDOW, &["w"], "2"),
            at_a_time.get_packed_command(),
            call(Script::TAKE_BUCKET, &["b"; 32], &"1".repeat(32)),
            call(Script::TAKE_BUCKET, &["b"], "1"),
        ];
        let expected = calls.concat();
        assert_eq!(read(&mut server, expected.len()).await, expected);
        let list = format!("+w\r\n+t\r\n*32\r\n{}+last\r\n", "+b\r\n".repeat(32));
        server.write_all(list.as_bytes()).await.expect("the socket accepts it");
    };
    let (replies, ()) = join(requests, server_side).await;
    let simple = |text: &str| Value::SimpleString(text.to_owned());
    let expected = ["w", "t"].into_iter().chain(["b"; 32]).chain(["last"]).map(simple);
    assert!(replies.into_iter().map(|reply| reply.expect("a reply")).eq(expected));
}

#[tokio::test]
async fn an_error_is_that_of_one_take_or_of_all() {
    let (connection, mut server) = connected(100);
    let bucket = take(Script::TAKE_BUCKET, b"b", b"1");
    for (reply, errors) in [("*3\r\n+a\r\n-NOPERM no\r\n+c\r\n", [false, true, false]), ("-NOPERM no\r\n", [true; 3])] {
        let requests = join_all([(); 3].map(|()| send_take(&connection, &bucket)));
        let server_side = async {
            read(&mut server, call(Script::TAKE_BUCKET, &["b"; 3], "111").len()).await;
            server.write_all(reply.as_bytes()).await.expect("the socket accepts it");
        };
        let (replies, ()) = join(requests, server_side).await;
        let kinds: Vec<_> = replies.iter().map(|reply| reply.as_ref().err().and_then(code)).collect();
        assert_eq!(kinds, errors.map(|is_error| is_error.then_some(ServerErrorKind::NoPerm)));
    }
}

#[tokio::test]
async fn a_reply_that_comes_byte_by_byte_is_one_reply() {
    let (connection, mut server) = connected(100);
    let long = "x".repeat(100_000);
    let replies = format!("$3\r\nabc\r\n*1\r\n:5\r\n${}\r\n{long}\r\n", long.len());
    let requests = join_all([(); 3].map(|()| async { connection.send(&ping()).await.expect("a reply") }));
    let server_side = async {
        let (slow, fast) = replies.split_at(30);
        for byte in slow.as_bytes() {
            server.write_all(&[*byte]).await.expect("the socket accepts it");
            tokio::task::yield_now().await;
        }
        server.write_all(fast.as_bytes()).await.expect("the socket accepts it");
    };
    let (replies, ()) = join(requests, server_side).await;
    assert_eq!(replies, [text("abc"), Value::Array(vec![Value::Int(5)]), text(&long)]);
}

#[tokio::test]
async fn commands_that_belong_together_stay_together() {
    let (mut connection, mut server) = connected(100);
    let mut commands = Pipeline::new();
    commands.cmd("ASKING").ignore().cmd("GET").arg("a");
    let other = connection.clone();
    let bucket = take(Script::TAKE_BUCKET, b"b", b"1");
    let requests = join(commands.query_async::<(i64,)>(&mut connection), send_take(&other, &bucket));
    let server_side = async {
        let expected = [commands.get_packed_pipeline(), call(Script::TAKE_BUCKET, &["b"], "1")].concat();
        assert_eq!(read(&mut server, expected.len()).await, expected);
        server.write_all(b"+OK\r\n:7\r\n+b\r\n").await.expect("the socket accepts it");
    };
    let ((got, took), ()) = join(requests, server_side).await;
    assert_eq!((got.expect("a reply"), took.expect("a reply")), ((7,), Value::SimpleString("b".to_owned())));
}

#[tokio::test]
async fn a_reply_that_no_caller_waits_for_is_skipped() {
    let (connection, mut server) = connected(2);
    let bucket = take(Script::TAKE_BUCKET, b"b", b"1");
    for late in [true, false] {
        let wait = Duration::from_millis(1);
        let requests = async {
            if late {
                assert!(timeout(wait, send_take(&connection, &bucket)).await.is_err(), "no reply has come yet");
            }
            connection.send(&ping()).await
        };
        let server_side = async {
            let takes = if late { call(Script::TAKE_BUCKET, &["b"], "1").len() } else { 0 };
            read(&mut server, takes + ping().get_packed_command().len()).await;
            server
                .write_all(if late { b"+late\r\n+PONG\r\n" } else { b"+PONG\r\n" })
                .await
                .expect("the socket accepts it");
        };
        let (reply, ()) = join(requests, server_side).await;
        assert_eq!(reply.expect("a reply"), Value::SimpleString("PONG".to_owned()));
    }
}

#[tokio::test]
async fn a_connection_waits_for_a_bounded_number_of_replies() {
    let (connection, mut server) = connected(2);
    let ping = ping();
    let requests = join_all([(); 3].map(|()| connection.send(&ping)));
    let server_side = async {
        read(&mut server, 2 * ping.get_packed_command().len()).await;
        server.write_all(b":1\r\n:2\r\n").await.expect("the socket accepts it");
    };
    let (replies, ()) = join(requests, server_side).await;
    let kinds: Vec<_> = replies.iter().map(|reply| reply.as_ref().err().map(RedisError::kind)).collect();
    assert_eq!(kinds, [None, None, Some(redis::ErrorKind::Client)]);
    let bucket = take(Script::TAKE_BUCKET, b"b", b"1");
    let server_side = async { server.write_all(b":3\r\n").await.expect("the socket accepts it") };
    let (reply, ()) = join(send_take(&connection, &bucket), server_side).await;
    assert_eq!(reply.expect("the queue has capacity again"), Value::Int(3));
}

#[tokio::test]
async fn a_caller_that_waits_when_the_connection_ends_gets_the_reason() {
    let hostile: [(&[u8], &str); 7] = [
        (b"", "the server hung up"),
        (b"+a\r\n", "the server hung up"),
        (b"HTTP/1.1 400\r\n", "not in the protocol of Redis"),
        (b"+a\r\n*2\r\n+b\r\n+c\r\n+d\r\n", "reply to no command"),
        (b"+a\r\n*1\r\n+b\r\n", "does not fit the command"),
        (b"+a\r\n$-1\r\n", "does not fit the command"),
        (b"$99999999999\r\n", "too long"),
    ];
    for (reply, why) in hostile {
        let (connection, mut server) = connected(100);
        let bucket = take(Script::TAKE_BUCKET, b"b", b"1");
        let requests = async {
            let pinged = async { connection.send(&ping()).await.map(drop) };
            let took = async { send_take(&connection, &bucket).await.map(drop) };
            let took_too = async { send_take(&connection, &bucket).await.map(drop) };
            (join(pinged, join(took, took_too)).await, connection.send(&ping()).await.map(drop))
        };
        let server_side = async {
            read(&mut server, 20).await;
            server.write_all(reply).await.expect("the socket accepts it");
            drop(server);
        };
        let ((requests, after), ()) =
            timeout(PATIENCE, join(requests, server_side)).await.expect("no caller waits forever");
        let (_, (took, _)) = requests;
        let has_reason = |error: &RedisError| error.kind() == redis::ErrorKind::Io && error.to_string().contains(why);
        assert!(after.as_ref().is_err_and(has_reason), "{reply:?}: {after:?}");
        assert!(
            took.is_ok() && why == "reply to no command" || took.as_ref().is_err_and(has_reason),
            "{reply:?}: {took:?}"
        );
    }
}

/// A Redis server that has too many clients sends an error and closes the connection. The caller must get this error.
#[tokio::test]
async fn a_server_that_has_hung_up_is_heard_all_the_same() {
    let (ours, mut theirs) = duplex(1 << 16);
    theirs.write_all(b"-ERR max number of clients reached\r\n").await.expect("the socket accepts it");
    drop(theirs);
    let (connection, driver) = Connection::new(ours, 100);
    let ping = ping();
    let (reply, ()) = join(connection.send(&ping), driver).await;
    let error = reply.expect_err("an error");
    assert!(error.to_string().contains("max number of clients"), "{error}");
}

#[tokio::test]
async fn without_a_driver_no_caller_waits() {
    let (ours, _theirs) = duplex(1 << 16);
    let (connection, driver) = Connection::new(ours, 100);
    let ping = ping();
    let requests = join(connection.send(&ping), async { drop(driver) });
    let (reply, ()) = timeout(PATIENCE, requests).await.expect("no caller waits forever");
    assert!(reply.is_err() && connection.send(&ping).await.is_err());
}

#[tokio::test]
async fn an_end_that_comes_with_a_reply_is_an_end() {
    let (ours, mut server) = duplex(1 << 16);
    let (connection, mut driver) = Connection::new(ours, 100);
    server.write_all(b"+PONG\r\n+more\r\n").await.expect("the socket accepts it");
    let ping = ping();
    let (reply, ()) = join(connection.send(&ping), &mut driver).await;
    assert!(reply.is_ok(), "{reply:?}");
    timeout(PATIENCE, &mut driver).await.expect("the driver ends, and does not wait for more bytes");
    assert!(connection.send(&ping).await.is_err());
}

#[tokio::test]
async fn takes_that_no_caller_waits_for_are_not_written() {
    let (ours, mut server) = duplex(1 << 16);
    let (connection, driver) = Connection::new(ours, 3);
    let bucket = take(Script::TAKE_BUCKET, b"b", b"1");
    let window = take(Script::TAKE_WINDOW, b"w", b"2");
    let dropped = join(send_take(&connection, &bucket), send_take(&connection, &bucket));
    assert!(timeout(Duration::from_millis(1), dropped).await.is_err(), "the driver is not polled");
    let requests = join(send_take(&connection, &window), async {
        tokio::spawn(driver);
        let expected = call(Script::TAKE_WINDOW, &["w"], "2");
        assert_eq!(read(&mut server, expected.len()).await, expected);
        server.write_all(b":1\r\n").await.expect("the socket accepts it");
    });
    let (reply, ()) = requests.await;
    assert_eq!(reply.expect("a reply"), Value::Int(1));
    let all = join_all([(); 4].map(|()| send_take(&connection, &bucket)));
    let server_side = async {
        read(&mut server, call(Script::TAKE_BUCKET, &["b"; 3], "111").len()).await;
        server.write_all(b"*3\r\n:1\r\n:2\r\n:3\r\n").await.expect("the socket accepts it");
    };
    let (replies, ()) = join(all, server_side).await;
    assert_eq!(replies.iter().filter(|reply| reply.is_ok()).count(), 3, "the dropped takes no longer count");
}

/// A stream that refuses every write and can still be read.
struct Deaf(DuplexStream);

impl AsyncRead for Deaf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Deaf {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_connection_that_cannot_be_written_is_still_read() {
    let (ours, mut server) = duplex(1 << 16);
    let (connection, driver) = Connection::new(Deaf(ours), 100);
    let driver = tokio::spawn(driver);
    let ping = ping();
    let server_side = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        server.write_all(b"-ERR too many\r\n").await.expect("the socket accepts it");
    };
    let (reply, ()) = join(connection.send(&ping), server_side).await;
    assert!(reply.is_err_and(|error| error.to_string().contains("too many")));
    drop(server);
    timeout(PATIENCE, driver).await.expect("the driver ends").expect("the driver does not panic");
    assert!(connection.send(&ping).await.is_err());
}
