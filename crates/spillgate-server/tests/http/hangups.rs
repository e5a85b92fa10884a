//! Tests of clients that hang up before their answer, while they wait for a turn or for the store.
//!
//! What their requests have taken is given back. The future of a request that is dropped stands for such a client.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use spillgate::{
    Circuit, Decision, FallbackStore, Hit, MemoryOptions, MemoryStore, NodeMemory, OnStoreFailure, OpKind, Quota,
    Store, StoreError, StoreErrorKind, StoreHealth, Timing, Verdict,
};
use spillgate_service::metrics::{HangupMetrics, LostCharge};
use spillgate_service::shared_store::{Asked, SharedError, SharedStore};
use spillgate_service::{Backend, ServiceOptions};
use spillgate_testkit::{Fault, Remote};

use crate::http::app::{App, options};

const QUEUED: &str = r#"{"domain":"api","descriptors":[{"queued":"x"}]}"#;
const HIT: &str = r#"{"bucket":"b","key":"k","limit":2,"window_ms":1000,"algorithm":"leaky_bucket","queue":10}"#;

/// A store that servers share, and that the test can slow down and break.
#[derive(Clone, Debug)]
struct Far(Arc<Remote<MemoryStore>>);

impl Store for Far {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.0.supports(quota, op)
    }

    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        self.0.decide(timing, hits, decisions).await
    }
}

impl SharedStore for Far {
    fn kind(&self) -> &'static str {
        "far"
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_atomic(&self, _: &[Hit<'_>]) -> bool {
        true
    }

    fn unsupported(&self, _: &[Hit<'_>]) -> Option<String> {
        None
    }

    fn health(&self) -> StoreHealth {
        StoreHealth::new(Circuit::Closed)
    }

    fn failures(&self, _: StoreErrorKind) -> u64 {
        0
    }

    fn take_first_error(&self, _: StoreErrorKind) -> Option<StoreError> {
        None
    }

    fn last_error(&self) -> Option<SharedError> {
        None
    }

    fn primary(&self) -> Option<String> {
        None
    }

    fn wait_connected(&self) -> Asked<'_, Result<(), SharedError>> {
        Box::pin(async { Ok(()) })
    }

    fn probe(&self, _: u32, _: Duration) -> Asked<'_, Result<(), SharedError>> {
        Box::pin(async { Ok(()) })
    }

    fn memory(&self, _: Duration) -> Asked<'_, Result<Vec<NodeMemory>, SharedError>> {
        Box::pin(std::future::pending())
    }

    fn circuit_opened(&self) -> Asked<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// Returns an app whose store answers after a hundredth of a second. While the store fails, the app counts in its own memory.
fn on_far_store() -> (App, Far) {
    let memory = || MemoryStore::new(MemoryOptions::default());
    let far = Far(Arc::new(Remote::new(memory()).with_delay(Duration::from_millis(10))));
    let store = Backend::with_fallback(FallbackStore::new(far.clone(), memory(), NonZeroU32::MIN));
    let service = ServiceOptions { on_store_failure: OnStoreFailure::Local, ..ServiceOptions::default() };
    (App::on(store, options(), service), far)
}

type Waiting<'a> = Pin<Box<dyn Future<Output = u16> + 'a>>;

/// Sends a request, and lets it go on for a tenth of a second. It then still waits for its turn.
async fn waiting<'a>(app: &'a App, path: &'a str, body: &'a str) -> Waiting<'a> {
    let mut request: Waiting<'a> = Box::pin(async move { app.send(path, body).await.as_u16() });
    let answer = tokio::time::timeout(Duration::from_millis(100), request.as_mut()).await;
    assert!(answer.is_err(), "the client waits for its turn");
    request
}

fn hangups(app: &App) -> &HangupMetrics {
    &app.service.metrics().hangups
}

const LOST: [LostCharge; 4] = [LostCharge::Ended, LostCharge::Full, LostCharge::Passed, LostCharge::Store];

