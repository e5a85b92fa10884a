//! Reads files again while the server runs: when one of them has changed, on SIGHUP, and when an operator requests it
//! (`POST /reload`).
//!
//! One thread follows all units. It takes each unit whole or not at all, and a unit that fails keeps no other unit from
//! being taken. Each reading has a time limit and a thread of its own, so a disk that does not answer cannot block the
//! signals, and the server can still be stopped.

mod certificates;
mod events;
mod folders;
mod key_secret;
mod looks;
mod reader;
mod rules;
mod settings;
mod tokens;
mod unit;
mod watcher;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use spillgate::rules::{Diagnostic, RulesFile};
use spillgate_admin::Access;
use spillgate_service::Service;
use spillgate_service::reload_requests::{Next, ReloadError, ReloadErrors, ReloadQueue, ReloadRequests, Reloaded};
use spillgate_service::reloads::{Cause, Lines, LoadedCounts, Outcome, Reload, ReloadHistory, UnitName, UnitOutcome};
use tokio::time::Instant;

use super::certificates::Certificates;
use crate::cli::Serve;
use crate::command::terminal::{Problem, Problems};
use crate::settings::{Resolved, masked};
use certificates::{ClientCaUnit, PairUnit};
use key_secret::KeySecretUnit;
use looks::Looks;
use reader::Reader;
use rules::RulesUnit;
use settings::SettingsUnit;
use tokens::TokensUnit;
use unit::{Seen, Unit};
use watcher::Watcher;

/// What the server has read at its start, and where the units can be replaced.
pub(super) struct Started<'s> {
    pub(super) service: &'s Arc<Service>,
    pub(super) access: &'s Access,
    pub(super) serve: &'s Serve,
    pub(super) resolved: Resolved,
    /// The hash of the rules files of the start.
    pub(super) rules: RulesSeen,
    /// `None` if no listener has TLS.
    pub(super) certificates: Option<Certificates>,
}

/// The hash of the rules files with which the server starts. So a change between the start and the first look is seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct RulesSeen(Seen);

impl RulesSeen {
    /// Takes the files, so that their texts are not in memory while the server runs.
    pub(super) fn of(files: Vec<RulesFile>) -> RulesSeen {
        RulesSeen(rules::seen(&files))
    }
}

/// Starts the thread that follows all units. `requests` and `queue` are the two ends of the requests for reloads.
/// `history` gets each reload.
pub(super) fn start(
    started: Started<'_>,
    (requests, queue): (ReloadRequests, ReloadQueue),
    history: ReloadHistory,
) -> io::Result<()> {
    let Started { service, access, serve, resolved, rules: seen, certificates } = started;
    let settings = resolved.settings.clone();
    let mut units: Vec<Box<dyn Unit>> = Vec::new();
    units.extend(SettingsUnit::new(service, serve, resolved).map(|unit| Box::new(unit) as Box<dyn Unit>));
    units.push(Box::new(RulesUnit::new(Arc::clone(service), settings.clone())));
    units.extend(TokensUnit::new(&settings, access).map(|unit| Box::new(unit) as Box<dyn Unit>));
    if let Some(certificates) = &certificates {
        units.push(Box::new(PairUnit::new(certificates)));
        units.extend(ClientCaUnit::new(certificates).map(|unit| Box::new(unit) as Box<dyn Unit>));
    }
    units.extend(KeySecretUnit::new(service, &settings).map(|unit| Box::new(unit) as Box<dyn Unit>));
    let watcher = Watcher::new(settings.watch, requests, Arc::clone(service.metrics()));
    let followed = units.into_iter().map(|unit| {
        // A unit whose content at the start is not known is taken once. If nothing has changed, nobody notices it.
        let tried = (unit.name() == UnitName::Rules).then_some(seen.0);
        Followed { unit, reader: Reader::default(), tried, seen: None, has_failed: false }
    });
    let mut reloader = Reloader {
        service: Arc::clone(service),
        history,
        units: followed.collect(),
        watcher,
        looks: Looks::new(settings.watch),
    };
    thread::Builder::new().name("reload".into()).spawn(move || reloader.run(&queue)).map(drop)
}

