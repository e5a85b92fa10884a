//! What a replay has found, as plain data. Every kind of output is made from it.
//!
//! Times are nanoseconds since 1970. A text that came from a log can have any characters: an output has to clean it.

use serde::Serialize;
use spillgate::insight::{Report, Suggestion, Verdict, Who};
use spillgate::rules::LimitDescription;

use crate::callers::Names;
use crate::refusals::beginning;

/// The result of a replay.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayReport {
    pub log: LogSummary,
    /// Values of the log that a server would count in another way, and how to fix it, in whole sentences. Each output
    /// has to show these sentences before the figures, because the figures can be wrong.
    pub warnings: Vec<String>,
    /// The result of each set of rules. First come the rules that the user asks about, then the rules that they are
    /// compared with, if any.
    pub runs: Vec<RunReport>,
    /// What differs between the two sets of rules. `None` if only one set was given.
    pub comparison: Option<Comparison>,
    /// The effect of each suggestion of insight.
    pub suggestions: Vec<SuggestionResult>,
    /// Why suggestions are missing, and how to read their results, in whole sentences. Empty if no suggestion was asked
    /// for.
    pub suggestion_notes: Vec<String>,
    /// Whether callers are hidden: their names are hashes, and no line of the log is in this report.
    pub anonymous: bool,
    /// What the log cannot show, in whole sentences. Each output has to show these sentences.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct LogSummary {
    /// The names of the files, in the order in which they were given.
    pub files: Vec<String>,
    /// The format, as the user wrote it.
    pub format: String,
    /// The templates of the descriptors, as the user wrote them.
    pub descriptors: Vec<String>,
    /// All lines that were read, without the lines that name the columns of CSV files.
    pub lines: u64,
    /// The bytes that were read, after decompression.
    pub bytes: u64,
    pub requests: u64,
    /// Lines that could not be read.
    pub unreadable: Samples,
    /// Lines that were further out of order than allowed. They were decided at the time of the newest line before them.
    pub late: Samples,
    /// The number of lines from which no descriptor could be made, because each descriptor needs a field that the line
    /// does not have. These lines were not decided.
    pub without_descriptor: u64,
    /// Requests that a server would not decide, because they exceed a bound of its settings.
    pub not_decided: Samples,
    /// The time of the first request.
    pub from_ns: u64,
    /// The time of the last request.
    pub to_ns: u64,
    /// Whether the log writes its times in whole seconds, so that a time is early by less than a second. This is true
    /// if at least half of the times have no fraction of a second.
    pub whole_seconds: bool,
}

/// How many lines of each kind are kept.
const SAMPLES: usize = 5;
/// How many bytes of each of these lines are kept.
const SAMPLE_BYTES: usize = 200;

/// Lines of one kind: how many there are, and the first ones. `F` says which file a line is from: its name, or its
/// index.
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
    /// The name of the file, or its index in the list of files.
    pub file: F,
    /// The number of the line, from 1.
    pub line: u64,
    /// What is wrong with the line.
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
    /// The names of the rules files, as one text.
    pub name: String,
    pub allowed_requests: u64,
    pub refused_requests: u64,
    /// Requests that no rule matches.
    pub unmatched_requests: u64,
    /// Requests that are refused because the memory store is full. No limit counts them.
    pub store_full_requests: u64,
    /// Each limit of the rules. Limits that need attention come first.
    pub limits: Vec<LimitReport>,
    pub timeline: Timeline,
}

#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    pub limit: LimitDescription,
    /// Why the figures of this limit say little. For example, a concurrency limit cannot be replayed, because a log
    /// does not say when a request has ended.
    pub note: Option<String>,
    pub allowed_requests: u64,
    /// Requests that the limit refuses. In shadow mode, these requests pass nevertheless.
    pub refused_requests: u64,
    pub allowed_units: u64,
    pub refused_units: u64,
    pub timeline: Timeline,
    /// The callers of the limit in the whole log.
    pub callers: LimitCallers,
    /// The first refusals, in the order of their times.
    pub first_refusals: Vec<Refusal>,
    /// The refusals with the longest waits, the longest one first.
    pub longest_refusals: Vec<Refusal>,
    /// How many readings of insight have which verdict. Insight is read at the end of each hour with requests, and at
    /// the end of the log.
    pub hours: Vec<VerdictHours>,
    /// The verdict over the whole log. `None` if the limit got no request, or is not watched.
    pub whole_log: Option<WholeLog>,
    /// The hour with the most refusals. If the limit refuses nothing, the hour in which a caller used most of it. `None`
    /// if the limit got no request, or is not watched.
    pub period: Option<Period>,
}

/// The verdict on a limit over the whole log: that of the hours with most requests. If the limit refuses more than a tenth
/// of its requests, it is that of the hours with most refusals.
#[derive(Clone, Debug, Serialize)]
pub struct WholeLog {
    pub verdict: Verdict,
    /// Whose requests are refused: one caller or a few callers have at least 80 % of the refused requests.
    pub who: Who,
    /// What the limit did in the whole log, in whole sentences. It can name a caller.
    pub reason: String,
    /// The suggestion of the hour in [`LimitReport::period`], if this hour has the same verdict and the same
    /// `who`.
    pub suggestion: Option<Suggestion>,
    /// The suggestion as a rules file.
    pub suggested_rules: Option<String>,
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
    /// The requests of all other callers together. A replay counts only the first 100,000 callers of all limits one by
    /// one.
    pub further: Counts,
}

