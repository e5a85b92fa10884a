//! Tests of leases: taking, releasing and renewing permits.
//!
//! If a release freed too many permits, more clients could hold a permit than the limit allows. If a release freed too
//! few permits, clients would be blocked until the lease expires.

use std::time::Duration;

use serde_json::{Value, json};
use spillgate_service::{Bounds, ServiceOptions};

use crate::http::app::{App, Reply, options};

const JOB: &str = r#"{"domain":"api","descriptors":[{"job":"x"}]}"#;
const SEAT: &str = r#"{"bucket":"seats","key":"k","limit":3,"algorithm":"concurrency","lease_ms":10000,"cost":2}"#;

fn lease_id(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["lease_id"].as_str().expect("the answer has a lease id").to_owned()
}

fn with_lease(app: &App, path: &str, lease_id: &str) -> Reply {
    app.post(path, &json!({ "lease_id": lease_id }).to_string())
}

#[test]
fn a_permit_is_held_until_it_is_released() {
    let app = App::new();
    let (first, second) = (lease_id(&app.post("/v1/check", JOB)), lease_id(&app.post("/v1/check", JOB)));
    assert_ne!(first, second);
    let refused = app.post("/v1/check", JOB);
    assert_eq!(
        (refused.status, &refused.json()["retry_after_ms"]),
        (429, &Value::Null),
        "the answer has no wait, because it is unknown when a client will release a permit"
    );
    assert_eq!((refused.header("retry-after"), &refused.json()["lease_id"]), (None, &Value::Null));
    let released = with_lease(&app, "/v1/release", &first);
    assert_eq!((released.status, released.json()), (200, json!({"released": 1})));
    assert_eq!(app.post("/v1/check", JOB).status, 200);
    assert_eq!(app.post("/v1/check", JOB).status, 429, "exactly one permit was released");
}

#[test]
fn a_second_release_frees_nothing() {
    let app = App::new();
    let first = lease_id(&app.post("/v1/hit", SEAT));
    assert_eq!(app.post("/v1/hit", SEAT).status, 429, "the hit needs two seats, but only one of three is free");
    assert_eq!(with_lease(&app, "/v1/release", &first).json(), json!({"released": 2}));
    assert!(with_lease(&app, "/v1/release", &first).problem(410).contains("expired or was released"));
    lease_id(&app.post("/v1/hit", SEAT));
    assert_eq!(with_lease(&app, "/v1/release", &first).status, 410);
    assert_eq!(app.post("/v1/hit", SEAT).status, 429, "the old id does not free the new seats");
}

#[test]
fn renewing_keeps_a_lease_alive_and_an_expired_one_is_gone() {
    let app = App::new();
    let id = lease_id(&app.post("/v1/hit", SEAT));
    for _ in 0..5 {
        app.clock.advance(Duration::from_secs(9));
        let renewed = with_lease(&app, "/v1/renew", &id);
        assert_eq!((renewed.status, renewed.json()), (200, json!({"renewed": true, "lease_ms": 10_000})));
        assert_eq!(app.post("/v1/hit", SEAT).status, 429);
    }
    app.clock.advance(Duration::from_secs(10));
    assert_eq!(with_lease(&app, "/v1/renew", &id).status, 410);
    assert_eq!(with_lease(&app, "/v1/release", &id).status, 410);
    assert_eq!(app.post("/v1/hit", SEAT).status, 200);
}

#[test]
fn looking_gives_no_lease() {
    let app = App::new();
    let peek = app.post("/v1/check", r#"{"domain":"api","descriptors":[{"job":"x"}],"cost":0}"#);
    assert_eq!((peek.status, &peek.json()["lease_id"]), (200, &Value::Null));
}

#[test]
fn one_id_holds_all_places_of_a_request() {
    let app = App::new();
    let both = r#"{"domain":"api","descriptors":[{"job":"a"},{"job":"b"},{"job":"a"}]}"#;
    let id = lease_id(&app.post("/v1/check", both));
    assert_eq!(app.post("/v1/check", both).status, 429, "both permits of the job `a` are taken");
    assert_eq!(with_lease(&app, "/v1/release", &id).json(), json!({"released": 3}));
    assert_eq!(app.post("/v1/check", both).status, 200);
}

#[test]
fn ids_of_another_server_and_junk_are_refused() {
    let (app, other) = (App::new(), App::new());
    let of_other_server = lease_id(&other.post("/v1/hit", SEAT));
    let own = lease_id(&app.post("/v1/hit", SEAT));
    let (head, tail) = own.split_at(40);
    let altered = format!("{head}{}{}", if tail.starts_with('A') { 'B' } else { 'A' }, &tail[1..]);
    for path in ["/v1/release", "/v1/renew"] {
        for id in [&*of_other_server, &*altered, "", "AAAA", "\u{1F980}", &own[1..], &own[..own.len() - 1]] {
            assert!(with_lease(&app, path, id).problem(400).contains("not made by this server"), "{id}");
        }
        assert!(app.post(path, "{}").problem(400).contains("missing field `lease_id`"));
        assert!(app.post(path, r#"{"lease_id":7}"#).problem(400).contains("expected a string"));
    }
    assert_eq!(app.post("/v1/hit", SEAT).status, 429, "no permit was released");
}

/// Returns a service with high bounds, and the body of a check of `count` jobs. Each job takes a permit.
fn many_jobs(count: usize) -> (App, String) {
    let bounds = Bounds { descriptors: 256, ..Bounds::default() };
    let app = App::with(options(), ServiceOptions { bounds, ..ServiceOptions::default() });
    let jobs: Vec<Value> = (0..count).map(|number| json!({ "job": number.to_string() })).collect();
    (app, json!({"domain": "api", "descriptors": jobs}).to_string())
}

#[test]
fn an_id_with_as_many_permits_as_a_request_can_take_is_renewed_and_released() {
    for count in [128, 129, 256] {
        let (app, jobs) = many_jobs(count);
        let id = lease_id(&app.post("/v1/check", &jobs));
        assert_eq!(with_lease(&app, "/v1/renew", &id).status, 200, "{count}");
        lease_id(&app.post("/v1/check", &jobs));
        assert_eq!(app.post("/v1/check", &jobs).status, 429, "{count}");
        assert_eq!(with_lease(&app, "/v1/release", &id).json(), json!({"released": count}));
        assert_eq!(app.post("/v1/check", &jobs).status, 200, "{count}");
        assert_eq!(with_lease(&app, "/v1/release", &id).status, 410, "{count}");
    }
}

#[test]
fn a_renewal_covers_all_permits_or_none() {
    for shadow in [false, true] {
        let app = App::with(options(), ServiceOptions { shadow, ..ServiceOptions::default() });
        // One request takes a permit of each limit. The lease of `job` lasts 30 s, and the lease of `brief_job` lasts
        // 10 s.
        let both = r#"{"domain":"api","descriptors":[{"job":"x"},{"brief_job":"x"}]}"#;
        let id = lease_id(&app.post("/v1/check", both));
        app.clock.advance(Duration::from_secs(5));
        assert_eq!(with_lease(&app, "/v1/renew", &id).status, 200, "shadow: {shadow}");
        app.clock.advance(Duration::from_secs(20));
        assert_eq!(with_lease(&app, "/v1/renew", &id).status, 410, "the short lease has expired, shadow: {shadow}");
        app.clock.advance(Duration::from_secs(10));
        let released = with_lease(&app, "/v1/release", &id).status;
        assert_eq!(released, 410, "the failed renewal did not extend the long lease, shadow: {shadow}");
    }
}