/// A unit, and what is known of its files.
struct Followed {
    unit: Box<dyn Unit>,
    reader: Reader,
    /// What was last taken or refused.
    tried: Option<Seen>,
    /// What the last look has seen, if it differs from what was last tried.
    seen: Option<Seen>,
    has_failed: bool,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// What was last tried.
    Same,
    /// Something new, which may still be changing.
    Unsettled,
    /// Something new, which the look before has seen too.
    Settled,
}

impl Followed {
    /// Reads the files, and keeps what they say if it is settled.
    fn look(&mut self) -> Found {
        let now = self.unit.read(&mut self.reader);
        let found = match (self.tried == Some(now), self.seen == Some(now)) {
            (true, _) => Found::Same,
            (false, true) => Found::Settled,
            (false, false) => Found::Unsettled,
        };
        self.seen = (found != Found::Same).then_some(now);
        if found != Found::Settled {
            self.unit.forget();
        }
        found
    }
}

struct Reloader {
    service: Arc<Service>,
    history: ReloadHistory,
    units: Vec<Followed>,
    watcher: Watcher,
    looks: Looks,
}

impl Reloader {
    fn run(&mut self, queue: &ReloadQueue) {
        loop {
            match queue.next(self.looks.wait(Instant::now())) {
                Next::Reload(waiters) => {
                    for followed in &mut self.units {
                        followed.seen = Some(followed.unit.read(&mut followed.reader));
                    }
                    let reloaded = self.reload(waiters.cause(), |_| true);
                    waiters.answer(&Arc::new(reloaded));
                }
                Next::Changed => self.looks.hurry(),
                Next::Late if self.looks.are_due(Instant::now()) => self.look(),
                Next::Late => {}
                Next::Over => return,
            }
        }
    }

    /// Sees whether files say something new, and takes the units that have settled.
    fn look(&mut self) {
        let begun = Instant::now();
        // Folders are watched before the files are read, so no change falls between the two.
        let paths: Vec<PathBuf> = self.units.iter().flat_map(|followed| followed.unit.paths()).collect();
        let polls = self.watcher.watch(paths);
        let found: Vec<Found> = self.units.iter_mut().map(Followed::look).collect();
        if found.contains(&Found::Settled) {
            self.reload(Cause::Watch, |at| found[at] == Found::Settled);
        }
        let is_unsettled = found.contains(&Found::Unsettled);
        self.looks.ended(begun, Instant::now(), is_unsettled || polls);
    }

    /// Takes the units that `is_taken` chooses by their index, and writes the result to the log and to the history. These
    /// units have just been read.
    fn reload(&mut self, cause: Cause, is_taken: impl Fn(usize) -> bool) -> Reloaded {
        let at_ms = self.service.limiter().now().as_nanos() / 1_000_000;
        let mut all = Gathered::default();
        for (at, followed) in self.units.iter_mut().enumerate() {
            if is_taken(at) {
                all.take(followed, cause, &self.service);
            }
        }
        let failed = self.units.iter().filter(|followed| followed.has_failed).count();
        let metrics = &self.service.metrics().all_reloads;
        metrics.failed_units.set(i64::try_from(failed).unwrap_or(i64::MAX));
        let Gathered { units, loaded, errors, lines, changes, notes } = all;
        let has = |outcome| units.iter().any(|unit| unit.outcome == outcome);
        let outcome = [Outcome::Failed, Outcome::Reloaded].into_iter().find(|outcome| has(*outcome));
        let outcome = outcome.unwrap_or(Outcome::Noted);
        let reload = Reload { at_ms, cause, outcome, units, loaded, errors: lines, changes, notes };
        if reload.units.is_empty() {
            return Reloaded { reload: Arc::new(reload), errors };
        }
        let has_rules = reload.units.iter().any(|unit| unit.unit == UnitName::Rules);
        let reload = self.history.add(reload);
        metrics.count(cause, has_rules);
        Reloaded { reload, errors }
    }
}

/// What has become of several units together.
#[derive(Default)]
struct Gathered {
    units: Vec<UnitOutcome>,
    loaded: Option<LoadedCounts>,
    errors: ReloadErrors,
    /// The errors, as lines.
    lines: Lines,
    changes: Lines,
    notes: Lines,
}

