//! `GET /reloads`: lists the last reloads of the rules.
//!
//! After a change of a rules file, an operator sees here whether the server has loaded it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::json;
use spillgate::Clock;

use super::{AdminState, page};

pub(super) async fn reloads<C: Clock + 'static>(State(state): State<Arc<AdminState<C>>>) -> Response {
    let mut reloads = state.reloads.newest_first();
    page::list(&json!({}), "reloads", move || reloads.next().map(|reload| page::json(&*reload)).into_iter().collect())
}
