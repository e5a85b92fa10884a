//! `GET /reloads` and `POST /reload`: lists the last reloads of the rules, and reads the rules again.
//!
//! After a change of a rules file, an operator sees here whether the server has loaded it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use spillgate::Clock;
use spillgate_http::problem::Problem;
use spillgate_service::reload_requests::ReloadErrors;
use spillgate_service::reloads::{Lines, Outcome};

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
        Outcome::Reloaded => {
            let change = Change(format!("reloaded the rules, changes: {}", reload.changes.count()));
            let answer = json!({"changed": reload.changes.count() > 0, "reload": reload});
            (Extension(change), Json(answer)).into_response()
        }
        Outcome::Failed => {
            let change = Change(format!("nothing: the rules have errors: {}", reloaded.errors.count()));
            (Extension(change), refused(&reloaded.errors, &reload.notes)).into_response()
        }
    })
}

/// Returns the answer to a reload that failed: a problem with the members `errors`, `errors_left_out` and `notes`.
fn refused(errors: &ReloadErrors, notes: &Lines) -> Response {
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    let mut problem = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": "the rules were not reloaded; the earlier rules stay in use",
        "help": "correct the errors in the files, and reload again; `spillgate validate` checks the files without a server",
        "notes": notes,
    });
    if let (Some(problem), serde_json::Value::Object(errors)) = (problem.as_object_mut(), json!(errors)) {
        problem.extend(errors);
    }
    (status, [(header::CONTENT_TYPE, "application/problem+json")], page::json(&problem)).into_response()
}
