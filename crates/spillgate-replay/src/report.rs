//! What a replay has found, as plain data. Every kind of output is made from it.
//!
//! Times are nanoseconds since 1970. A text that came from a log can have any characters: an output has to clean it.

use serde::Serialize;
use spillgate::insight::{Report, Verdict};
use spillgate::rules::LimitDescription;

use crate::callers::Names;
use crate::refusals::beginning;

/// The result of a replay.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayReport {
    /// What was read.
    pub log: LogSummary,
    /// The result of each set of rules. The first one is of the rules that the user asks about. The second one, if there is
    /// one, is of the rules that they are compared with.
    pub runs: Vec<RunReport>,
    /// What differs between the two runs.
    pub comparison: Option<Comparison>,
    /// What each suggestion of insight would do.
    pub suggestions: Vec<SuggestionResult>,
    /// Why suggestions are missing, in whole sentences, and what to know of their results. Empty if no suggestion was asked for.
    pub suggestion_notes: Vec<String>,
    /// Whether callers are hidden: their names are hashes, and no line of the log is in this report.
    pub anonymous: bool,
    /// What the log cannot show, in whole sentences. Each output has to say it.
    pub notes: Vec<String>,
}

/// The log that was replayed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogSummary {
    /// The names of the files, in the order in which they were given.
    pub files: Vec<String>,
    /// The format, as the user wrote it.
    pub format: String,
    /// The templates of the descriptors, as the user wrote them.
    pub descriptors: Vec<String>,
    /// All lines that were read.
    pub lines: u64,
    /// The bytes of these lines, after decompression.
    pub bytes: u64,
    /// The requests that were decided.
    pub requests: u64,
    /// Lines that could not be read.
    pub unreadable: Samples,
    /// Lines that were further out of order than allowed. They were decided at the time of the newest line before them.
    pub late: Samples,
    /// Lines that lack a field of every descriptor. They were not decided.
    pub without_descriptor: u64,
    /// Requests that a server would not decide, because they exceed a bound of its settings.
    pub not_decided: Samples,
    /// The time of the first request.
    pub from_ns: u64,
    /// The time of the last request.
    pub to_ns: u64,
    /// Whether all times are whole seconds, so that a time is early by less than a second.
    pub whole_seconds: bool,
}

/// The lines of each kind that are kept.
const SAMPLES: usize = 5;
/// The most bytes of such a line.
const SAMPLE_BYTES: usize = 200;

/// Lines of one kind: how many there are, and the first ones. `F` says which file a line is from: its name, or its index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Samples<F = String> {
    /// The number of lines.
    pub count: u64,
    /// The first lines, at most five.
    pub first: Vec<SampleLine<F>>,
}

/// A line of the log. It is hostile text: clean it before it reaches a terminal or a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SampleLine<F = String> {
    /// The file.
    pub file: F,
    /// The number of the line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
    /// The first 200 bytes of the line. Bytes that are not UTF-8 are replaced. `None` if callers are hidden.
    pub text: Option<String>,
}

impl<F> Samples<F> {
    /// Counts a line, and keeps it if it is one of the first. `about` returns its file, and what is wrong with it.
    pub fn add(&mut self, line: u64, text: &[u8], about: impl FnOnce() -> (F, String)) {
        self.count += 1;
        if self.first.len() < SAMPLES {
            let ((file, why), text) = (about(), Some(beginning(text, SAMPLE_BYTES)));
            self.first.push(SampleLine { file, line, why, text });
        }
    }

    /// Returns the same lines with the names of their files, which `name` finds.
    pub fn named(&self, name: impl Fn(&F) -> String) -> Samples {
        let named = |sample: &SampleLine<F>| SampleLine {
            file: name(&sample.file),
            line: sample.line,
            why: sample.why.clone(),
            text: sample.text.clone(),
        };
        Samples { count: self.count, first: self.first.iter().map(named).collect() }
    }

    /// Removes the texts if callers are hidden.
    pub fn hide(&mut self, names: &Names) {
        if names.are_hidden() {
            self.first.iter_mut().for_each(|line| line.text = None);
        }
    }
}

/// What one set of rules does to the requests of the log.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunReport {
    /// The names of the rules files.
    pub name: String,
    /// Requests that pass.
    pub allowed_requests: u64,
    /// Requests that are refused.
    pub refused_requests: u64,
    /// Requests that no rule matches.
    pub unmatched_requests: u64,
    /// Requests that are refused because the memory store is full. No limit counts them.
    pub store_full_requests: u64,
    /// Each limit of the rules. Limits that need attention come first.
    pub limits: Vec<LimitReport>,
    /// All requests over time.
    pub timeline: Timeline,
}

/// What one limit does.
#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    /// The limit.
    pub limit: LimitDescription,
    /// Why the figures of this limit say little. For example, a log does not say when a request has ended, so a concurrency
    /// limit cannot be replayed.
    pub note: Option<String>,
    /// Requests that the limit allows.
    pub allowed_requests: u64,
    /// Requests that the limit refuses. If it is in shadow mode, such a request passes nevertheless.
    pub refused_requests: u64,
    /// Units that the limit allows.
    pub allowed_units: u64,
    /// Units that the limit refuses.
    pub refused_units: u64,
    /// Requests of this limit over time.
    pub timeline: Timeline,
    /// The callers of the limit in the whole log.
    pub callers: LimitCallers,
    /// The first refusals, in the order of their times.
    pub first_refusals: Vec<Refusal>,
    /// The refusals with the longest waits, the longest one first.
    pub longest_refusals: Vec<Refusal>,
    /// How many readings of insight have which verdict. Insight is read at the end of each hour with requests, and at the end of the
    /// log.
    pub hours: Vec<VerdictHours>,
    /// The hour that needs the most attention. `None` if the limit got no request, or is not watched.
    pub period: Option<Period>,
}

