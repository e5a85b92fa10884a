//! Tests of clients that hang up before their answer, while they wait for a turn or for the store.
//!
//! What their requests have taken is given back. The future of a request that is dropped stands for such a client.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillgate::rules::{Rules, RulesFile};
use spillgate::{
    Circuit, Decision, FallbackStore, Hit, MemoryOptions, MemoryStore, NodeMemory, OnStoreFailure, OpKind, Quota,
    Reason, Store, StoreError, StoreErrorKind, StoreHealth, Timing, Verdict,
};
use spillgate_service::metrics::{HangupMetrics, LostCharge};
use spillgate_service::shared_store::{Asked, SharedError, SharedStore};
use spillgate_service::{Backend, ServiceOptions};
use spillgate_testkit::{Fault, Remote};
use tokio::runtime::Builder;

use crate::http::app::{App, options};

const QUEUED: &str = r#"{"domain":"api","descriptors":[{"queued":"x"}]}"#;
const HIT: &str = r#"{"bucket":"b","key":"k","limit":2,"window_ms":1000,"algorithm":"leaky_bucket","queue":10}"#;
/// A turn of ten seconds, so that it is not over before a turn is tried again.
const LONG: &str = r#"{"bucket":"b","key":"k","limit":2,"window_ms":20000,"algorithm":"leaky_bucket","queue":10}"#;

/// A store that servers share, and that the test can slow down and break.
#[derive(Clone, Debug)]
struct Far {
    link: Arc<Remote<MemoryStore>>,
    /// The store takes no new keys of limits with this window, in nanoseconds.
    full_window_ns: Arc<AtomicU64>,
}

impl Store for Far {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.link.supports(quota, op)
    }

    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let is_new = |hit: &Hit<'_>| hit.quota.window_ns() == self.full_window_ns.load(Ordering::Relaxed);
        if hits.iter().any(is_new) {
            for (_, decision) in hits.iter().zip(decisions).filter(|(hit, _)| is_new(hit)) {
                decision.reason = Reason::NotAsked;
            }
            return Err(StoreError::new(StoreErrorKind::NewKeys, "the test has made too many"));
        }
        self.link.decide(timing, hits, decisions).await
    }

    async fn decide_known_keys(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        self.link.decide(timing, hits, decisions).await
    }
}

impl SharedStore for Far {
    fn kind(&self) -> &'static str {
        "far"
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_atomic(&self, hits: &[Hit<'_>]) -> bool {
        hits.windows(2).all(|two| two[0].key >> Hit::SLOT_SHIFT == two[1].key >> Hit::SLOT_SHIFT)
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
    let link = Arc::new(Remote::new(memory()).with_delay(Duration::from_millis(10)));
    let far = Far { link, full_window_ns: Arc::new(AtomicU64::new(u64::MAX)) };
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
        far.link.set(Fault::Disconnected);
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
        far.link.set(Fault::NotSent);
        drop(client);
        until_settled(&app, 1).await;
        assert_eq!(lost(&app), [0, 0, 0, 1], "the charge of `tokens`");
    });
    let (app, far) = on_far_store();
    assert_eq!(app.post("/v1/hit", LONG).status, 200);
    app.run(async {
        let client = waiting(&app, "/v1/hit?wait=20s", LONG).await;
        far.link.set(Fault::NotSent);
        drop(client);
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        far.link.set(Fault::None);
        until_settled(&app, 1).await;
    });
    assert_eq!((hangups(&app).given_back.get(), lost(&app)), (1, [0; 4]));
}

#[test]
fn a_turn_that_the_store_may_have_taken_back_is_not_tried_again() {
    let (app, far) = on_far_store();
    assert_eq!(app.post("/v1/hit", LONG).status, 200);
    let mut second = None;
    app.run(async {
        let first = waiting(&app, "/v1/hit?wait=20s", LONG).await;
        far.link.set(Fault::AnswerLost);
        drop(first);
        tokio::time::sleep(Duration::from_millis(50)).await;
        far.link.set(Fault::None);
        // The turn is free again, and another client gets it.
        second = Some(waiting(&app, "/v1/hit?wait=20s", LONG).await);
        tokio::time::sleep(Duration::from_secs(3)).await;
    });
    assert_eq!(retry_after_ms(&app, "/v1/hit", LONG), 20_000, "the turn belongs to the second client");
    assert_eq!((hangups(&app).given_back.get(), lost(&app)), (0, [0, 0, 0, 1]));
    drop(second);
}

#[test]
fn a_turn_whose_refund_is_in_flight_when_the_runtime_ends_is_not_tried_again_on_another_one() {
    let (app, _far) = on_far_store();
    assert_eq!(app.post("/v1/hit", LONG).status, 200);
    let other = Builder::new_current_thread().enable_all().start_paused(true).build().expect("the runtime starts");
    other.block_on(async {
        drop(waiting(&app, "/v1/hit?wait=20s", LONG).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    });
    drop(other);
    assert_eq!(lost(&app), [1, 0, 0, 0]);
}

#[test]
fn turns_of_a_row_that_have_passed_are_not_counted_as_given_back() {
    let app = App::new();
    assert_eq!(app.post("/v1/check", QUEUED).status, 200);
    app.run(async {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(waiting(&app, "/v1/check?wait=10s", QUEUED).await);
        }
        let last = clients.pop();
        // The first two become a row, which is not the last turn.
        drop(clients);
        tokio::time::sleep(Duration::from_millis(1)).await;
        // The first turn is over, and the second one has begun.
        app.clock.advance(Duration::from_millis(1_200));
        drop(last);
        until_settled(&app, 3).await;
    });
    assert_eq!((hangups(&app).given_back.get(), lost(&app)), (2, [0, 0, 1, 0]));
}