impl Gathered {
    /// Takes a unit that was read. If anything fails, the unit stays as it was.
    fn take(&mut self, followed: &mut Followed, cause: Cause, service: &Service) {
        followed.tried = followed.seen.take();
        let unit = followed.unit.name();
        let taken = catch_unwind(AssertUnwindSafe(|| followed.unit.take(cause)));
        let panicked = |_| Err(Problem::new("the reload panicked", "see the panic in the log").into());
        let outcome = match taken.unwrap_or_else(panicked) {
            // The files were written anew and mean the same, which nobody has asked.
            Ok(taken) if cause == Cause::Watch && taken.is_nothing() && !followed.has_failed => return,
            Ok(mut taken) => {
                if followed.has_failed && taken.is_nothing() && !taken.is_noted {
                    let line = format!("the files of {} say what is in use again", unit.as_str());
                    tracing::info!(cause = cause.as_str(), "{line}");
                    taken.notes.add(|| line);
                }
                self.loaded = taken.loaded.or(self.loaded.take());
                self.changes.append(taken.changes);
                self.notes.append(taken.notes);
                if taken.is_noted { Outcome::Noted } else { Outcome::Reloaded }
            }
            Err(problems) => {
                self.add_errors(unit, &problems);
                service.metrics().all_reloads.count_failure(unit);
                tracing::error!(cause = cause.as_str(), "{}", followed.unit.kept());
                Outcome::Failed
            }
        };
        followed.has_failed = outcome == Outcome::Failed;
        self.units.push(UnitOutcome { unit, outcome });
    }

    fn add_errors(&mut self, unit: UnitName, problems: &Problems) {
        for error in &problems.0 {
            let line = masked(&error.one_line());
            tracing::error!("{line}");
            self.lines.add(|| line);
            self.errors.add(as_data(unit, error));
        }
    }
}

/// Returns an error in the form that a program gets. Passwords are masked.
fn as_data(unit: UnitName, error: &Diagnostic) -> ReloadError {
    let (file, has_place) = (error.file(), error.line() > 0);
    let excerpt = error.lines();
    ReloadError {
        unit,
        message: masked(error.message()),
        file: (!file.is_empty()).then(|| masked(file)),
        line: has_place.then(|| error.line()),
        column: has_place.then(|| error.column()),
        excerpt: (!excerpt.is_empty()).then(|| masked(&excerpt)),
        help: masked(error.help()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit that says whatever the test has set last.
    struct Said(Arc<parking_lot::Mutex<&'static str>>);

    impl Unit for Said {
        fn name(&self) -> UnitName {
            UnitName::Rules
        }

        fn kept(&self) -> &'static str {
            "nothing has changed"
        }

        fn paths(&self) -> Vec<PathBuf> {
            Vec::new()
        }

        fn read(&mut self, _: &mut Reader) -> Seen {
            Seen::of([self.0.lock().as_bytes()])
        }

        fn take(&mut self, _: Cause) -> Result<unit::Taken, Problems> {
            Ok(unit::Taken::default())
        }

        fn forget(&mut self) {}
    }

    #[test]
    fn only_what_two_looks_have_seen_is_settled_and_what_was_tried_is_not_tried_again() {
        use Found::{Same, Settled, Unsettled};
        let text = Arc::new(parking_lot::Mutex::new("a"));
        let (unit, tried) = (Box::new(Said(Arc::clone(&text))), Some(Seen::of([&b"a"[..]])));
        let mut followed = Followed { unit, reader: Reader::default(), tried, seen: None, has_failed: false };
        for (now, found) in [
            ("a", Same),
            ("half of b", Unsettled),
            ("b", Unsettled),
            ("b", Settled),
            ("c", Unsettled),
            ("a", Same),
            ("c", Unsettled),
            ("c", Settled),
        ] {
            *text.lock() = now;
            assert_eq!(followed.look(), found, "{now}");
        }
        // What is tried now stays tried, whether it was good or bad.
        followed.tried = followed.seen.take();
        assert_eq!(followed.look(), Same);
        *text.lock() = "a";
        assert_eq!([followed.look(), followed.look()], [Unsettled, Settled]);
    }
}
