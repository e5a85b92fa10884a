//! `GET /rules`: the rules in force, each with the line it was written on.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use spillgate::Clock;
use spillgate::rules;

use super::AdminState;

#[derive(Serialize)]
struct Listing<'a> {
    domains: Vec<Domain<'a>>,
    rules: Vec<Rule<'a>>,
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
    limits: Vec<Limit<'a>>,
    unlimited: bool,
    shadow_mode: bool,
    quota_mode: bool,
}

#[derive(Serialize)]
struct Limit<'a> {
    name: Option<&'a str>,
    algorithm: &'static str,
    limit: u64,
    /// Of concurrency none.
    window_ns: Option<u64>,
    /// The most that can be taken at once.
    capacity: u64,
    line: Option<u32>,
}

impl<'a> From<&'a rules::Domain> for Domain<'a> {
    fn from(domain: &'a rules::Domain) -> Domain<'a> {
        Domain { name: &domain.name, file: &domain.file, compat_envoy: domain.compat_envoy }
    }
}

impl<'a> From<&'a rules::Rule> for Rule<'a> {
    fn from(rule: &'a rules::Rule) -> Rule<'a> {
        Rule {
            domain: &rule.domain,
            rule: &rule.path,
            file: &rule.origin.file,
            line: rule.origin.line,
            limits: rule.limits.iter().map(Limit::from).collect(),
            unlimited: rule.unlimited,
            shadow_mode: rule.shadow_mode,
            quota_mode: rule.quota_mode,
        }
    }
}

impl<'a> From<&'a rules::Limit> for Limit<'a> {
    fn from(limit: &'a rules::Limit) -> Limit<'a> {
        let quota = &limit.quota;
        Limit {
            name: limit.name.as_deref(),
            algorithm: quota.algorithm().as_str(),
            limit: quota.limit(),
            window_ns: Some(quota.window_ns()).filter(|window_ns| *window_ns > 0),
            capacity: quota.capacity(),
            line: limit.origin.as_ref().map(|origin| origin.line),
        }
    }
}

pub(super) async fn rules<C: Clock>(State(state): State<AdminState<C>>) -> Response {
    let loaded = state.service.rules();
    let listing = Listing {
        domains: loaded.domains().map(Domain::from).collect(),
        rules: loaded.rules().map(Rule::from).collect(),
    };
    Json(listing).into_response()
}