fn use_rules(app: &App, text: &str) {
    let rules = Rules::parse(&[RulesFile { name: "d.yaml".into(), text: text.into() }]);
    app.service.replace_rules(rules.expect("the rules are valid"));
}

const AS_ENVOY: &str = "domain: api\ncompat: envoy\ndescriptors:\n  \
                        - {key: queued, rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 2, queue: 9}}\n  \
                        - {key: slow, rate_limit: {unit: hour, limit: 9, on_store_failure: error}}\n";

#[test]
fn descriptors_of_one_counter_that_are_decided_separately_are_all_given_back() {
    let app = App::new();
    use_rules(&app, AS_ENVOY);
    assert_eq!(app.post("/v1/check", QUEUED).status, 200);
    // A refusal would be charged too.
    let peek = QUEUED.replace("]}", r#"],"cost":0}"#);
    let used_ms = || app.post("/v1/check", &peek).json()["reset_after_ms"].as_u64();
    let before = used_ms();
    let twice = r#"{"domain":"api","descriptors":[{"queued":"x"},{"queued":"x"}]}"#;
    app.run(async {
        drop(waiting(&app, "/v1/check?wait=10s", twice).await);
        until_settled(&app, 2).await;
    });
    assert_eq!((hangups(&app).given_back.get(), lost(&app)), (2, [0; 4]));
    assert_eq!(used_ms(), before);
}

#[test]
fn charges_of_descriptors_that_are_decided_separately_are_counted_if_their_request_has_no_answer() {
    let twice = r#"{"domain":"api","descriptors":[{"slow":"x"},{"slow":"x"}]}"#;
    let left = |app: &App| app.post("/v1/check", &twice.replace("]}", r#"],"cost":0}"#)).json()["remaining"].as_u64();
    let second = Duration::from_millis(15);
    let charges = |app: &App| app.service.metrics().unanswered_charges.get();

    let (app, _far) = on_far_store();
    use_rules(&app, AS_ENVOY);
    assert_eq!((app.post("/v1/check", twice).status, left(&app), charges(&app)), (200, Some(7), 0));
    app.run(async {
        let mut request = Box::pin(app.send("/v1/check", twice));
        assert!(tokio::time::timeout(second, request.as_mut()).await.is_err(), "the second one is in flight");
    });
    assert_eq!((left(&app), charges(&app)), (Some(6), 1), "the client has hung up");

    let (app, far) = on_far_store();
    use_rules(&app, AS_ENVOY);
    let status = app.run(async {
        let mut request = Box::pin(app.send("/v1/check", twice));
        assert!(tokio::time::timeout(second, request.as_mut()).await.is_err(), "the second one is in flight");
        far.link.set(Fault::NotSent);
        request.await
    });
    far.link.set(Fault::None);
    assert_eq!((status.as_u16(), left(&app), charges(&app)), (503, Some(8), 1), "the second one has failed");
}

#[test]
fn a_turn_of_the_shared_store_is_given_back_although_a_new_key_of_its_request_is_counted_locally() {
    let (app, far) = on_far_store();
    far.full_window_ns.store(3_600_000_000_000, Ordering::Relaxed);
    assert_eq!(app.post("/v1/check", QUEUED).status, 200);
    let before = retry_after_ms(&app, "/v1/check", QUEUED);
    let with_newcomer = r#"{"domain":"api","descriptors":[{"queued":"x"},{"tokens":"7"}]}"#;
    app.run(async {
        let first = waiting(&app, "/v1/check?wait=10s", QUEUED).await;
        let second = waiting(&app, "/v1/check?wait=10s", with_newcomer).await;
        drop(first);
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(second);
        until_settled(&app, 3).await;
    });
    assert_eq!((hangups(&app).given_back.get(), lost(&app)), (3, [0; 4]));
    assert_eq!(retry_after_ms(&app, "/v1/check", QUEUED), before);
}

#[test]
fn a_commit_whose_client_hangs_up_settles_all_slots() {
    for hangs_up_after in [5, 15] {
        let (app, _far) = on_far_store();
        let body = r#"{"domain":"api","descriptors":[{"tokens":"a"},{"tokens":"b"}],"estimate":10}"#;
        let id = app.post("/v1/reserve", body).json()["reservation_id"].clone();
        let commit = format!(r#"{{"reservation_id":{id},"used":3}}"#);
        app.run(async {
            let after = Duration::from_millis(hangs_up_after);
            let mut request = Box::pin(app.send("/v1/commit", &commit));
            assert!(tokio::time::timeout(after, request.as_mut()).await.is_err(), "a slot is being settled");
            drop(request);
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
        for value in ["a", "b"] {
            let peek = format!(r#"{{"domain":"api","descriptors":[{{"tokens":"{value}"}}],"cost":0}}"#);
            assert_eq!(app.post("/v1/check", &peek).json()["remaining"], 97, "{value}, {hangs_up_after} ms");
        }
        assert_eq!(app.post("/v1/commit", &commit).status, 410);
    }
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
