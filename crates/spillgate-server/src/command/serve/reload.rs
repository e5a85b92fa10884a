//! Reads the rules again on SIGHUP, and when an operator requests it (`POST /reload`). If one file has an error, all
//! current rules stay in use. The certificates of the listeners are read again too, and their errors do not keep new rules out.
//!
//! Reloads run in threads of their own, and reading has a time limit. So a file on a disk that does not answer cannot
//! block the signals, and the server can still be stopped.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use spillgate::rules::{Diagnostic, Rules};
use spillgate_service::Service;
use spillgate_service::reload_requests::{ReloadError, ReloadErrors, ReloadQueue, Reloaded};
use spillgate_service::reloads::{Lines, LoadedCounts, Outcome, Reload, ReloadHistory};

use super::banner::Loaded;
use super::certificates::Certificates;
use super::rule_changes::{limits_lost, log_lost_counts};
use super::rule_differences::differences;
use crate::cli::Serve;
use crate::command::open::{rule_checks, rules, settings};
use crate::command::terminal::{Problem, Problems};
use crate::settings::{Resolved, masked};

/// The time limit for reading all files. If reading takes longer, a disk or a network probably does not answer.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Starts the thread that reloads when `queue` has a request. `serve` has the paths, and `resolved` the current
/// settings. `history` gets each reload.
pub(super) fn start(
    queue: ReloadQueue,
    service: Arc<Service>,
    (serve, resolved): (Serve, Resolved),
    certificates: Option<Certificates>,
    history: ReloadHistory,
) -> io::Result<()> {
    let mut reloader = Reloader { service, serve, resolved, certificates, history, reader: Reader::default() };
    thread::Builder::new().name("reload".into()).spawn(move || reloader.run(&queue)).map(drop)
}

struct Reloader {
    service: Arc<Service>,
    serve: Serve,
    resolved: Resolved,
    certificates: Option<Certificates>,
    history: ReloadHistory,
    reader: Reader,
}

impl Reloader {
    fn run(&mut self, queue: &ReloadQueue) {
        while let Some(waiters) = queue.next() {
            waiters.answer(&Arc::new(self.reloaded()));
        }
    }

    /// Reloads, and writes the result to the log and to the history.
    fn reloaded(&mut self) -> Reloaded {
        let at_ms = self.service.limiter().now().as_nanos() / 1_000_000;
        let mut notes = Lines::default();
        self.reload_certificates(&mut notes);
        // If anything fails, the current rules stay.
        let reloaded = catch_unwind(AssertUnwindSafe(|| self.reload(&mut notes)));
        let panicked = |_| Err(Problem::new("the reload panicked", "see the panic in the log").into());
        let (mut errors, mut lines) = (ReloadErrors::default(), Lines::default());
        let (outcome, loaded, changes) = match reloaded.unwrap_or_else(panicked) {
            Ok((loaded, changes)) => (Outcome::Reloaded, Some(loaded), changes),
            Err(problems) => {
                for error in &problems.0 {
                    let line = masked(&error.one_line());
                    tracing::error!("{line}");
                    lines.add(|| line);
                    errors.add(as_data(error));
                }
                self.service.metrics().reload_failures.inc();
                self.service.metrics().reload_successful.set(0);
                tracing::error!("the rules were not reloaded; the earlier rules stay in use");
                (Outcome::Failed, None, Lines::default())
            }
        };
        let reload = self.history.add(Reload { at_ms, outcome, loaded, errors: lines, changes, notes });
        Reloaded { reload, errors }
    }

    /// Reads the certificates of the listeners again. What fails is a note, and the rules are reloaded anyway.
    fn reload_certificates(&mut self, notes: &mut Lines) {
        let Some(certificates) = self.certificates.clone() else { return };
        let read = self.reader.read(READ_WITHIN, move || certificates.reload());
        let units = read.map_or_else(|problem| vec![("", Err(problem))], Vec::from);
        for (name, taken) in units {
            match taken {
                Ok(false) => {}
                Ok(true) => notes.add(|| format!("new: {name}")),
                Err(problem) => {
                    let line = masked(&Diagnostic::from(problem).one_line());
                    tracing::error!("{line}");
                    notes.add(|| line);
                }
            }
        }
    }

