//! A server on axum that answers `POST /v1/check` without a decision.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue};
use axum::serve::ListenerExt;
use axum::{Json, Router, routing};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::Outcome;
use crate::answer::LIMIT;

#[derive(Deserialize)]
struct Check {
    domain: String,
    descriptors: Vec<BTreeMap<String, String>>,
    #[serde(default)]
    cost: u64,
}

#[derive(Serialize)]
struct Answer {
    allowed: bool,
    limit: u64,
    quota: Quota,
    remaining: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    delay_ms: u64,
    soft_over: bool,
    lease_id: Option<String>,
    rule: Option<String>,
    source: &'static str,
}

#[derive(Serialize)]
struct Quota {
    limit: u64,
    window_ms: u64,
}

type Fields = [(HeaderName, HeaderValue); 2];

async fn check(Json(check): Json<Check>) -> (Fields, Json<Answer>) {
    let known = !check.domain.is_empty() && !check.descriptors.is_empty();
    let answer = Answer {
        allowed: known,
        limit: u64::from(LIMIT),
        quota: Quota { limit: u64::from(LIMIT), window_ms: 3_600_000 },
        remaining: u64::from(LIMIT) - check.cost,
        retry_after_ms: Some(0),
        reset_after_ms: 3_599_123,
        delay_ms: 0,
        soft_over: false,
        lease_id: None,
        rule: Some(String::from("user_id")),
        source: "store",
    };
    let fields = [
        (HeaderName::from_static("ratelimit-policy"), HeaderValue::from_static("\"user_id\";q=1000000000;w=3600")),
        (HeaderName::from_static("ratelimit"), HeaderValue::from_static("\"user_id\";r=999999999;t=3600")),
    ];
    (fields, Json(answer))
}

pub(crate) async fn serve(listener: TcpListener) -> Outcome {
    let router = Router::new().route("/v1/check", routing::post(check));
    let listener = listener.tap_io(|stream| {
        // If this option cannot be set, the connection is only slower. So an error is ignored.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router).await?;
    Ok(())
}
