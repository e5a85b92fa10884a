//! `spillgate replay`: decides the requests of access logs by rules files, and shows what the rules would have done.
//!
//! The crate `spillgate-replay` reads the lines and decides the requests. This command opens the files, and prints the
//! result.

mod fields;
mod html_file;
mod inputs;
mod pass;
mod render;

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::terminal::{EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Problems, Terminal, clean};
use crate::cli::Replay;
use html_file::HtmlFile;
use inputs::Inputs;
use pass::Passed;
use spillgate_replay::page::page;
use spillgate_replay::report::{LogSummary, ReplayReport, RunReport, SuggestionResult};
use spillgate_replay::{MAX_AT_ONCE, Names, results, suggested};

pub(super) fn run(replay: &Replay, terminal: &mut Terminal) -> u8 {
    let inputs = match Inputs::read(replay) {
        Ok(inputs) => inputs,
        Err(problems) => return refuse(&problems, replay, terminal),
    };
    // Reading a log can take minutes. So the HTML file is opened first, and a wrong path is found at once.
    let read = || replay.logs.iter().chain(&replay.rules).chain(&replay.compare).chain(&replay.config);
    let html = match replay.html.as_deref().map(|path| HtmlFile::open(path, read())).transpose() {
        Ok(html) => html,
        Err(problem) => {
            Problems::from(problem).print(replay.json, terminal);
            return EXIT_UNAVAILABLE;
        }
    };
    match report(replay, &inputs, terminal) {
        Ok(report) => output(&report, html, replay.json, terminal),
        Err(problems) => {
            html.into_iter().for_each(HtmlFile::give_up);
            refuse(&problems, replay, terminal)
        }
    }
}

fn refuse(problems: &Problems, replay: &Replay, terminal: &mut Terminal) -> u8 {
    problems.print(replay.json, terminal);
    EXIT_USAGE
}

/// Writes all outputs. If the HTML file cannot be written, the other output is still complete.
fn output(report: &ReplayReport, html: Option<HtmlFile>, json: bool, terminal: &mut Terminal) -> u8 {
    let written = html.map_or(Ok(()), |file| file.write(&page(report)));
    if json {
        let mut value = serde_json::to_value(report).expect("invariant: strings and numbers become JSON in memory");
        if let Value::Object(members) = &mut value {
            members.insert("ok".to_owned(), json!(written.is_ok()));
        }
        terminal.json(&value);
    } else {
        let text = render::text(report, terminal);
        terminal.print(&text);
    }
    match written {
        Ok(()) => EXIT_OK,
        Err(problem) => {
            Problems::from(problem).print(false, terminal);
            EXIT_UNAVAILABLE
        }
    }
}

/// Reads the log once, and again for suggestions.
fn report(replay: &Replay, inputs: &Inputs, terminal: &mut Terminal) -> Result<ReplayReport, Problems> {
    let names = if replay.anonymous { Names::hashed() } else { Names::plain() };
    let mut passed = pass::pass(inputs, inputs.first_runs(), inputs.old.is_some(), &names, terminal)?;
    let requests = passed.log.requests;
    if passed.replayed.runs.iter().all(|run| run.unmatched_requests == requests) {
        return Err(unmatched(inputs).into());
    }
    let (suggestions, suggestion_notes) = match (replay.suggests, passed.replayed.runs.first()) {
        (true, Some(today)) => suggestions(inputs, today, &names, terminal)?,
        _ => Default::default(),
    };
    let mut runs = std::mem::take(&mut passed.replayed.runs);
    for run in &mut runs {
        run.limits.sort_by_key(|limit| {
            Reverse(limit.whole_log.as_ref().map_or(0, |whole_log| whole_log.verdict.attention(whole_log.who)))
        });
    }
    Ok(ReplayReport {
        notes: notes(&passed.log),
        comparison: passed.replayed.comparison.take(),
        runs,
        suggestions,
        suggestion_notes,
        anonymous: replay.anonymous,
        warnings: passed.warnings,
        log: passed.log,
    })
}

/// Returns the problem that the rules say nothing about the requests.
fn unmatched(inputs: &Inputs) -> Problem {
    /// Nobody would read a longer list.
    const RULES: usize = 10;
    let rules = inputs.new.rules.rules().filter(|rule| *rule.domain == *inputs.domain).map(|rule| &*rule.path);
    let rules: Vec<_> = rules.take(RULES).map(clean).collect();
    let message = format!("no rule of the domain `{}` matches a request of the log", inputs.domain);
    if rules.is_empty() {
        return Problem::new(message, "the domain has no rules: choose another one with --domain, or write a rule");
    }
    let help = format!("write each --descriptor with the keys of a rule, in the same order: {}", rules.join("; "));
    Problem::new(message, help)
}

/// Replays each suggestion beside the rules of today. Returns the results, and notes about them.
fn suggestions(
    inputs: &Inputs,
    today: &RunReport,
    names: &Names,
    terminal: &mut Terminal,
) -> Result<(Vec<SuggestionResult>, Vec<String>), Problems> {
    let (mut found, mut notes) = (Vec::new(), Vec::new());
    let suggested = suggested(today);
    if suggested.is_empty() {
        notes.push("Insight suggests nothing for these rules.".to_owned());
    }
    let rules = &inputs.new.rules;
    let (possible, impossible): (Vec<_>, Vec<_>) = suggested.into_iter().partition(|it| it.apply(rules).is_some());
    notes.extend(impossible.iter().map(|suggestion| suggestion.impossible(today)));
    for chunk in possible.chunks(MAX_AT_ONCE) {
        let changed = chunk.iter().filter_map(|suggestion| suggestion.apply(rules));
        let runs = std::iter::once(rules.clone()).chain(changed).map(|rules| inputs.new.with(rules)).collect();
        let Passed { replayed, .. } = pass::pass(inputs, runs, false, names, terminal)?;
        found.extend(results(chunk, &replayed));
    }
    if !found.is_empty() {
        notes.push(
            "A request passes only if each limit allows it, and a limit counts only requests that pass. So other limits can then \
             refuse other requests than today."
                .to_owned(),
        );
    }
    Ok((found, notes))
}

/// Returns what a log cannot show.
fn notes(log: &LogSummary) -> Vec<String> {
    let mut notes = vec![
        "The requests that are refused here were in fact served, so the log has no retries. Real callers may ask again after a \
         refusal. Because there are no retries, the higher end of each range of a burst needed is right."
            .to_owned(),
        "At the beginning of the log, no units are used.".to_owned(),
    ];
    if log.whole_seconds {
        notes.push(
            "The times of this log are whole seconds. So a burst needed can be wrong in each direction, by at most the units that \
             the rate allows in one second, rounded up. The time of a refusal can be early by up to a second."
                .to_owned(),
        );
    }
    notes
}
