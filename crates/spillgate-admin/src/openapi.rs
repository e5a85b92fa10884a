//! `GET /openapi.json`: describes all routes of the admin listener.
//!
//! A client library for the listener can be generated from `openapi.json`. A test compares this file with real answers.

use axum::http::header;
use axum::response::IntoResponse;

const OPENAPI: &str = include_str!("openapi.json");

pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}
