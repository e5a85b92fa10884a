//! `GET /reloads` and `POST /reload`: lists the last reloads, and reads all files again.
//!
//! After a change of a file, an operator sees here whether the server has taken it, and why not.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use spillgate::Clock;
use spillgate_http::problem::Problem;
use spillgate_service::reload_requests::Reloaded;
use spillgate_service::reloads::{Outcome, UnitName};

use super::writes::{Change, without_members};
use super::{AdminState, page};

pub(super) async fn reloads<C: Clock + 'static>(State(state): State<Arc<AdminState<C>>>) -> Response {
    let mut reloads = state.reloads.newest_first();
    page::list(&json!({}), "reloads", move || reloads.next().map(|reload| page::json(&*reload)).into_iter().collect())
}

pub(super) async fn reload<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, Problem> {
    without_members(request).await?;
    let Some(reloaded) = state.reload.reload().await else {
        let help = "look into its log, and restart it";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no thread of this server reloads", help));
    };
    let reload = &*reloaded.reload;
    Ok(match reload.outcome {
        Outcome::Reloaded | Outcome::Noted => {
            let change = Change(format!("reloaded the rules, changes: {}", reload.changes.count()));
            let answer = json!({"changed": reload.changes.count() > 0, "reload": reload});
            (Extension(change), Json(answer)).into_response()
        }
        Outcome::Failed => {
            let (errors, changes) = (reloaded.errors.count(), reload.changes.count());
            let failed = failed(&reloaded).map(UnitName::as_str).collect::<Vec<_>>().join(", ");
            let change = Change(format!("not reloaded: {failed}; errors: {errors}, changes: {changes}"));
            (Extension(change), refused(&reloaded)).into_response()
        }
    })
}

/// Returns the units that could not be taken.
fn failed(reloaded: &Reloaded) -> impl Iterator<Item = UnitName> {
    reloaded.reload.units.iter().filter(|unit| unit.outcome == Outcome::Failed).map(|unit| unit.unit)
}

/// Returns the answer to a reload in which a unit failed: a problem that says what became of each unit.
fn refused(reloaded: &Reloaded) -> Response {
    let (reload, status) = (&*reloaded.reload, StatusCode::UNPROCESSABLE_ENTITY);
    let detail = if failed(reloaded).any(|unit| unit == UnitName::Rules) {
        "the rules were not reloaded; the earlier rules stay in use"
    } else {
        "not everything was reloaded; what could not be taken stays as it was"
    };
    let mut problem = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
        "help": "correct the errors in the files, and reload again; `spillgate validate` checks the files without a server",
        "cause": reload.cause,
        "units": reload.units,
        "changes": reload.changes,
        "notes": reload.notes,
    });
    if let (Some(problem), serde_json::Value::Object(errors)) = (problem.as_object_mut(), json!(reloaded.errors)) {
        problem.extend(errors);
    }
    (status, [(header::CONTENT_TYPE, "application/problem+json")], page::json(&problem)).into_response()
}