/// The callers of one limit in the whole log. Their counts are exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LimitCallers {
    /// The number of callers that are counted one by one.
    pub counted: u64,
    /// The callers with the most refused requests.
    pub top_refused: Vec<CallerCounts>,
    /// The callers with the most allowed requests.
    pub top_allowed: Vec<CallerCounts>,
    /// The requests of all further callers together. A replay counts at most 100,000 callers of all limits one by one: those that
    /// come first.
    pub further: Counts,
}

/// A caller with its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallerCounts {
    /// The descriptor.
    pub caller: String,
    /// Its requests.
    #[serde(flatten)]
    pub counts: Counts,
}

/// The number of readings with a verdict, each of an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VerdictHours {
    /// The verdict.
    pub verdict: Verdict,
    /// The number of readings.
    pub hours: u64,
}

/// The insight of one hour of the log, as a server reports it at the end of this hour. A reading at the end of the log can have some
/// minutes more in its counts, because insight counts in slots of several minutes.
#[derive(Clone, Debug, Serialize)]
pub struct Period {
    /// An hour before the reading, or the beginning of the log.
    pub from_ns: u64,
    /// The time of the reading: the last nanosecond of an hour of UTC, or the end of the log if the log ends more than a minute
    /// before.
    pub to_ns: u64,
    /// What insight reports at the end of the hour.
    pub report: Report,
    /// The suggestion as a rules file.
    pub suggested_rules: Option<String>,
    /// How many callers of the sample need which burst. Empty if the limit has no rate.
    pub burst_needed: Vec<Bar>,
    /// How many callers of the sample use which share of the limit at their highest, in percent.
    pub used: Vec<Bar>,
    /// A burst needed is wrong by less than this many units in each direction, because the log has whole seconds. `None` if
    /// the log has fractions of seconds, or the limit has no rate.
    pub burst_error_units: Option<f64>,
}

/// One bar of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// The callers of this bar have more than the bar before, and at most this. `None` for the bar that has no end.
    pub at_most: Option<f64>,
    /// The number of callers.
    pub callers: u64,
}

/// Requests over time, in steps of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The beginning of the first step.
    pub begin_ns: u64,
    /// The length of a step.
    pub step_ns: u64,
    /// The requests of each step, at most 240 steps.
    pub points: Vec<Counts>,
}

/// Requests that were allowed and refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests that pass.
    pub allowed: u64,
    /// Requests that are refused.
    pub refused: u64,
}

/// A refused request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The file of its line.
    pub file: String,
    /// The number of its line, from 1.
    pub line: u64,
    /// The time at which it was decided.
    pub time_ns: u64,
    /// The beginning of its line. `None` if callers are hidden.
    pub text: Option<String>,
    /// The descriptor that was refused.
    pub caller: String,
    /// How long the caller has to wait. `None` if it is not known, or no time is enough.
    pub wait_ns: Option<u64>,
}

/// What changes from the old rules to the new ones.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    /// The names of the old rules files.
    pub old: String,
    /// The names of the new rules files.
    pub new: String,
    /// How the two sets of rules answer the same requests.
    pub requests: Agreement,
    /// Each limit of the old or the new rules.
    pub limits: Vec<LimitChange>,
    /// The callers for whom the number of refusals changes, those with the greatest change first.
    pub callers: Vec<CallerChange>,
    /// Further callers for whom the number of refusals changes.
    pub further_callers: u64,
    /// Whether there were too many callers to compare all of them. Then the requests of the last ones are not in `callers`.
    pub callers_incomplete: bool,
}

/// How two sets of rules answer the same requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Agreement {
    /// Both allow the request.
    pub both_allow: u64,
    /// Both refuse the request.
    pub both_refuse: u64,
    /// Only the first one refuses the request: the old rules, or the rules of today.
    pub only_old_refuses: u64,
    /// Only the second one refuses the request: the new rules, or the suggested ones.
    pub only_new_refuses: u64,
}

/// What changes for a limit.
#[derive(Clone, Debug, Serialize)]
pub struct LimitChange {
    /// The domain of the rule.
    pub domain: String,
    /// The keys and values of the rule.
    pub rule: String,
    /// The name of the limit.
    pub name: Option<String>,
    /// The requests of the limit in the old rules. `None` if the old rules do not have it.
    pub old: Option<Counts>,
    /// The requests of the limit in the new rules. `None` if the new rules do not have it.
    pub new: Option<Counts>,
}

/// What changes for a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallerChange {
    /// The descriptor.
    pub caller: String,
    /// All requests of the caller.
    pub requests: u64,
    /// The requests that the old rules refuse.
    pub old_refused: u64,
    /// The requests that the new rules refuse.
    pub new_refused: u64,
}

/// What a suggestion would do.
#[derive(Clone, Debug, Serialize)]
pub struct SuggestionResult {
    /// The limit as it is today.
    pub limit: LimitDescription,
    /// The units of each window that are suggested.
    pub suggested_limit: u64,
    /// The burst that is suggested, if the suggestion has one.
    pub suggested_burst: Option<u64>,
    /// The suggestion as a rules file.
    pub suggested_rules: String,
    /// The requests of the limit today.
    pub today: Counts,
    /// The requests of the limit with the suggestion.
    pub then: Counts,
    /// How both answer the same requests, with all other limits as they are.
    pub requests: Agreement,
    /// The verdict of today, on the hour that needs the most attention.
    pub verdict_today: Verdict,
    /// The verdict with the suggestion, on the hour that then needs the most attention.
    pub verdict_then: Option<Verdict>,
}