    /// Reads all files, and replaces the rules. Returns what the server uses now, and what has changed.
    fn reload(&mut self, notes: &mut Lines) -> Result<(LoadedCounts, Lines), Problems> {
        let (serve, paths) = (self.serve.clone(), self.resolved.settings.rules.clone());
        let read = self.reader.read(READ_WITHIN, move || {
            let settings =
                serve.config.is_some().then(|| settings::load(serve.config.as_deref(), &serve.rules, &serve.flags));
            (settings, rules::files(&paths))
        });
        let (settings, files) = read?;
        self.compare(settings.as_ref(), notes);
        let files = files?;
        let mut rules = self.checked(rules::parse(&self.resolved.settings, &files)?)?;
        let memory = self.service.limiter().store().memory();
        let before = Arc::clone(&self.service.rules());
        rules::open_sketches(&self.resolved.settings, Some(&before), &mut rules, memory)?;
        let mut changes = differences(&before, &rules);
        let Loaded { files, domains, rules: count, warnings } = Loaded::of(&rules, files.len());
        let later = settings.and_then(Result::ok);
        match later.and_then(|later| self.resolved.take_caller_keys(&later)) {
            Some((keys, line)) => {
                changes.add(|| line);
                self.service.replace_rules_and_keys(rules, keys);
            }
            None => self.service.replace_rules(rules),
        }
        // A line about a reload is written when the new rules are in use, so that a reader of the log can rely on it.
        let after = self.service.rules();
        log_lost_counts(&before, &after);
        match after.insights_begun_again(&before) {
            0 => {}
            1 => notes.add(|| "insight of 1 changed limit begins again".to_owned()),
            limits => notes.add(|| format!("insight of {limits} changed limits begins again")),
        }
        let domains = domains.len();
        tracing::info!(
            files,
            domains,
            rules = count,
            warnings,
            "rules reloaded; of the settings, a reload changes only insight.keys"
        );
        Ok((LoadedCounts { files, domains, rules: count, warnings }, changes))
    }

    /// Returns the rules if they can replace the current rules.
    fn checked(&self, rules: Rules) -> Result<Rules, Problems> {
        rule_checks::check_for_server(&self.resolved.settings, &rules)?;
        Problems::check(limits_lost(&self.service.rules(), &rules)).map(|()| rules)
    }

    /// Notes the settings that have changed in the file and need a restart.
    fn compare(&self, later: Option<&Result<Resolved, Problems>>, notes: &mut Lines) {
        let mut warn = |line: String| {
            tracing::warn!("{line}");
            notes.add(|| line);
        };
        match later {
            None => {}
            Some(Ok(later)) => {
                let changed = self.resolved.changed(later);
                if !changed.is_empty() {
                    warn(format!(
                        "settings changed and take effect at a restart, not at a reload: {}",
                        changed.join(", ")
                    ));
                }
            }
            Some(Err(problems)) => {
                let file = self.serve.config.as_deref().unwrap_or(Path::new("")).display();
                warn(format!("{file} has errors now: the server goes on, but would not start with it"));
                problems.0.iter().for_each(|error| warn(masked(&error.one_line())));
            }
        }
    }
}

/// Returns an error in the form that a program gets. Passwords are masked.
fn as_data(error: &Diagnostic) -> ReloadError {
    let has_place = error.line() > 0;
    let excerpt = error.lines();
    ReloadError {
        message: masked(error.message()),
        file: has_place.then(|| error.file().to_owned()),
        line: has_place.then(|| error.line()),
        column: has_place.then(|| error.column()),
        excerpt: (!excerpt.is_empty()).then(|| masked(&excerpt)),
        help: masked(error.help()),
    }
}

/// Reads files with a time limit. If a read takes longer than its limit, no other read begins until the late one has
/// ended. So at most one thread is blocked, even if a read never ends.
#[derive(Default)]
struct Reader {
    /// The thread of the last read that took longer than its time limit.
    late: Option<JoinHandle<()>>,
}

impl Reader {
    fn read<T, F>(&mut self, within: Duration, work: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        const HELP: &str = "check the disk or network of the files, then reload again";
        if self.late.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Err(Problem::new("the files are still being read for an earlier reload", HELP));
        }
        let (send, result) = sync_channel(1);
        let thread = thread::Builder::new().name("rules-reader".into()).spawn(move || drop(send.send(work())));
        let thread = thread.map_err(|error| Problem::no_resources(&error))?;
        result.recv_timeout(within).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                self.late = Some(thread);
                Problem::new(format!("the files could not be read within {} s", within.as_secs()), HELP)
            }
            RecvTimeoutError::Disconnected => Problem::new("reading the files panicked", "see the panic above"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_never_ends_blocks_one_thread() {
        let mut reader = Reader::default();
        let (end, ended) = sync_channel::<()>(0);
        let late = reader.read(Duration::from_millis(20), move || ended.recv());
        assert!(late.expect_err("the read does not end in time").to_string().contains("could not be read within"));
        let next = reader.read(Duration::from_secs(30), || 1);
        assert!(next.expect_err("the first read has not ended").to_string().contains("still being read"));
        drop(end);
        while reader.late.as_ref().is_some_and(|thread| !thread.is_finished()) {
            thread::yield_now();
        }
        assert_eq!(reader.read(Duration::from_secs(30), || 2).ok(), Some(2));
    }

    #[test]
    fn a_reader_that_panics_is_an_error() {
        let read = Reader::default().read(Duration::from_secs(30), || -> u8 { panic!("as this test wants it") });
        assert!(read.expect_err("the reader panicked").to_string().contains("panicked"));
    }
}
