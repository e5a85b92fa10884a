//! `GET /rules`: returns the rules that the server uses now, each with its file and line.
//!
//! After a reload of the rules files, an operator can check here whether the server uses the new rules.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use spillgate::Clock;
use spillgate::rules;

use super::AdminState;

/// The page is built in pieces. This is the number of rules in one piece.
const PIECE_RULES: usize = 100;

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
    /// `None` for a concurrency limit.
    window_ns: Option<u64>,
    /// The burst of a token bucket, the queue length plus 1 of a leaky bucket, or otherwise the limit.
    capacity: u64,
    /// The size of the sketch. `None` if the limit is counted exactly.
    sketch_bytes: Option<usize>,
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
            sketch_bytes: limit.sketch.as_ref().map(|sketch| sketch.bytes),
            line: limit.origin.as_ref().map(|origin| origin.line),
        }
    }
}

pub(super) async fn rules<C: Clock + 'static>(State(state): State<AdminState<C>>) -> Response {
    let loaded = Arc::clone(&state.service.rules());
    let (rules, mut next) = (loaded.rules().count(), Some(0));
    state.pages.page("application/json", move || {
        let (begun, mut piece) = (next?, String::new());
        if begun == 0 {
            let domains: Vec<_> = loaded.domains().map(Domain::from).collect();
            piece.push_str("{\"domains\":");
            add(&mut piece, &domains);
            piece.push_str(",\"rules\":[");
        }
        for (number, rule) in loaded.rules().enumerate().skip(begun).take(PIECE_RULES) {
            piece.push_str(if number > 0 { "," } else { "" });
            add(&mut piece, &Rule::from(rule));
        }
        next = Some(begun + PIECE_RULES).filter(|next| *next < rules);
        piece.push_str(if next.is_none() { "]}" } else { "" });
        Some(piece)
    })
}

fn add(piece: &mut String, value: &impl Serialize) {
    piece.push_str(&serde_json::to_string(value).expect("invariant: strings and numbers become JSON in memory"));
}
