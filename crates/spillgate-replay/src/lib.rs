//! Replays the requests of a log with any rules, on a virtual clock, and shows what the rules would have done.
//!
//! The service of the server decides the requests, so the answers are those of a server. This crate opens no file and
//! prints nothing.

pub mod access_log;
mod calendar;
mod callers;
mod compare;
mod modifier;
pub mod page;
mod period;
mod refusals;
pub mod report;
mod run;
#[cfg(test)]
mod sample;
mod suggest;
mod template;
mod timeline;
mod whole_log;

use spillgate::Time;
use spillgate::rules::Request;

pub use calendar::utc;
pub use callers::{CALLERS, Names};
pub use modifier::ClientSettings;
pub use run::{Decided, Run, RunOptions};
pub use suggest::{MAX_AT_ONCE, Suggested, results, suggested};
pub use template::{Filled, TemplateError, Templates};

use compare::Callers;
use report::{Agreement, Comparison, RunReport, Samples};
use spillgate_service::ServiceError;

/// A request of the log.
#[derive(Clone, Copy, Debug)]
pub struct LoggedRequest<'a> {
    /// When the request is decided. A late line is decided at a later time than its own.
    pub time: Time,
    /// The name of the log file.
    pub file: &'a str,
    /// The number of the line in this file, from 1.
    pub line: u64,
    /// The whole line, without its line end.
    pub text: &'a [u8],
}

/// Several runs that decide the same requests.
#[derive(Debug)]
pub struct Replay {
    runs: Vec<Run>,
    /// How each run after the first one answers, compared with the first one.
    agreements: Vec<Agreement>,
    /// The callers of the first two runs, if they are compared.
    callers: Option<Callers>,
    decided: Vec<Decided>,
    not_decided: Samples,
    requests: u64,
}

/// What a replay has found.
#[derive(Debug)]
pub struct Replayed {
    /// The report of each run, in the order of the runs.
    pub runs: Vec<RunReport>,
    /// How each run after the first one answers, compared with the first one. If rules are compared, the first run has
    /// the new rules. If suggestions are tried, the first run has the rules of today.
    pub agreements: Vec<Agreement>,
    /// The comparison of the second run (the old rules) with the first one (the new rules).
    pub comparison: Option<Comparison>,
    /// The requests that were not decided.
    pub not_decided: Samples,
    /// The number of requests that were decided.
    pub requests: u64,
}

impl Replay {
    /// Makes a replay. If `compares` is true, there are two runs: first the new rules, then the old ones.
    #[must_use]
    pub fn new(runs: Vec<Run>, compares: bool) -> Replay {
        Replay {
            agreements: vec![Agreement::default(); runs.len().saturating_sub(1)],
            decided: Vec::with_capacity(runs.len()),
            callers: compares.then(Callers::new),
            runs,
            not_decided: Samples::default(),
            requests: 0,
        }
    }

    /// Decides a request with all runs. Returns the answer of the first run, or `None` if the request exceeds a bound.
    pub fn decide(&mut self, logged: &LoggedRequest<'_>, request: &Request<'_>) -> Option<&Decided> {
        self.decided.clear();
        for run in &mut self.runs {
            match run.decide(logged, request) {
                Ok(decided) => self.decided.push(decided),
                Err(error) => {
                    self.reject(logged, &error);
                    return None;
                }
            }
        }
        self.requests += 1;
        let (first, others) = self.decided.split_first()?;
        for (agreement, other) in self.agreements.iter_mut().zip(others) {
            let (old, new) = if self.callers.is_some() { (other, first) } else { (first, other) };
            agreement.add(old.allowed, new.allowed);
        }
        if let (Some(callers), Some(old)) = (&mut self.callers, others.first()) {
            callers.add(request, old, first);
        }
        Some(first)
    }

    #[cold]
    fn reject(&mut self, logged: &LoggedRequest<'_>, error: &ServiceError) {
        self.not_decided.add(logged.line, logged.text, || (logged.file.to_owned(), error.to_string()));
    }

    /// Ends the replay. `whole_seconds` says whether the log writes its times in whole seconds.
    #[must_use]
    pub fn finish(self, whole_seconds: bool, names: &Names) -> Replayed {
        let comparison = match (self.callers, &self.runs[..], self.agreements.first()) {
            (Some(callers), [new, old, ..], Some(requests)) => {
                Some(compare::comparison((old, new), *requests, callers, names))
            }
            _ => None,
        };
        let mut not_decided = self.not_decided;
        not_decided.hide(names);
        Replayed {
            runs: self.runs.into_iter().map(|run| run.finish(whole_seconds, names)).collect(),
            agreements: self.agreements,
            comparison,
            not_decided,
            requests: self.requests,
        }
    }
}
