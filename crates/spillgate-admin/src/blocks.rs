//! `POST /block`, `POST /unblock` and `GET /blocks`: refuse all requests with a given entry for a time.
//!
//! When a client does harm, a new rule in a rules file would come too late. A block works at once.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{ErrorResponse, IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::json;
use spillgate::Clock;
use spillgate_http::json::{Text, object};
use spillgate_http::problem::Problem;
use spillgate_http::read_body;
use spillgate_service::BlockMade;
use spillgate_service::operator::{BLOCKS_MAX, NewBlock};
use spillgate_service::seek::Entry;

use super::in_force::{BlockJson, refused, shown};
use super::writes::Change;
use super::{AdminState, BODY_BYTES, hash, page};

const BLOCK: &str = concat!(
    r#"{"key":"remote_address","value":"203.0.113.9","for":"10m"}, and if needed "domain" and "reason"; "#,
    r#"or {"hash":"HASH OF A CALLER","for":"10m"}, and "key" if the caller has several entries of its own"#
);
const UNBLOCK: &str = r#"{"key":"remote_address","value":"203.0.113.9"}, and if needed "domain""#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireBlock<'a> {
    #[serde(borrow)]
    key: Option<Text<'a>>,
    #[serde(borrow)]
    value: Option<Text<'a>>,
    /// The hash of a caller, in place of `value`.
    #[serde(borrow)]
    hash: Option<Text<'a>>,
    #[serde(borrow)]
    domain: Option<Text<'a>>,
    #[serde(borrow, rename = "for")]
    lasts: Text<'a>,
    #[serde(borrow)]
    reason: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireUnblock<'a> {
    #[serde(borrow)]
    key: Text<'a>,
    #[serde(borrow)]
    value: Text<'a>,
    #[serde(borrow)]
    domain: Option<Text<'a>>,
}

/// Returns the text by which the log names an entry and a domain.
fn named(key: &str, value: &str, domain: Option<&Text<'_>>) -> String {
    let domain = domain.map_or_else(|| "all domains".to_owned(), |domain| format!("domain {}", shown(domain)));
    format!("key {}, value {}, {domain}", shown(key), shown(value))
}

pub(super) async fn block<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, ErrorResponse> {
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    let wire: WireBlock<'_> = object(&body).map_err(|error| Problem::bad_json(&error, BLOCK))?;
    let (key, value) = entry(&state, &wire).await?;
    let new = NewBlock {
        key: &key,
        value: &value,
        domain: wire.domain.as_deref(),
        lasts: &wire.lasts,
        reason: wire.reason.as_deref(),
    };
    let BlockMade { block, replaced, blocks } = state.service.block(&new).await.map_err(refused)?;
    let named = named(&key, &value, wire.domain.as_ref());
    let change = Change(format!("blocked for {}: {named}", shown(&wire.lasts)));
    let now_ms = state.service.now_ms();
    let answer = json!({
        "block": BlockJson::of(&block, now_ms),
        "replaced": replaced.as_ref().map(|replaced| BlockJson::of(replaced, now_ms)),
        "scope": state.service.scope().as_str(),
        "blocks": blocks,
    });
    Ok((Extension(change), Json(answer)).into_response())
}

/// Returns the key and the value that a block is asked for.
async fn entry<C: Clock>(state: &AdminState<C>, wire: &WireBlock<'_>) -> Result<(String, String), Problem> {
    let (key, value) = (wire.key.as_deref(), wire.value.as_deref());
    match (key, value, &wire.hash) {
        (Some(key), Some(value), None) => Ok((key.to_owned(), value.to_owned())),
        (_, Some(_), Some(_)) => Err(Problem::bad_request("a block has `hash` or `value`, not both", BLOCK)),
        (_, None, Some(hash)) => own_entry(hash::caller(&state.service, hash).await?.own, key),
        (None, _, None) => Err(Problem::bad_request("missing field `key`", BLOCK)),
        (Some(_), None, None) => Err(Problem::bad_request("missing field `value`", BLOCK)),
    }
}

/// Returns the entry that a block on a caller has: its only own one, or the one with this key.
fn own_entry(mut own: Vec<Entry>, key: Option<&str>) -> Result<Entry, Problem> {
    let keys: Vec<_> = own.iter().map(|(key, _)| shown(key)).collect();
    let keys = keys.join(", ");
    if own.is_empty() {
        let help =
            "block another entry of the caller by its key and value: `spillgate explain --hash` shows a whole request";
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "all callers of this limit have the same entries, so the block would refuse all of them",
            help,
        ));
    }
    if let Some(key) = key {
        let place = own.iter().position(|(own, _)| own == key);
        return place.map(|place| own.swap_remove(place)).ok_or_else(|| {
            let detail = format!("the caller has no entry of its own with the key {}", shown(key));
            Problem::new(StatusCode::CONFLICT, detail, format!("its own entries have the keys: {keys}"))
        });
    }
    if own.len() > 1 {
        let detail = format!("the caller has several entries of its own: {keys}");
        return Err(Problem::new(StatusCode::CONFLICT, detail, "name the one to block with `key`"));
    }
    Ok(own.swap_remove(0))
}

pub(super) async fn unblock<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, ErrorResponse> {
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    let wire: WireUnblock<'_> = object(&body).map_err(|error| Problem::bad_json(&error, UNBLOCK))?;
    let unblocked = state.service.unblock(&wire.key, &wire.value, wire.domain.as_deref()).await.map_err(refused)?;
    let named = named(&wire.key, &wire.value, wire.domain.as_ref());
    let refused = unblocked.iter().fold(0, |sum: u64, block| sum.saturating_add(block.refused.get()));
    let change = Change(format!("unblocked: {named}, requests refused: {refused}"));
    Ok((Extension(change), Json(json!({ "unblocked": unblocked.len(), "refused": refused }))).into_response())
}

pub(super) async fn blocks<C: Clock + 'static>(State(state): State<Arc<AdminState<C>>>) -> Response {
    let now_ms = state.service.now_ms();
    let mut blocks: Vec<_> = state.service.operator().in_force().blocks(now_ms).map(Arc::clone).collect();
    blocks.sort_unstable_by(|a, b| {
        let entries = || (&a.key, &a.value, &a.domain).cmp(&(&b.key, &b.value, &b.domain));
        b.term.since_ms.cmp(&a.term.since_ms).then_with(entries)
    });
    let operator = state.service.operator();
    let head = json!({
        "scope": state.service.scope().as_str(),
        "read_ms_ago": operator.read_ms_ago(now_ms),
        "unreadable": operator.unreadable(),
        "max": BLOCKS_MAX,
    });
    let mut sent = 0;
    page::list(&head, "blocks", move || {
        let items = page::piece(blocks[sent..].iter().map(|block| page::json(&BlockJson::of(block, now_ms))));
        sent += items.len();
        items
    })
}
