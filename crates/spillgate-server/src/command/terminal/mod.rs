//! Prints the output of the commands, in colour if the terminal allows it.
//!
//! All output goes through this module, so that `NO_COLOR`, pipes and `--json` are respected everywhere.

mod exit;
mod format;
mod problem;
mod table;
mod wrap;

pub use exit::{EXIT_DENIED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE};
pub(crate) use format::{date_time, duration};
pub(crate) use problem::{Problem, Problems, diagnostic_json};
pub(crate) use spillgate::text::{count, percent, thousands};
pub(crate) use spillgate_service::text::clean;
pub(crate) use table::Table;
pub(crate) use wrap::wrapped;

use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;

use spillgate::rules::Diagnostic;
use spillgate_service::text::clean_json;

/// The meaning of a piece of text, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Title,
    Faint,
    Good,
    Bad,
    Warn,
}

/// Standard output and standard error.
#[derive(Debug)]
pub(crate) struct Terminal {
    out_colour: bool,
    err_colour: bool,
    /// Whether standard error is a terminal that can erase a line.
    shows_progress: bool,
    /// The first error while standard output was written, if there was one.
    lost: Option<io::Error>,
    /// Whether the command has already changed what it was asked to change.
    is_done: bool,
}

impl Terminal {
    pub(crate) fn new() -> Terminal {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let wanted = wants_colour(&variable("NO_COLOR"), &variable("TERM"));
        Terminal {
            out_colour: wanted && io::stdout().is_terminal(),
            err_colour: wanted && io::stderr().is_terminal(),
            shows_progress: variable("TERM") != "dumb" && io::stderr().is_terminal(),
            lost: None,
            is_done: false,
        }
    }

    /// Returns whether standard error is coloured.
    pub(crate) const fn err_colour(&self) -> bool {
        self.err_colour
    }

    /// Returns text for standard output, coloured if standard output is a terminal that allows colour.
    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Title => "1",
            Tone::Faint => "2",
            Tone::Good => "32",
            Tone::Bad => "1;31",
            Tone::Warn => "33",
        };
        if self.out_colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Returns the number of columns of standard output, if it is a terminal.
    pub(crate) fn width(&self) -> Option<usize> {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    }

    /// Shows what the command waits for, if standard error is a terminal. The text replaces the one before, and an
    /// empty text erases it.
    pub(crate) fn progress(&mut self, text: &str) {
        if self.shows_progress {
            let mut err = io::stderr().lock();
            drop(write!(err, "\r\x1b[K{text}").and_then(|()| err.flush()));
        }
    }

    /// Prints to standard output. It is not an error if the program that reads the output has ended, such
    /// as `head`. Any other error changes the [exit code](Terminal::exit_code).
    pub(crate) fn print(&mut self, text: &str) {
        let mut out = io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        self.note(written);
    }

    /// Remembers that the command has made its change, so that only its answer can still be lost.
    pub(crate) const fn has_done(&mut self) {
        self.is_done = true;
    }

    /// Remembers the error if standard output could not be written.
    pub(crate) fn note(&mut self, written: io::Result<()>) {
        let error = written.err().filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
        self.lost = self.lost.take().or(error);
    }

    /// Returns `code` if all output was written. Otherwise prints the error to standard error, and returns
    /// [`EXIT_UNAVAILABLE`].
    pub(crate) fn exit_code(mut self, code: u8) -> ExitCode {
        let Some(error) = self.lost.take() else { return ExitCode::from(code) };
        // Whoever reads only that something failed would make the change again, or believe that it was not made.
        let what =
            if self.is_done { "done, but the answer could not be printed" } else { "the output could not be written" };
        self.complain(&format!("error: {what}: {error}"));
        ExitCode::from(EXIT_UNAVAILABLE)
    }

    /// Prints a line of JSON to standard output.
    pub(crate) fn json(&mut self, value: &serde_json::Value) {
        self.print(&json_line(value));
    }

    /// Prints a problem to standard error, with its line and its help.
    pub(crate) fn report(&mut self, diagnostic: &Diagnostic) {
        let text = if self.err_colour { diagnostic.coloured() } else { diagnostic.to_string() };
        self.complain(text.trim_end());
    }

    /// Prints a line to standard error.
    pub(crate) fn complain(&mut self, text: &str) {
        let mut err = io::stderr().lock();
        drop(err.write_all(text.as_bytes()).and_then(|()| err.write_all(b"\n")));
    }
}

/// Prints to standard output on a thread of its own, so that the caller does not wait if nobody reads standard output.
///
/// # Errors
/// Returns an error if the system has no thread left.
pub(crate) fn print_beside(text: String) -> io::Result<()> {
    let print = move || {
        let mut out = io::stdout().lock();
        // A program that serves goes on without a reader of its text.
        drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    };
    std::thread::Builder::new().name("print".into()).spawn(print).map(drop)
}

/// Returns a line of JSON. Characters that a terminal could obey are escaped.
pub(crate) fn json_line(value: &serde_json::Value) -> String {
    clean_json(&value.to_string()) + "\n"
}

/// Returns whether the environment allows colour. As no-color.org says, any value of `NO_COLOR` except the empty one
/// forbids colour.
fn wants_colour(no_color: &str, term: &str) -> bool {
    no_color.is_empty() && term != "dumb"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_for_terminals_that_allow_it() {
        assert!(wants_colour("", "xterm") && wants_colour("", ""));
        assert!(!wants_colour("1", "xterm") && !wants_colour("", "dumb"));
        let painted = |out_colour| {
            Terminal { out_colour, err_colour: false, shows_progress: false, lost: None, is_done: false }
                .paint(Tone::Good, "yes")
        };
        assert_eq!(painted(true), "\x1b[32myes\x1b[0m");
        assert_eq!(painted(false), "yes");
    }
}
