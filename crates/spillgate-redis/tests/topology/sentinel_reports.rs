//! Tests the store with simulated sentinels, which report what a test tells them: an old failover, nothing, or an
//! earlier primary.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use spillgate_core::Time;
use spillgate_redis::doctor::examine;
use spillgate_redis::{Cause, RedisStore, Settings, StoreErrorKind};
use spillgate_testkit::free_port;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::common::{PATIENCE, a_day, take, until, until_decided, with_long_timeouts};
use crate::support::server::Server;

#[derive(Clone, Copy)]
enum Report {
    /// The sentinel closes every connection.
    Gone,
    /// The sentinel does not reply.
    Nothing,
    /// The sentinel does not know the name of the primary.
    Unknown,
    /// The sentinel reports the epoch of the latest failover, and the port of the primary since that failover.
    Primary(u64, u16),
}

struct Fake {
    port: u16,
    reported: Arc<Mutex<Report>>,
}

impl Fake {
    async fn start(reported: Report) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let port = listener.local_addr().expect("the listener has an address").port();
        let reported = Arc::new(Mutex::new(reported));
        let reports = Arc::clone(&reported);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let reported = *reports.lock().expect("no thread panics");
                tokio::spawn(reply_to(client, reported));
            }
        });
        Fake { port, reported }
    }

    fn tell(&self, reported: Report) {
        *self.reported.lock().expect("no thread panics") = reported;
    }
}

