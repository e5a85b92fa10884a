//! `GET /openapi.json`: describes all routes of the admin listener.
//!
//! A program that uses the listener can be generated from this file. A test compares the file with the answers.

use axum::http::header;
use axum::response::IntoResponse;

const OPENAPI: &str = include_str!("openapi.json");

pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}
