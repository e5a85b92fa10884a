//! `spillgate insight`: shows what each limit does to its callers.
//!
//! The limits of several servers are shown as one. A server that does not answer is an error, but the others are still
//! shown.

mod merge;
pub(super) mod page;
pub(super) mod render;

use std::cmp::Reverse;

use serde_json::{Map, Value, json};
use spillgate::insight::{OtherLimit, Report};

use super::admin::client::{self, Admin, NO_ADMIN, TlsOptions};
use super::admin::rule_name::chosen;
use super::terminal::{EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Problems, Terminal, count, diagnostic_json};
use crate::cli::Insight;
use merge::Fleet;
use page::{Limit, Page};

/// A limit with its report.
struct Reported {
    limit: Limit,
    report: Report,
    /// What the limit that was asked about would have changed. `None` if none was, or if nobody can know.
    with_limit: Option<OtherLimit>,
}

/// The merged answers of all servers.
struct Answers {
    /// Limits that need attention come first.
    limits: Vec<Reported>,
    servers: usize,
    callers_match: bool,
    unwatched_limits: u64,
    /// What the reader of the answer has to know.
    notes: Vec<String>,
    problems: Vec<Problem>,
}

pub(super) fn run(insight: &Insight, terminal: &mut Terminal) -> u8 {
    let answers = match ask(insight, terminal) {
        Ok(answers) => answers,
        Err(problem) => {
            Problems::from(problem).print(insight.json, terminal);
            return EXIT_USAGE;
        }
    };
    let code = if answers.problems.is_empty() { EXIT_OK } else { EXIT_UNAVAILABLE };
    if insight.json {
        terminal.json(&as_json(answers));
        return code;
    }
    if answers.servers > 0 {
        let text = render::text(&answers.limits, insight.with_limit, terminal);
        terminal.print(&text);
    }
    for note in &answers.notes {
        terminal.complain(&format!("note: {note}"));
    }
    for problem in answers.problems {
        Problems::from(problem).print(false, terminal);
    }
    code
}

/// Asks all servers, and merges their answers.
fn ask(insight: &Insight, terminal: &mut Terminal) -> Result<Answers, Problem> {
    let tls = TlsOptions::new(&insight.tls)?;
    let admins = match &insight.admin[..] {
        [] => vec![client::address(None, &tls)?],
        urls => urls.iter().map(|url| Admin::parse(url, &tls, NO_ADMIN)).collect::<Result<Vec<_>, _>>()?,
    };
    let token = client::token(insight.admin_token_file.as_deref())?;
    let (mut fleet, mut problems, mut notes) = (Fleet::default(), Vec::new(), Vec::new());
    let answered = |admin: &Admin, body: Result<bytes::Bytes, Problem>| match body
        .and_then(|body| Page::parse(admin, &body))
        .map(|page| fleet.add(admin, page))
    {
        Ok(Ok(())) => {}
        Ok(Err(same)) => notes.push(format!("{admin} and {same} are the same server, which counts once")),
        Err(problem) => problems.push(problem),
    };
    let mut waited = false;
    let waiting = |late| {
        terminal.progress(&format!("waiting for {late} of {}", count(admins.len(), "server")));
        waited = true;
    };
    client::get_all(&admins, ("/insight?readings=true", token.as_deref()), answered, waiting)?;
    if waited {
        terminal.progress("");
    }
    let (servers, callers_match, unwatched_limits) = (fleet.servers(), fleet.callers_match(), fleet.unwatched_limits());
    if !callers_match {
        notes.push("the servers have no common store.key_secret_file, so a caller of two servers counts as two".into());
    }
    if unwatched_limits > 0 {
        let limits = count(usize::try_from(unwatched_limits).unwrap_or(usize::MAX), "limit");
        notes.push(format!("{limits} of the rules cannot be shown, because insight.max_callers is too small"));
    }
    // If no server has answered, nobody knows which names are right.
    let asked = (insight.rule.as_deref(), insight.domain.as_deref());
    let limits =
        if servers > 0 { chosen(fleet.limits, |limit| &limit.name, asked, "spillgate insight")? } else { Vec::new() };
    let report = |limit: Limit| Reported {
        report: limit.reading.report(),
        with_limit: insight.with_limit.and_then(|units| limit.reading.with_limit(units)),
        limit,
    };
    let mut limits: Vec<_> = limits.into_iter().map(report).collect();
    limits.sort_by_key(|Reported { report, .. }| {
        let [.., hour] = &report.spans;
        Reverse((report.verdict.attention(report.who), hour.counts.refused_units, hour.counts.refused_requests))
    });
    Ok(Answers { limits, servers, callers_match, unwatched_limits, notes, problems })
}

fn as_json(answers: Answers) -> Value {
    let limits: Vec<_> = answers.limits.iter().map(limit_as_json).collect();
    let errors: Vec<_> = answers.problems.into_iter().map(|problem| diagnostic_json(&problem.into())).collect();
    json!({
        "ok": errors.is_empty(), "servers": answers.servers, "callers_match": answers.callers_match,
        "unwatched_limits": answers.unwatched_limits, "limits": limits, "notes": answers.notes, "errors": errors,
    })
}

/// Returns a limit in the same form as `GET /insight` has it.
fn limit_as_json(reported: &Reported) -> Value {
    let Limit { name, suggested_rules, by, shared, .. } = &reported.limit;
    let json = |value: Result<Value, _>| value.expect("invariant: strings and numbers become JSON in memory");
    let mut merged = Map::new();
    for part in [
        json(serde_json::to_value(name)),
        json!({ "suggested_rules": suggested_rules, "advice": reported.report.verdict.advice(reported.report.who) }),
        json!({ "by": by, "shared": shared }),
        reported.with_limit.as_ref().map_or(Value::Null, |other| json!({ "with_limit": other })),
        json(serde_json::to_value(&reported.report)),
    ] {
        if let Value::Object(members) = part {
            merged.extend(members);
        }
    }
    Value::Object(merged)
}
