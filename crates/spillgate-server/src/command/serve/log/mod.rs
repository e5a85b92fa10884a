//! Sends log lines and panics to standard error.
//!
//! Warnings of some libraries are left out, so that a bad client cannot fill the log with them.

use std::io::stderr;
use std::panic::{self, PanicHookInfo};

use spillgate::SystemClock;
use spillgate_admin::WRITES_TARGET;
use tracing_subscriber::EnvFilter;

use crate::settings::{LogFormat, Settings};

/// The filter for libraries that write a warning for each connection of a bad client. Only errors of these libraries
/// are logged, unless the setting `log_level` names them. The metric spillgate_connections_closed_total counts the
/// connections that the server closes.
const QUIET: &str = "h2=error";

/// Starts the log and sends panics to it.
pub(super) fn start(settings: &Settings, colour: bool) {
    let filter = EnvFilter::builder().parse_lossy(filter(&settings.log_level));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(colour);
    // If the process has a subscriber already, that subscriber stays.
    let _ = match settings.log_format {
        LogFormat::Text => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    panic::set_hook(Box::new(log_panic));
}

/// Returns the filter of the log. If `level` is only the word `debug` or `trace`, this level applies to spillgate, but
/// not to libraries, because they would write a line for each HTTP/2 frame.
///
/// The writes of operators are always logged, unless `level` names their target.
fn filter(level: &str) -> String {
    let always = format!("{QUIET},{WRITES_TARGET}=info");
    match level {
        "debug" | "trace" => format!("{always},info,spillgate={level}"),
        _ => format!("{always},{level}"),
    }
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