/// A caller with its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallerCounts {
    /// The descriptor of the caller, or a hash if callers are hidden.
    pub caller: String,
    #[serde(flatten)]
    pub counts: Counts,
}

/// The number of hours of the log with one verdict and one `who`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VerdictHours {
    pub verdict: Verdict,
    /// Whose units were refused.
    pub who: Who,
    pub hours: u64,
    /// The requests of these hours. Each request of the log counts in one hour of UTC.
    pub requests: u64,
    pub refused_requests: u64,
    /// How many of these hours have refusals.
    pub refusing_hours: u64,
}

/// The insight of one hour of the log, as a server reports it at the end of this hour. A reading at the end of the log
/// can count some minutes more, because insight counts in slots of several minutes.
#[derive(Clone, Debug, Serialize)]
pub struct Period {
    /// An hour before the reading, or the beginning of the log if that is later.
    pub from_ns: u64,
    /// The time of the reading: the last nanosecond of an hour of UTC. If the log ends more than a minute before that,
    /// it is the end of the log.
    pub to_ns: u64,
    pub report: Report,
    /// The suggestion of insight as a rules file, if there is one.
    pub suggested_rules: Option<String>,
    /// The callers of the sample by the burst that they need, in units. Empty if the limit has no rate.
    pub burst_needed: Vec<Bar>,
    /// The callers of the sample by their highest use of the limit, in percent.
    pub used: Vec<Bar>,
    /// A needed burst is wrong by less than this many units in each direction, because the log has whole seconds.
    /// `None` if the log has fractions of seconds, or the limit has no rate.
    pub burst_error_units: Option<f64>,
}

/// One bar of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// The upper end of the bar. Its callers have more than the upper end of the bar before, and at most this. `None`
    /// if there is no upper end.
    pub at_most: Option<f64>,
    pub callers: u64,
}

/// Requests over time, in steps of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The beginning of the first step.
    pub begin_ns: u64,
    pub step_ns: u64,
    /// At most 240 steps.
    pub points: Vec<Counts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub allowed: u64,
    pub refused: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The name of the log file.
    pub file: String,
    /// The number of the line in this file, from 1.
    pub line: u64,
    /// When the request was decided.
    pub time_ns: u64,
    /// The beginning of the line. `None` if callers are hidden.
    pub text: Option<String>,
    /// The descriptor that was refused, or a hash if callers are hidden.
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
    /// Each limit that the old or the new rules have.
    pub limits: Vec<LimitChange>,
    /// The callers for whom the number of refusals changes, those with the greatest change first.
    pub callers: Vec<CallerChange>,
    /// The number of callers whose refusals change too, but who are not in `callers`.
    pub further_callers: u64,
    /// Whether there were too many callers to compare all of them. Then requests of callers that came last are not in
    /// `callers`.
    pub callers_incomplete: bool,
}

/// How two sets of rules answer the same requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Agreement {
    pub both_allow: u64,
    pub both_refuse: u64,
    /// Requests that only the old rules refuse. For a suggestion, the old rules are those of today.
    pub only_old_refuses: u64,
    /// Requests that only the new rules refuse. For a suggestion, the new rules are those with the suggestion.
    pub only_new_refuses: u64,
}

/// What changes for a limit.
#[derive(Clone, Debug, Serialize)]
pub struct LimitChange {
    pub domain: String,
    /// The keys and values of the rule.
    pub rule: String,
    /// `None` if the limit has no name.
    pub name: Option<String>,
    /// The requests of the limit under the old rules. `None` if only the new rules have the limit.
    pub old: Option<Counts>,
    /// The requests of the limit under the new rules. `None` if only the old rules have the limit.
    pub new: Option<Counts>,
}

/// What changes for a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallerChange {
    /// The descriptor of the caller, or a hash if callers are hidden.
    pub caller: String,
    pub requests: u64,
    pub old_refused: u64,
    pub new_refused: u64,
}

/// What a suggestion would do.
#[derive(Clone, Debug, Serialize)]
pub struct SuggestionResult {
    /// The limit as it is today.
    pub limit: LimitDescription,
    /// The suggested number of units in each window.
    pub suggested_limit: u64,
    /// The suggested burst. `None` if the suggestion has no burst.
    pub suggested_burst: Option<u64>,
    /// The suggestion as a rules file.
    pub suggested_rules: String,
    /// The requests of the limit today.
    pub today: Counts,
    /// The requests of the limit with the suggestion.
    pub then: Counts,
    /// How all rules together answer the same requests, today and with the suggestion.
    pub requests: Agreement,
    /// The verdict of today over the whole log.
    pub verdict_today: Verdict,
    /// Whose requests are refused today, in the whole log.
    pub who_today: Who,
    /// The verdict with the suggestion over the whole log.
    pub verdict_then: Option<Verdict>,
    /// Whose requests are refused with the suggestion, in the whole log.
    pub who_then: Option<Who>,
}
