//! `POST /caller`: shows all limits and all blocks that the values of one caller touch. Nothing is taken.
//!
//! An operator who is asked about a customer knows a value of the customer, for example its address. `/explain` needs a
//! whole request instead.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use spillgate::Clock;
use spillgate::rules::LimitDescription;
use spillgate_http::json::{Text, object};
use spillgate_http::problem::Problem;
use spillgate_http::read_body;
use spillgate_service::explain::{
    CallerCounter, CallerCounters, CallerValue, ExplainedLimit, UnknownName, UnreadRule, unknown_keys,
};
use spillgate_service::operator::Block;

use super::in_force::BlockJson;
use super::{AdminState, BODY_BYTES};

const EXAMPLE: &str =
    r#"{"values":[{"key":"user_id","value":"7"},{"value":"203.0.113.9"}]}, and if needed "domain":"api""#;

/// The maximum number of values in a body, as many as entries of a descriptor by default.
const VALUES_MAX: usize = 16;
/// The maximum number of blocks in an answer.
const BLOCKS_MAX: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Caller<'a> {
    #[serde(borrow)]
    domain: Option<Text<'a>>,
    #[serde(borrow)]
    values: Vec<Value<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Value<'a> {
    #[serde(borrow)]
    key: Option<Text<'a>>,
    #[serde(borrow)]
    value: Text<'a>,
}

#[derive(Serialize)]
struct Answer<'a> {
    blocks: Vec<BlockJson<'a>>,
    blocks_left_out: usize,
    limits: Vec<LimitOfCaller<'a>>,
    limits_left_out: usize,
    /// How many limits were left out because only a value without a key touches them, and they are unused.
    unused_left_out: usize,
    /// Limits that all requests with certain values share. None of the values in the body is one of them.
    shared: Vec<LimitOfCaller<'a>>,
    shared_left_out: usize,
    unread: Vec<Unread<'a>>,
    unread_left_out: usize,
    /// Keys that no rule has and no block is on, so they are probably misspelt.
    unknown: Vec<UnknownName>,
}

#[derive(Serialize)]
struct LimitOfCaller<'a> {
    limit: LimitDescription,
    /// The entries that choose the counter.
    entries: &'a [(String, String)],
    /// Whether all requests of the rule share this counter, whoever sends them.
    shared: bool,
    /// `enforce` or `shadow`. A limit in shadow refuses nothing.
    binding: &'static str,
    capacity: u64,
    used: u64,
    remaining: u64,
    reset_after_ns: u64,
    /// Whether one more unit would be allowed.
    allowed: bool,
    reason: &'static str,
    /// How long one more unit is refused. `None` if it is allowed, or if the time is not known.
    retry_after_ns: Option<u64>,
}

/// A rule that needs values of further keys.
#[derive(Serialize)]
struct Unread<'a> {
    domain: &'a str,
    rule: &'a str,
    missing: &'a [&'a str],
}

