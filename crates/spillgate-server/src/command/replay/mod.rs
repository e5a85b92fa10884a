//! `spillgate replay`: decides the requests of access logs by rules files, and shows what the rules would have done.
//!
//! The folder `replay` decides, and the folder `access_log` reads. This command opens files, and prints.

mod inputs;
mod pass;
mod render;

use serde_json::{Value, json};

use super::insight::render::attention;
use super::terminal::{EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Problems, Terminal};
use crate::cli::Replay;
use crate::replay::page::page;
use crate::replay::report::{LogSummary, ReplayReport, SuggestionResult};
use crate::replay::{MAX_AT_ONCE, Names, Suggested, results, suggested};
use inputs::Inputs;
use pass::Passed;

pub(super) fn run(replay: &Replay, terminal: &mut Terminal) -> u8 {
    let report = match Inputs::read(replay).and_then(|inputs| report(replay, &inputs, terminal)) {
        Ok(report) => report,
        Err(problems) => {
            problems.print(replay.json, terminal);
            return EXIT_USAGE;
        }
    };
    if let Some(path) = &replay.html
        && let Err(error) = std::fs::write(path, page(&report))
    {
        let message = format!("the report {} cannot be written: {error}", path.display());
        let problem = Problem::new(message, "check the path after --html and its permissions");
        Problems::from(problem).print(replay.json, terminal);
        return EXIT_UNAVAILABLE;
    }
    if replay.json {
        let mut value = serde_json::to_value(&report).expect("invariant: strings and numbers become JSON in memory");
        if let Value::Object(members) = &mut value {
            members.insert("ok".to_owned(), json!(true));
        }
        terminal.json(&value);
    } else {
        let text = render::text(&report, terminal);
        terminal.print(&text);
    }
    EXIT_OK
}

/// Reads the log once, and again for suggestions.
fn report(replay: &Replay, inputs: &Inputs, terminal: &mut Terminal) -> Result<ReplayReport, Problems> {
    let names = if replay.anonymous { Names::hashed() } else { Names::plain() };
    let mut passed = pass::pass(inputs, inputs.first_runs(), inputs.old.is_some(), &names, terminal)?;
    let suggestions = match (replay.suggests, passed.replayed.runs.first()) {
        (true, Some(today)) => suggestions(inputs, &suggested(today), &names, terminal)?,
        _ => Vec::new(),
    };
    let mut runs = std::mem::take(&mut passed.replayed.runs);
    for run in &mut runs {
        run.limits
            .sort_by_key(|limit| limit.period.as_ref().map_or(u8::MAX, |period| attention(period.report.verdict)));
    }
    Ok(ReplayReport {
        notes: notes(&passed.log),
        comparison: passed.replayed.comparison.take(),
        runs,
        suggestions,
        anonymous: replay.anonymous,
        log: passed.log,
    })
}

/// Replays each suggestion beside the rules of today.
fn suggestions(
    inputs: &Inputs,
    suggested: &[Suggested],
    names: &Names,
    terminal: &mut Terminal,
) -> Result<Vec<SuggestionResult>, Problems> {
    let mut found = Vec::new();
    for suggested in suggested.chunks(MAX_AT_ONCE) {
        let (mut rules, mut possible) = (vec![inputs.new.clone()], Vec::new());
        for suggestion in suggested {
            if let Some(changed) = suggestion.apply(&inputs.new.rules) {
                rules.push(inputs.new.with(changed));
                possible.push(*suggestion);
            }
        }
        let Passed { replayed, .. } = pass::pass(inputs, rules, false, names, terminal)?;
        found.extend(results(&possible, &replayed));
    }
    Ok(found)
}

/// Returns what a log cannot show.
fn notes(log: &LogSummary) -> Vec<String> {
    let mut notes = vec![
        "The requests that are refused here were in fact served, so the log has no retries. Real callers may ask again after a \
         refusal. Because there are no retries, the higher end of each range of a burst needed is right."
            .to_owned(),
        "At the begin of the log, no units are used.".to_owned(),
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
