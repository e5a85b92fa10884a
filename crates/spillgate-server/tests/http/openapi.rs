//! Compares a suggestion of `GET /insight` with the OpenAPI file. Insight suggests limits only after some minutes, so
//! this test sets the clock itself. The module `openapi` compares all other answers with the file.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use spillgate::rules::{Rules, RulesFile};
use spillgate_service::{CallerKeys, Insight, ServiceOptions};

use crate::http::app::{App, options};
use crate::openapi::schema;

#[test]
fn a_suggestion_is_as_the_file_says() {
    let insight = Insight { max_callers: 2000, keys: CallerKeys::Plain };
    let app = App::with(options(), ServiceOptions { insight, ..ServiceOptions::default() });
    let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 100}}]".to_owned();
    let rules = Rules::parse(&[RulesFile { name: "api.yaml".to_owned(), text }]).expect("the rules are valid");
    app.service.replace_rules(rules);
    // A lower limit is suggested after an hour of requests.
    for _ in 0..61 {
        for user in 0..20 {
            let body = json!({"domain": "api", "descriptors": [{ "user": user }]});
            assert_eq!(app.post("/v1/check", &body.to_string()).status, 200);
        }
        app.clock.advance(Duration::from_secs(60));
    }
    let get = |path: &str| -> Value {
        let request = Request::get(path).body(Body::empty()).expect("the request is valid");
        app.admin(None, "127.0.0.1:1", request).json()
    };
    let (file, page) = (get("/openapi.json"), get("/insight"));
    let limits = page["limits"].as_array().expect("the page has a list");
    assert!(
        limits.iter().any(|limit| limit["suggestion"].is_object() && limit["suggested_rules"].is_string()),
        "{page}"
    );
    let insight = &file["components"]["schemas"]["Insight"];
    schema::check(&file, insight, &page, "/insight").unwrap_or_else(|error| panic!("{error}"));
}
