//! `GET /reloads`: lists the last reloads of the rules.
//!
//! After a change of a rules file, an operator sees here whether the server has loaded it.

use axum::extract::State;
use axum::response::Response;
use spillgate::Clock;

use super::AdminState;

pub(super) async fn reloads<C: Clock + 'static>(State(state): State<AdminState<C>>) -> Response {
    let mut reloads = state.reloads.newest_first();
    let mut separator = Some("{\"reloads\":[");
    state.pages.page("application/json", move || {
        let before = separator?;
        let Some(reload) = reloads.next() else {
            separator = None;
            return Some(format!("{}]}}", if before == "," { "" } else { before }));
        };
        separator = Some(",");
        let reload = serde_json::to_string(&*reload).expect("invariant: strings and numbers become JSON in memory");
        Some(format!("{before}{reload}"))
    })
}