pub(super) async fn caller<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, Problem> {
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    let wire: Caller<'_> = object(&body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    let values: Vec<_> = wire.values.iter().map(Value::given).collect();
    check(&values)?;
    let _permit = match state.question() {
        Ok(permit) => permit,
        Err(response) => return Ok(*response),
    };
    let (loaded, domain, service) = (state.service.rules(), wire.domain.as_deref(), &state.service);
    if let Some(domain) = domain.filter(|domain| !loaded.has_domain(domain)) {
        let detail = format!("no rules file has the domain `{}`", domain.escape_debug());
        return Err(Problem::bad_request(detail, "GET /rules lists the domains; without a domain, all are searched"));
    }
    let found = CallerCounters::of(&loaded, domain, &values);
    let (mut limits, mut shared, mut unused_left_out) = (Vec::new(), Vec::new(), 0);
    for (counters, list) in [(&found.counters, &mut limits), (&found.shared, &mut shared)] {
        for counter in counters {
            let (explained, unused) = service.limits_of_counter(&loaded, counter).await?;
            unused_left_out += unused;
            let is_in_shadow = service.is_in_shadow(counter.rule);
            list.extend(explained.into_iter().map(|limit| LimitOfCaller::of(counter, &limit, is_in_shadow)));
        }
    }
    let (in_force, now_ms) = (service.operator().in_force(), service.now_ms());
    let blocks = blocks(&in_force, domain, &values, (service.options().bounds.value_bytes, now_ms));
    let is_blocked = |key: &&str| blocks.iter().any(|block| *block.key == **key);
    let unknown =
        unknown_keys(&loaded, domain, values.iter().filter_map(|given| given.key).filter(|key| !is_blocked(key)));
    let answer = Answer {
        unknown,
        blocks_left_out: blocks.len().saturating_sub(BLOCKS_MAX),
        blocks: blocks.iter().take(BLOCKS_MAX).map(|block| BlockJson::of(block, now_ms)).collect(),
        limits,
        limits_left_out: found.limits_left_out,
        unused_left_out,
        shared,
        shared_left_out: found.shared_left_out,
        unread: found.unread.iter().map(Unread::of).collect(),
        unread_left_out: found.unread_left_out,
    };
    Ok(Json(answer).into_response())
}

/// Checks the number of values, and that no key has two values.
fn check(values: &[CallerValue<'_>]) -> Result<(), Problem> {
    if values.is_empty() || values.len() > VALUES_MAX {
        let detail = format!("`values` has {} items, and 1 to {VALUES_MAX} are possible", values.len());
        return Err(Problem::bad_request(detail, format!("send JSON such as {EXAMPLE}")));
    }
    let mut keys: Vec<_> = values.iter().filter_map(|given| given.key).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let detail = format!("the key `{}` has two values", pair[0].escape_debug());
            Err(Problem::bad_request(detail, "ask about one value of a key at a time"))
        }
        None => Ok(()),
    }
}

/// Returns the blocks on these values. Those that end last come first.
fn blocks(
    in_force: &spillgate_service::operator::InForce,
    domain: Option<&str>,
    values: &[CallerValue<'_>],
    (value_bytes, now_ms): (usize, u64),
) -> Vec<Arc<Block>> {
    let of_value = |given: &CallerValue<'_>| -> Vec<_> {
        in_force.blocks_of((domain, given.key, given.value), value_bytes, now_ms).cloned().collect()
    };
    let mut blocks: Vec<_> = values.iter().flat_map(of_value).collect();
    blocks.sort_by(|a, b| {
        let entry = |block: &Block| (block.key.clone(), block.value.clone(), block.domain.clone());
        b.term.until_ms.cmp(&a.term.until_ms).then_with(|| entry(a).cmp(&entry(b)))
    });
    blocks.dedup_by(|a, b| Arc::ptr_eq(a, b));
    blocks
}

impl Value<'_> {
    fn given(&self) -> CallerValue<'_> {
        CallerValue { key: self.key.as_deref(), value: &self.value }
    }
}

impl<'a> LimitOfCaller<'a> {
    fn of(counter: &'a CallerCounter<'_>, limit: &ExplainedLimit<'_>, shadow: bool) -> LimitOfCaller<'a> {
        let decision = &limit.decision;
        LimitOfCaller {
            limit: LimitDescription::of(counter.rule, limit.limit).on_server(shadow),
            entries: &counter.entries,
            shared: counter.rule.is_shared(),
            binding: limit.binding.as_str(),
            capacity: decision.limit,
            used: decision.limit.saturating_sub(limit.before.remaining),
            remaining: limit.before.remaining,
            reset_after_ns: limit.before.reset_after_ns,
            allowed: decision.allowed,
            reason: decision.reason.as_str(),
            retry_after_ns: if decision.allowed { None } else { decision.retry_after.nanos() },
        }
    }
}

impl<'a> Unread<'a> {
    fn of(unread: &'a UnreadRule<'_>) -> Unread<'a> {
        Unread { domain: &unread.rule.domain, rule: &unread.rule.path, missing: &unread.missing }
    }
}