fn lost(app: &App) -> [u64; 4] {
    LOST.map(|reason| hangups(app).lost(reason).get())
}

/// Waits until what became of this many charges is known. No real time passes.
async fn until_settled(app: &App, charges: u64) {
    let settled = || hangups(app).given_back.get() + lost(app).iter().sum::<u64>();
    let all = async {
        while settled() < charges {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), all).await;
    assert!(in_time.is_ok(), "{} of {charges} charges were given back or lost", settled());
}

fn retry_after_ms(app: &App, path: &str, body: &str) -> u64 {
    app.post(path, body).json()["retry_after_ms"].as_u64().expect("the next one would have to wait")
}

/// Four clients that send `body` wait behind one another, and hang up in this order. Then the queue has to be as long as before.
/// `one` is a single request for the same queue.
fn assert_all_are_given_back(app: &App, path: &str, one: &str, body: &str, order: [usize; 4]) {
    assert_eq!(app.post(path, one).status, 200);
    let before = retry_after_ms(app, path, one);
    let waits = format!("{path}?wait=10s");
    app.run(async {
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(Some(waiting(app, &waits, body).await));
        }
        for index in order {
            clients[index] = None;
            tokio::task::yield_now().await;
        }
        until_settled(app, 4).await;
    });
    let (given_back, lost) = (hangups(app).given_back.get(), lost(app));
    assert_eq!((given_back, lost), (4, [0; 4]), "{path}, {order:?}");
    assert_eq!(retry_after_ms(app, path, one), before, "{path}, {order:?}: the queue is as long as before");
}

const ORDERS: [[usize; 4]; 3] = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]];

#[test]
fn turns_of_clients_that_hang_up_are_given_back_in_whatever_order_they_hang_up() {
    for order in ORDERS {
        assert_all_are_given_back(&App::new(), "/v1/check", QUEUED, QUEUED, order);
        assert_all_are_given_back(&App::new(), "/v1/check", QUEUED, &format!("[{QUEUED}]"), order);
        assert_all_are_given_back(&App::new(), "/v1/hit", HIT, HIT, order);
    }
}

#[test]
fn turns_are_given_back_to_the_store_that_they_are_from() {
    for order in ORDERS {
        let (app, far) = on_far_store();
        assert_all_are_given_back(&app, "/v1/hit", HIT, HIT, order);
        drop(far);
        let (app, far) = on_far_store();
        far.0.set(Fault::Disconnected);
        assert_all_are_given_back(&app, "/v1/hit", HIT, HIT, order);
    }
}

#[test]
fn a_turn_before_that_of_a_client_that_still_waits_is_not_given_back() {
    let app = App::new();
    assert_eq!(app.post("/v1/check", QUEUED).status, 200);
    app.run(async {
        let (first, second) =
            (waiting(&app, "/v1/check?wait=10s", QUEUED).await, waiting(&app, "/v1/check?wait=10s", QUEUED).await);
        drop(first);
        let begun = tokio::time::Instant::now();
        assert_eq!(second.await, 200);
        assert!(begun.elapsed() >= Duration::from_millis(900), "its turn is still one second away");
        until_settled(&app, 1).await;
    });
    assert_eq!(lost(&app), [0, 0, 1, 0], "its turn passes unused, which is counted");
}

