//! Sends log lines and panics to standard error.
//!
//! Warnings of some libraries are left out, so that a bad client cannot fill the log with them. `queue.rs` has the lines
//! that are not written yet, and the thread that writes them.

mod queue;

use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::OnceLock;
use std::time::Duration;

use spillgate::SystemClock;
use spillgate_admin::WRITES_TARGET;
use spillgate_service::metrics::Metrics;
use tracing::Metadata;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::settings::{LogFormat, Settings};
use queue::{Queue, Rank};

pub(super) use queue::lost_by_this_thread;

/// The filter for libraries that write a warning for each connection of a bad client. Only errors of these libraries
/// are logged, unless the setting `log_level` names them. The metric spillgate_connections_closed_total counts the
/// connections that the server closes.
const QUIET: &str = "h2=error";

/// How long the end of the server waits until the last lines are written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The targets of lines of [`Rank::Kept`].
const KEPT: [&str; 4] = [WRITES_TARGET, module_path!(), super::TARGET, super::signals::TARGET];

/// The log of the process.
static QUEUE: Queue = Queue::new();

/// Replaces the filter of the log.
static SET_FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// The log. When this value is dropped, it waits until the lines are written, but at most [`LAST_LINES`].
#[derive(Debug)]
#[must_use]
pub(super) struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        flush();
    }
}

/// Waits until the lines are written, but at most [`LAST_LINES`], because standard error can be stuck for ever.
pub(super) fn flush() {
    QUEUE.flush(LAST_LINES);
}

/// Starts the log and sends panics to it. Lost lines are counted in `metrics`.
///
/// # Errors
/// Returns an error if the system has no thread left.
pub(super) fn start(settings: &Settings, colour: bool, metrics: &Metrics) -> io::Result<Log> {
    QUEUE.count_in(metrics.log_lines_lost.clone());
    let write = |bytes: &[u8]| Ok(rustix::io::write(io::stderr(), bytes)?);
    let report = |lines| tracing::warn!(lines, "lines of the log were lost, because standard error took no more");
    std::thread::Builder::new().name("log".into()).spawn(move || QUEUE.write_all(write, report))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter(&settings.log_level));
    let lines = lines.with_writer(Lines).with_ansi(colour);
    // The library would write its own errors to standard error itself, wait for it, and panic if that fails.
    let lines = lines.log_internal_errors(false);
    // If the process has a subscriber already, that subscriber stays.
    match settings.log_format {
        LogFormat::Text => {
            let lines = lines.with_target(false).with_filter_reloading();
            let handle = lines.reload_handle();
            if lines.try_init().is_ok() {
                let _ = SET_FILTER.set(Box::new(move |filter| drop(handle.reload(filter))));
            }
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_filter_reloading();
            let handle = lines.reload_handle();
            if lines.try_init().is_ok() {
                let _ = SET_FILTER.set(Box::new(move |filter| drop(handle.reload(filter))));
            }
        }
    }
    panic::set_hook(Box::new(log_panic));
    Ok(Log(()))
}

/// Changes which lines are logged from now on.
pub(super) fn set_level(level: &str) {
    if let Some(set) = SET_FILTER.get() {
        set(filter(level));
    }
}

/// Gives each line to the queue.
struct Lines;

/// A line for the queue. It must be written in one call.
struct Line(Rank);

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line(Rank::Other)
    }

    fn make_writer_for(&self, meta: &Metadata<'_>) -> Line {
        Line(rank(meta.target()))
    }
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.put(line, self.0);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn rank(target: &str) -> Rank {
    if KEPT.contains(&target) { Rank::Kept } else { Rank::Other }
}

/// Returns the filter of the log. If `level` is only the word `debug` or `trace`, this level applies to spillgate, but
/// not to libraries, because they would write a line for each HTTP/2 frame.
///
/// The writes of operators are always logged, unless `level` names their target.
fn filter(level: &str) -> EnvFilter {
    let always = format!("{QUIET},{WRITES_TARGET}=info");
    EnvFilter::builder().parse_lossy(match level {
        "debug" | "trace" => format!("{always},info,spillgate={level}"),
        _ => format!("{always},{level}"),
    })
}

/// Returns the system's clock. It writes a log line when someone has set the wall clock.
pub(super) fn clock() -> SystemClock {
    SystemClock::start().on_step(|step_ns| {
        tracing::warn!(step_ms = step_ns / 1_000_000, "the wall clock was set; the server follows it")
    })
}

fn log_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let payload = info.payload();
    let why = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let why = why.unwrap_or("no text");
    tracing::error!(thread = thread.name().unwrap_or("?"), place, "panic: {why}");
}
