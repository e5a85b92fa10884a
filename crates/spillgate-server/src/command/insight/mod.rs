//! `spillgate insight`: shows what each limit does to its callers.
//!
//! The limits of several servers are shown as one. Their readings are merged here, because no server knows the others.

mod fetch;
mod render;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use spillgate::insight::{Reading, Report};

use super::open::secret_file;
use super::terminal::{EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Problems, Terminal};
use crate::cli::Insight;
use fetch::Admin;

/// The answer of `GET /insight?readings=true`.
#[derive(Deserialize)]
struct Page {
    limits: Vec<Limit>,
}

/// A limit of one server, or of several.
#[derive(Deserialize)]
struct Limit {
    domain: String,
    rule: String,
    name: Option<String>,
    file: String,
    line: u32,
    algorithm: String,
    limit: u64,
    window_ns: Option<u64>,
    capacity: u64,
    suggested_rules: Option<String>,
    reading: Reading,
}

/// A limit with its report.
struct Reported {
    limit: Limit,
    report: Report,
}

impl Limit {
    /// Returns whether two servers have the same limit. Other options do not matter here.
    fn is(&self, other: &Limit) -> bool {
        let numbers = |limit: &Limit| (limit.limit, limit.window_ns, limit.capacity);
        self.domain == other.domain
            && self.rule == other.rule
            && self.name == other.name
            && self.algorithm == other.algorithm
            && numbers(self) == numbers(other)
    }
}

pub(super) fn run(insight: &Insight, terminal: &mut Terminal) -> u8 {
    match reported(insight) {
        Ok(limits) if insight.json => {
            let limits: Vec<_> = limits.iter().map(as_json).collect();
            terminal.json(&json!({ "limits": limits }));
            EXIT_OK
        }
        Ok(limits) => {
            let text = render::text(&limits, terminal);
            terminal.print(&text);
            EXIT_OK
        }
        Err((problem, code)) => {
            Problems::from(problem).print(insight.json, terminal);
            code
        }
    }
}

/// Asks all servers, and returns their limits. Limits that need attention come first.
fn reported(insight: &Insight) -> Result<Vec<Reported>, (Problem, u8)> {
    let wrong = |problem| (problem, EXIT_USAGE);
    let admins = insight.admin.iter().map(|url| Admin::parse(url)).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    let token = match &insight.admin_token_file {
        None => None,
        Some(path) => Some(secret_file::token(path, "--admin-token-file").map_err(wrong)?),
    };
    let mut limits: Vec<Limit> = Vec::new();
    for admin in &admins {
        let page = fetch::get(admin, "/insight?readings=true", token.as_deref());
        let page = page.map_err(|problem| (problem, EXIT_UNAVAILABLE))?;
        let page: Page = serde_json::from_str(&page).map_err(|error| {
            let what = format!("the answer of {admin} is no insight: {error}");
            (Problem::new(what, "use the address of spillgate's admin listener, of this version"), EXIT_UNAVAILABLE)
        })?;
        for limit in page.limits {
            match limits.iter_mut().find(|known| known.is(&limit)) {
                Some(known) => {
                    known.reading.merge(&limit.reading);
                    // This suggestion was made for one server. A suggestion for all of them has no rules file.
                    known.suggested_rules = None;
                }
                None => limits.push(limit),
            }
        }
    }
    let mut reported: Vec<_> =
        limits.into_iter().map(|limit| Reported { report: limit.reading.clone().report(), limit }).collect();
    reported.sort_by_key(|reported| render::attention(reported.report.verdict));
    Ok(reported)
}

/// Returns a limit in the same form as `GET /insight` has it.
fn as_json(reported: &Reported) -> Value {
    let Limit { domain, rule, name, file, line, algorithm, limit, window_ns, capacity, suggested_rules, .. } =
        &reported.limit;
    let named = json!({
        "domain": domain, "rule": rule, "name": name, "file": file, "line": line, "algorithm": algorithm,
        "limit": limit, "window_ns": window_ns, "capacity": capacity, "suggested_rules": suggested_rules,
    });
    let report = serde_json::to_value(&reported.report).expect("invariant: strings and numbers become JSON in memory");
    let members = |value| if let Value::Object(members) = value { members } else { Map::new() };
    let mut merged = members(named);
    merged.extend(members(report));
    Value::Object(merged)
}
