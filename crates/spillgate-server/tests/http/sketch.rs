//! Tests of limits with `representation: sketch`.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use spillgate_http::HttpOptions;
use spillgate_service::{Grants, ServiceOptions};

use crate::http::app::{App, Reply, options};

fn check(app: &App, descriptors: &Value, cost: u64) -> Reply {
    app.post("/v1/check", &json!({ "domain": "api", "descriptors": descriptors, "cost": cost }).to_string())
}

/// Returns how many units of each limit are left, as the header field RateLimit shows them.
fn left(app: &App, descriptor: &Value) -> Vec<u64> {
    let reply = check(app, &json!([descriptor]), 0);
    let field = reply.header("ratelimit").expect("the answer has the field");
    let remaining = field.split(";r=").skip(1).map(|part| part.split([';', ',']).next().unwrap_or_default().parse());
    remaining.collect::<Result<_, _>>().unwrap_or_else(|_| panic!("{field}"))
}

#[test]
fn a_sketch_admits_its_limit_and_answers_as_a_state_does() {
    let app = App::new();
    let ann = json!([{"sketched": "ann"}]);
    for remaining in [2, 1, 0] {
        let reply = check(&app, &ann, 1);
        assert_eq!((reply.status, &reply.json()["remaining"]), (200, &json!(remaining)));
        assert_eq!(reply.header("ratelimit-policy"), Some("\"sketched\";q=3;w=60"));
    }
    let refused = check(&app, &ann, 1);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("60")));
    assert_eq!(check(&app, &json!([{"sketched": "bob"}]), 3).status, 200, "another key has its own units");
}

#[test]
fn a_sketch_beside_a_state_is_all_or_nothing_in_memory() {
    let app = App::new();
    let both = json!({"both": "ann"});
    assert_eq!(check(&app, &json!([both]), 2).status, 200);
    assert_eq!(left(&app, &both), [3, 0]);
    let refused = check(&app, &json!([both]), 1);
    assert_eq!(
        (refused.status, left(&app, &both)),
        (429, vec![3, 0]),
        "the state refuses, and the sketch keeps its units"
    );
    let refused = check(&app, &json!([{"sketched": "ann"}, {"both": "bob"}]), 3);
    assert_eq!((refused.status, left(&app, &json!({"sketched": "ann"}))), (429, vec![3]));
    let refused = check(&app, &json!([{"sketched": "ann"}, {"user_id": "ann"}]), 4);
    assert_eq!((refused.status, left(&app, &json!({"user_id": "ann"}))), (429, vec![3]));
}

#[test]
fn what_a_sketch_cannot_do_is_an_error_that_says_so() {
    let grants = Grants { refund: true, overriding: false };
    let app = App::with(HttpOptions { grants, ..options() }, ServiceOptions::default());
    let negative = json!({
        "domain": "api", "descriptors": [{"entries": [{"key": "sketched", "value": "ann"}], "isNegativeHits": true}]
    });
    let replies = [
        app.post(
            "/v1/reserve",
            &json!({"domain": "api", "descriptors": [{"sketched": "ann"}], "estimate": 1}).to_string(),
        ),
        app.post("/json", &negative.to_string()),
        app.admin(
            None,
            "127.0.0.1:5",
            Request::post("/reset")
                .header("x-spillgate-admin", "1")
                .body(Body::from(json!({"domain": "api", "descriptors": [{"sketched": "ann"}]}).to_string()))
                .expect("the request is valid"),
        ),
    ];
    for reply in replies {
        assert_eq!(reply.status, 400, "{}", reply.body);
        let text = "descriptor 1 (rule `sketched`): its limit has representation: sketch, which cannot give units back";
        assert!(reply.body.contains(text), "{}", reply.body);
    }
    assert_eq!(left(&app, &json!({"sketched": "ann"})), [3]);
}

#[test]
fn a_shadow_server_counts_sketches_and_refuses_nothing() {
    let app = App::with(options(), ServiceOptions { shadow: true, ..ServiceOptions::default() });
    let remaining = || check(&app, &json!([{"sketched": "ann"}]), 1).json()["remaining"].clone();
    assert_eq!([(); 5].map(|()| remaining()), [2, 1, 0, 0, 0]);
}
