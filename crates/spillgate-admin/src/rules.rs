//! `GET /rules`: returns the rules that the server uses now, each with its file and line.
//!
//! After a reload of the rules files, an operator can check here whether the server uses the new rules. On request, the
//! answer has the text of a single rule, because the file on the disk may have changed since the server read it.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use spillgate::Clock;
use spillgate::rules::{self, LimitDescription};
use spillgate_http::problem::Problem;
use spillgate_service::Loaded;

use super::page::json;
use super::{AdminState, page, query_error};

/// An answer has at most this many bytes of the text of one rule. A rule can contain a large part of its file, because
/// other rules can be nested in it.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// If several rules have the same path, an answer has at most this many of them.
const SAME_PATH_MAX: usize = 8;

/// What a URL of `GET /rules` can ask for: all rules if both members are `None`, or one rule with its text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesQuery {
    domain: Option<String>,
    rule: Option<String>,
}

#[derive(Serialize)]
struct Domain<'a> {
    name: &'a str,
    file: &'a str,
    compat_envoy: bool,
}

#[derive(Serialize)]
struct Rule<'a> {
    domain: &'a str,
    rule: &'a str,
    file: &'a str,
    line: u32,
    limits: Vec<LimitDescription>,
    unlimited: bool,
    shadow_mode: bool,
    quota_mode: bool,
}

#[derive(Serialize)]
struct RuleWithText<'a> {
    #[serde(flatten)]
    rule: Rule<'a>,
    text: String,
    /// The number of bytes of the rule that are not in `text`.
    text_bytes_left_out: usize,
}

/// The answer about one rule with its text. It has a list of rules, because the paths of two rules can be the same
/// text: a value can contain a `=`.
#[derive(Serialize)]
struct RulesWithText<'a> {
    domains: Vec<Domain<'a>>,
    rules: Vec<RuleWithText<'a>>,
}

impl<'a> From<&'a rules::Domain> for Domain<'a> {
    fn from(domain: &'a rules::Domain) -> Domain<'a> {
        Domain { name: &domain.name, file: &domain.file, compat_envoy: domain.compat_envoy }
    }
}

impl<'a> Rule<'a> {
    fn of(rule: &'a rules::Rule, shadow: bool) -> Rule<'a> {
        Rule {
            domain: &rule.domain,
            rule: &rule.path,
            file: &rule.origin.file,
            line: rule.origin.line,
            limits: rule.limits.iter().map(|limit| LimitDescription::of(rule, limit).on_server(shadow)).collect(),
            unlimited: rule.unlimited,
            shadow_mode: rule.shadow_mode,
            quota_mode: rule.quota_mode,
        }
    }
}

impl<'a> RuleWithText<'a> {
    fn of(loaded: &Loaded, rule: &'a rules::Rule, shadow: bool) -> RuleWithText<'a> {
        let whole = loaded.written(rule);
        let mut shown = whole;
        if whole.len() > TEXT_BYTES_MAX {
            shown = &whole[..whole.floor_char_boundary(TEXT_BYTES_MAX)];
            // The text is cut at the end of a line, because whole lines are easier to read. But a file that a program
            // wrote can have very long lines. So if more than half of the text would be lost, the cut is within a line.
            let lines = shown.rfind(['\n', '\r']).filter(|end| *end > TEXT_BYTES_MAX / 2);
            shown = shown[..lines.unwrap_or(shown.len())].trim_end_matches(['\n', '\r']);
        }
        RuleWithText {
            rule: Rule::of(rule, shadow),
            text_bytes_left_out: whole.len() - shown.len(),
            text: without_indentation(shown),
        }
    }
}

/// Removes the spaces with which all lines begin.
fn without_indentation(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let spaces = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let common = text.split('\n').filter(|line| !line.trim().is_empty()).map(spaces).min().unwrap_or(0);
    let lines: Vec<_> = text.split('\n').map(|line| &line[common.min(spaces(line))..]).collect();
    lines.join("\n")
}

pub(super) async fn rules<C: Clock + 'static>(
    State(state): State<Arc<AdminState<C>>>,
    query: Result<Query<RulesQuery>, QueryRejection>,
) -> Response {
    let loaded = Arc::clone(&state.service.rules());
    match query {
        Ok(Query(RulesQuery { domain: None, rule: None })) => all(&state, loaded),
        Ok(Query(RulesQuery { domain: Some(domain), rule: Some(path) })) => {
            with_text(&loaded, &domain, &path, state.service.options().shadow)
        }
        Ok(_) => wrong_query("the query has only one of `domain` and `rule`".to_owned()),
        Err(error) => wrong_query(query_error(&error)),
    }
}

fn wrong_query(detail: String) -> Response {
    let help = "use /rules for all rules, or /rules?domain=DOMAIN&rule=PATH for one rule with its text";
    Problem::bad_request(detail, help).into_response()
}

fn all<C: Clock>(state: &AdminState<C>, loaded: Arc<Loaded>) -> Response {
    let (shadow, mut sent) = (state.service.options().shadow, 0);
    let domains: Vec<_> = loaded.domains().map(Domain::from).collect();
    page::list(&json!({ "domains": domains }), "rules", move || {
        let items = page::piece(loaded.rules().skip(sent).map(|rule| json(&Rule::of(rule, shadow))));
        sent += items.len();
        items
    })
}

fn with_text(loaded: &Loaded, domain: &str, path: &str, shadow: bool) -> Response {
    let is_it = |rule: &&rules::Rule| &*rule.domain == domain && &*rule.path == path;
    let found = loaded.rules().filter(is_it).take(SAME_PATH_MAX);
    let rules: Vec<_> = found.map(|rule| RuleWithText::of(loaded, rule, shadow)).collect();
    if rules.is_empty() {
        let detail = format!("the domain `{domain}` has no rule `{path}`");
        let help = "GET /rules lists the domains and the paths of all rules";
        return Problem::new(StatusCode::NOT_FOUND, detail, help).into_response();
    }
    let domains = loaded.domains().filter(|known| &*known.name == domain).map(Domain::from).collect();
    Json(RulesWithText { domains, rules }).into_response()
}