async fn reply_to(mut client: TcpStream, reported: Report) {
    let mut request = [0; 1024];
    while let Ok(size @ 1..) = client.read(&mut request).await {
        let reply = match reported {
            Report::Gone => return,
            Report::Nothing => continue,
            _ if request[..size].ends_with(b"PING\r\n") => "+PONG\r\n".to_owned(),
            Report::Unknown => "-ERR No such master with that name\r\n*-1\r\n".to_owned(),
            Report::Primary(epoch, port) => format!(
                "*2\r\n$12\r\nconfig-epoch\r\n$1\r\n{epoch}\r\n*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n",
                port.to_string().len()
            ),
        };
        if client.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn three(reported: Report) -> ([Fake; 3], String) {
    let fakes = [Fake::start(reported).await, Fake::start(reported).await, Fake::start(reported).await];
    let hosts: Vec<String> = fakes.iter().map(|fake| format!("127.0.0.1:{}", fake.port)).collect();
    (fakes, format!("redis-sentinel://{}/main", hosts.join(",")))
}

fn is_at(store: &RedisStore, server: &Server) -> bool {
    let nodes = store.nodes();
    nodes[0].is_connected && nodes[0].address == format!("127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn what_was_true_before_a_failover_is_not_believed_after() {
    let (old, mut new) = (Server::start(), Server::start());
    let (fakes, url) = three(Report::Primary(2, new.port())).await;
    let store = RedisStore::new(&Settings { connections: 2, ..with_long_timeouts(&url) }).expect("the URL is valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("all sentinels report the new primary");
    assert!(is_at(&store, &new));

    // The two sentinels that know of the failover are gone, and so is the new primary. The third sentinel still reports
    // the old primary.
    fakes[0].tell(Report::Gone);
    fakes[1].tell(Report::Gone);
    fakes[2].tell(Report::Primary(1, old.port()));
    new.kill();
    let is_refused = |error: spillgate_redis::Error| {
        error.kind() == StoreErrorKind::ReadOnly
            && error.detail().contains("1 of 3 sentinels answer, and missed a failover")
    };
    until("the store ignores the report that names the old primary", || store.last_error().is_some_and(is_refused))
        .await;
    take(&store, 1, &a_day(1000), PATIENCE / 100).await.expect_err("no server gets the request");
    assert_eq!(old.info("cmdstat_evalsha:calls="), 0, "the old primary got no request");

    // A sentinel now reports another failover, with a later epoch.
    fakes[0].tell(Report::Primary(3, old.port()));
    until("the store uses the report with the latest epoch", || is_at(&store, &old)).await;
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("the server decides");

    // All sentinels are set up again, so their epochs begin again at 0. The store accepts an epoch below an earlier one
    // only if every sentinel reports a lower epoch.
    new.start_again();
    fakes.iter().for_each(|fake| fake.tell(Report::Primary(0, new.port())));
    old.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    until("the store uses the report of all sentinels", || is_at(&store, &new)).await;
}

/// If no sentinel replies, the store connects again to its last primary. The server itself then says whether it is
/// still a primary.
#[tokio::test]
async fn without_any_sentinel_the_last_primary_is_tried() {
    let (primary, other) = (Server::start(), Server::start());
    let (fakes, url) = three(Report::Primary(1, primary.port())).await;
    let settings = Settings { connections: 1, connect_timeout: Duration::from_secs(1), ..with_long_timeouts(&url) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("the server decides");

    // Some sentinels close the connection, and one does not reply.
    fakes.iter().for_each(|fake| fake.tell(Report::Gone));
    fakes[1].tell(Report::Nothing);
    primary.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    until_decided(&store, &a_day(1000)).await;
    assert!(is_at(&store, &primary));

    // The server is demoted, and no sentinel reports the new primary.
    primary.run(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    primary.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let is_left = |error: spillgate_redis::Error| error.detail().contains("is no primary");
    until("the store notices that the server is a replica", || store.last_error().is_some_and(is_left)).await;

    // A new report of a sentinel replaces the earlier report.
    fakes[2].tell(Report::Primary(2, other.port()));
    until("the new primary is found", || is_at(&store, &other)).await;
}

/// The primary has lost its replicas and the sentinels, but the store still reaches it.
#[tokio::test]
async fn a_primary_that_lacks_its_replicas_is_left_for_the_one_that_was_promoted() {
    let (old, new) = (Server::start(), Server::start());
    let (fakes, url) = three(Report::Primary(1, old.port())).await;
    let store = RedisStore::new(&Settings { connections: 1, ..with_long_timeouts(&url) }).expect("the URL is valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("the server decides");
    assert!(is_at(&store, &old));
    fakes.iter().for_each(|fake| fake.tell(Report::Primary(2, new.port())));
    old.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    until_decided(&store, &a_day(1000)).await;
    assert!(is_at(&store, &new), "{:?}", store.nodes());
}

#[tokio::test]
async fn a_sentinel_that_is_silent_is_not_waited_for() {
    let server = Server::start();
    let (fakes, url) = three(Report::Primary(1, server.port())).await;
    for silent in &fakes {
        silent.tell(Report::Nothing);
        let store = RedisStore::new(&with_long_timeouts(&url)).expect("the URL is valid");
        // A store that waited for the silent sentinel would need a quarter of `connect_timeout` (`PATIENCE` here), and
        // would then ask all sentinels a second time.
        timeout(PATIENCE / 4, store.wait_connected())
            .await
            .expect("the store does not wait for the silent sentinel")
            .expect("the other sentinels report the primary");
        silent.tell(Report::Primary(1, server.port()));
    }
}

/// A dead sentinel that comes last in the URL does not hide what the others say.
#[tokio::test]
async fn the_reply_of_a_sentinel_counts_more_than_one_that_cannot_be_reached() {
    let (fakes, url) = three(Report::Unknown).await;
    for gone in &fakes {
        gone.tell(Report::Gone);
        let store = RedisStore::new(&with_long_timeouts(&url)).expect("the URL is valid");
        take(&store, 1, &a_day(1000), Duration::from_millis(100)).await.expect_err("no sentinel knows the primary");
        let is_unknown = |error: spillgate_redis::Error| error.cause() == Cause::UnknownPrimary;
        until("the error is the reply", || store.last_error().is_some_and(is_unknown)).await;
        gone.tell(Report::Unknown);
    }
}

/// The URL has only the addresses of the sentinels.
#[tokio::test]
async fn an_error_of_a_primary_has_the_address_that_the_sentinels_report() {
    let deaf = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    for port in [free_port(), deaf.local_addr().expect("the listener has an address").port()] {
        let (_fakes, url) = three(Report::Primary(1, port)).await;
        let settings = Settings { connect_timeout: Duration::from_secs(4), ..with_long_timeouts(&url) };
        let store = RedisStore::new(&settings).expect("the URL is valid");
        let address = format!("127.0.0.1:{port}");
        let error = store.wait_connected().await.expect_err("the primary does not answer");
        assert!(error.detail().contains(&format!("the primary {address}: ")), "{error}");
        assert_eq!(store.primary().as_deref(), Some(&*address));
        let report = examine(&settings, &|| Time::EPOCH).await.expect("the sentinels answer");
        assert_eq!(report.servers[0].address, address);
        let error = report.servers[0].error.as_ref().expect("the primary does not answer");
        assert!(error.detail().starts_with(&format!("the primary {address}: ")), "{error}");
        assert!(report.sentinels.iter().all(|sentinel| sentinel.primary.as_ref() == Ok(&address)), "{report:?}");
    }
}
