//! What is printed, and whether in colour.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme};

/// What a piece of text is about; decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Title,
    Faint,
    Good,
    Bad,
    Warn,
}

/// Standard output and error.
#[derive(Debug)]
pub(super) struct Terminal {
    out_colour: bool,
    err_colour: bool,
}

impl Terminal {
    pub(super) fn new() -> Terminal {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let wanted = wants_colour(&variable("NO_COLOR"), &variable("TERM"));
        Terminal { out_colour: wanted && io::stdout().is_terminal(), err_colour: wanted && io::stderr().is_terminal() }
    }

    /// Whether standard error takes colours.
    pub(super) const fn err_colour(&self) -> bool {
        self.err_colour
    }

    /// Text for standard output, coloured if that is a terminal that wants it.
    pub(super) fn paint(&self, tone: Tone, text: &str) -> String {
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

    /// Prints to standard output. A reader that went away is no error of ours.
    pub(super) fn print(&mut self, text: &str) {
        let mut out = io::stdout().lock();
        drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }

    /// Prints a line of JSON to standard output.
    pub(super) fn json(&mut self, value: &serde_json::Value) {
        self.print(&format!("{value}\n"));
    }

    /// Prints what is wrong, with its line and its mend, to standard error.
    pub(super) fn report(&mut self, diagnostic: &dyn Diagnostic) {
        let theme = if self.err_colour { GraphicalTheme::unicode() } else { GraphicalTheme::none() };
        let handler = GraphicalReportHandler::new_themed(theme).with_links(false).with_width(110);
        let mut text = String::new();
        if handler.render_report(&mut text, diagnostic).is_err() {
            let _ = write!(text, "{diagnostic}");
        }
        self.complain(text.trim_end());
    }

    /// Prints a line to standard error.
    pub(super) fn complain(&mut self, text: &str) {
        let mut err = io::stderr().lock();
        drop(err.write_all(text.as_bytes()).and_then(|()| err.write_all(b"\n")));
    }
}

/// What the environment says of colours; no-color.org asks for any value but the empty one.
fn wants_colour(no_color: &str, term: &str) -> bool {
    no_color.is_empty() && term != "dumb"
}

/// A diagnostic as JSON: severity, message, file, line, column, help.
pub(super) fn finding(diagnostic: &dyn Diagnostic) -> serde_json::Value {
    let severity = match diagnostic.severity() {
        None | Some(miette::Severity::Error) => "error",
        Some(miette::Severity::Warning) => "warning",
        Some(miette::Severity::Advice) => "note",
    };
    let place = place(diagnostic);
    serde_json::json!({
        "severity": severity,
        "message": diagnostic.to_string(),
        "file": place.as_ref().map(|place| &place.file),
        "line": place.as_ref().map(|place| place.line),
        "column": place.as_ref().map(|place| place.column),
        "help": diagnostic.help().map(|help| help.to_string()),
    })
}

/// A diagnostic on one line, for logs.
pub(super) fn one_line(diagnostic: &dyn Diagnostic) -> String {
    let place = place(diagnostic).map(|at| format!("{}:{}:{}: ", at.file, at.line, at.column)).unwrap_or_default();
    let help = diagnostic.help().map(|help| format!(" ({help})")).unwrap_or_default();
    format!("{place}{diagnostic}{help}")
}

struct Place {
    file: String,
    line: usize,
    column: usize,
}

fn place(diagnostic: &dyn Diagnostic) -> Option<Place> {
    let label = diagnostic.labels()?.next()?;
    let found = diagnostic.source_code()?.read_span(label.inner(), 0, 0).ok()?;
    Some(Place { file: found.name()?.to_owned(), line: found.line() + 1, column: found.column() + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_for_terminals_that_want_it() {
        assert!(wants_colour("", "xterm") && wants_colour("", ""));
        assert!(!wants_colour("1", "xterm") && !wants_colour("", "dumb"));
        let painted = |out_colour| Terminal { out_colour, err_colour: false }.paint(Tone::Good, "yes");
        assert_eq!(painted(true), "\x1b[32myes\x1b[0m");
        assert_eq!(painted(false), "yes");
    }
}