/// A list of 256 checks, of which the last one has to wait.
fn long_list(number: usize) -> String {
    let own = |i: usize| format!(r#"{{"domain":"api","descriptors":[{{"tokens":"{number}-{i}"}}]}}"#);
    let queued = format!(r#"{{"domain":"api","descriptors":[{{"queued":"{number}"}}]}}"#);
    let checks: Vec<String> = (0..254).map(own).chain([queued.clone(), queued]).collect();
    format!("[{}]", checks.join(","))
}

#[test]
fn charges_of_clients_that_hung_up_wait_in_a_bounded_queue() {
    let app = App::new();
    let bodies: Vec<String> = (0..40).map(long_list).collect();
    app.run(async {
        let mut clients = Vec::new();
        for body in &bodies {
            clients.push(waiting(&app, "/v1/check?wait=1s", body).await);
        }
        // No task runs between these hang-ups.
        drop(clients);
        until_settled(&app, 40 * 256).await;
    });
    let given_back = hangups(&app).given_back.get();
    assert_eq!((given_back, lost(&app)), (8_192, [0, 40 * 256 - 8_192, 0, 0]));
    let left = |number| {
        let body = format!(r#"{{"domain":"api","descriptors":[{{"tokens":"{number}-0"}}]}}"#);
        app.post("/v1/check", &body).json()["remaining"].as_u64()
    };
    assert_eq!((left(0), left(39)), (Some(99), Some(98)), "the first one is given back, and the last one is lost");
}

#[test]
fn turns_that_the_store_did_not_take_back_are_tried_again_and_other_charges_are_lost() {
    let (app, far) = on_far_store();
    let body = format!(r#"[{QUEUED},{QUEUED},{{"domain":"api","descriptors":[{{"tokens":"7"}}]}}]"#);
    app.run(async {
        let client = waiting(&app, "/v1/check?wait=10s", &body).await;
        far.0.set(Fault::Disconnected);
        drop(client);
        until_settled(&app, 1).await;
        assert_eq!(lost(&app), [0, 0, 0, 1], "the charge of `tokens`");
    });
    // The turns would be over before the next attempt, if they were shorter.
    let long = HIT.replace(r#""limit":2,"window_ms":1000"#, r#""limit":2,"window_ms":20000"#);
    let (app, far) = on_far_store();
    assert_eq!(app.post("/v1/hit", &long).status, 200);
    app.run(async {
        let client = waiting(&app, "/v1/hit?wait=20s", &long).await;
        far.0.set(Fault::Disconnected);
        drop(client);
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        far.0.set(Fault::None);
        until_settled(&app, 1).await;
    });
    assert_eq!((hangups(&app).given_back.get(), lost(&app)), (1, [0; 4]));
}

#[test]
fn charges_are_counted_as_lost_when_the_server_ends() {
    let (app, _far) = on_far_store();
    let body = format!(r#"[{QUEUED},{QUEUED},{{"domain":"api","descriptors":[{{"tokens":"7"}}]}}]"#);
    app.run(async {
        drop(waiting(&app, "/v1/check?wait=10s", &body).await);
        tokio::task::yield_now().await;
    });
    let service = Arc::clone(&app.service);
    drop(app);
    let lost = LOST.map(|reason| service.metrics().hangups.lost(reason).get());
    assert_eq!(lost, [3, 0, 0, 0]);
}

#[test]
fn a_list_of_checks_whose_client_hangs_up_between_two_of_them_keeps_no_charge() {
    let check = |value: &str| format!(r#"{{"domain":"api","descriptors":[{{"tokens":"{value}"}}]}}"#);
    let list = format!("[{},{},{}]", check("a"), check("b"), check("c"));
    for path in ["/v1/check", "/v1/check?wait=1s"] {
        let (app, _far) = on_far_store();
        app.run(async {
            let mut request = Box::pin(app.send(path, &list));
            let first = Duration::from_millis(15);
            assert!(tokio::time::timeout(first, request.as_mut()).await.is_err(), "the second check is in flight");
            drop(request);
            until_settled(&app, 1).await;
        });
        assert_eq!((hangups(&app).given_back.get(), lost(&app)), (1, [0; 4]), "{path}");
        for value in ["a", "b", "c"] {
            let remaining = app.post("/v1/check", &check(value)).json()["remaining"].as_u64();
            assert_eq!(remaining, Some(99), "{path}: {value}");
        }
        // A list that is answered stays charged.
        assert_eq!(app.post(path, &list).status, 200);
        let remaining = app.post("/v1/check", &check("a")).json()["remaining"].as_u64();
        assert_eq!((remaining, hangups(&app).given_back.get()), (Some(97), 1), "{path}");
    }
}
