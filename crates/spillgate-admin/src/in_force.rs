//! Blocks and shadow switches as JSON, and the errors of the routes that change them.
//!
//! `/blocks`, `/shadows` and `/explain` share this code, so that they show blocks and switches in the same way.

use axum::Extension;
use axum::http::StatusCode;
use axum::response::ErrorResponse;
use serde::Serialize;
use serde_json::{Value, json};
use spillgate::{Clock, StoreErrorKind};
use spillgate_http::problem::Problem;
use spillgate_service::operator::{Block, ChangeError, Scope, Term};
use spillgate_service::shared_store::SharedError;
use spillgate_service::{Loaded, Service};

use super::writes::Change;

/// The log shows at most this many characters of each text that an operator has sent.
const SHOWN_CHARS: usize = 64;

/// What to do after a change that may have been made.
const MAY_BE_STORED: &str =
    "the change may have been made: look at GET /blocks or GET /shadows, and send it again if it is missing";

#[derive(Serialize)]
pub(super) struct BlockJson<'a> {
    key: &'a str,
    value: &'a str,
    domain: Option<&'a str>,
    until_ms: u64,
    ends_in_ms: u64,
    reason: Option<&'a str>,
    since_ms: u64,
    /// The requests that this server has refused because of the block.
    refused: u64,
}

impl<'a> BlockJson<'a> {
    pub(super) fn of(block: &'a Block, now_ms: u64) -> BlockJson<'a> {
        BlockJson {
            key: &block.key,
            value: &block.value,
            domain: block.domain.as_deref(),
            until_ms: block.term.until_ms,
            ends_in_ms: block.term.until_ms.saturating_sub(now_ms),
            reason: block.reason.as_deref(),
            since_ms: block.term.since_ms,
            refused: block.refused.get(),
        }
    }
}

/// A shadow switch that is on. The rule of the switch is written beside it.
#[derive(Serialize)]
pub(super) struct SwitchJson {
    scope: &'static str,
    until_ms: u64,
    ends_in_ms: u64,
    since_ms: u64,
}

impl SwitchJson {
    pub(super) fn of((scope, term): (Scope, Term), now_ms: u64) -> SwitchJson {
        SwitchJson {
            scope: scope.as_str(),
            until_ms: term.until_ms,
            ends_in_ms: term.until_ms.saturating_sub(now_ms),
            since_ms: term.since_ms,
        }
    }
}

/// Completes the explanation of a descriptor: adds the block that refuses the descriptor, and the shadow switches that
/// are on for its rule.
pub(super) fn explain<C: Clock>(
    service: &Service<C>,
    loaded: &Loaded,
    (domain, entries): (&str, &[(&str, &str)]),
    explained: &mut Value,
) {
    let (in_force, now_ms) = (service.operator().in_force(), service.now_ms());
    let options = service.options();
    let block = in_force.block_on(domain, entries, options.bounds.value_bytes, now_ms).filter(|_| !options.shadow);
    explained["block"] = json!(block.map(|block| BlockJson::of(block, now_ms)));
    if let Some(rule) = loaded.find(domain, entries) {
        let (of_rule, of_all) = in_force.switches_of(rule);
        let on = of_rule.on(now_ms).chain(of_all.on(now_ms));
        explained["matched"]["shadow_switches"] = json!(on.map(|on| SwitchJson::of(on, now_ms)).collect::<Vec<_>>());
    }
}

/// Returns the form in which the log shows a text that an operator has sent: its beginning, with special characters
/// escaped.
pub(super) fn shown(text: &str) -> String {
    let end = text.char_indices().nth(SHOWN_CHARS).map_or(text.len(), |(end, _)| end);
    format!("`{}`{}", text[..end].escape_debug(), if end < text.len() { "..." } else { "" })
}

/// Returns the answer to a change that was not made, or that may have been made. The log says the same as the answer.
pub(super) fn refused(error: ChangeError) -> ErrorResponse {
    let detail = error.to_string();
    let problem = match error {
        ChangeError::Invalid(_, help) => Problem::bad_request(detail, help),
        ChangeError::NotFound(_, help) => Problem::new(StatusCode::NOT_FOUND, detail, help),
        ChangeError::NotStored(error) => not_stored(&error, detail),
        // Without a `Change`, the log says that the change is unknown.
        ChangeError::MayBeStored(_) => {
            return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, MAY_BE_STORED).into();
        }
        ChangeError::Full { help, .. } => Problem::new(StatusCode::CONFLICT, detail, help),
    };
    (Extension(Change("nothing".to_owned())), problem).into()
}

/// Returns the answer after an error of the shared store that has changed nothing.
fn not_stored(error: &SharedError, detail: String) -> Problem {
    // Usually such an error has the kind `NoPermission`. Only if the store forbids nothing but EXEC, it has another
    // kind.
    if error.kind() == StoreErrorKind::NoPermission || error.forbidden_command().is_some() {
        let command = error.forbidden_command().unwrap_or("a command").to_uppercase();
        let help = format!(
            "allow the user of the store {command} on keys sg:*; the book has all rights that blocks need \
             (docs/src/operating/least-rights.md). With the scope `server`, a shadow switch needs none of them"
        );
        return Problem::new(StatusCode::BAD_GATEWAY, detail, help);
    }
    let help = "nothing was changed; try again when the store answers, or when the cause is repaired";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, help)
}
