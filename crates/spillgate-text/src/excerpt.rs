//! The few lines of a text that a diagnostic (an error, a warning or a note) shows.
//!
//! The lines are copied when the diagnostic is made, so that the whole text does not have to stay in memory. A line can
//! be megabytes long, so a long line is cut.

use std::fmt;

use super::diagnostic::At;

/// The longest line that is shown whole, in bytes.
const MAX_LINE_BYTES: usize = 400;

/// If a line is cut, at most this many bytes before the position are shown.
const BEFORE_BYTES: usize = 100;

/// One to three lines of the text, and the part that is underlined. The line of the position is always shown. If this
/// line is shown whole, the lines above and below it are shown too, unless they are too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Excerpt {
    /// The number of the first line in the text, counted from 1.
    first: u32,
    /// Characters that a terminal should not show were replaced.
    lines: Vec<String>,
    /// The index in `lines` of the line of the position.
    index: usize,
    /// The number of columns before the position in its line.
    before: usize,
    /// The number of columns that are underlined.
    len: usize,
}

impl Excerpt {
    /// Copies the lines around `at`. The range of bytes of `at` has to be inside the text, and must not begin or end
    /// inside a character.
    ///
    /// At most two kilobytes of the text are read. The line number comes from `at`, so no lines are counted.
    pub(super) fn around(text: &str, at: At) -> Excerpt {
        let window = at.start.saturating_sub(BEFORE_BYTES)..at.start.saturating_add(MAX_LINE_BYTES - BEFORE_BYTES);
        let line = line_start(text, at.start).zip(line_end(text, at.start));
        let line = line.filter(|(start, end)| end - start <= MAX_LINE_BYTES);
        let (start, end) = match line {
            Some(line) => line,
            None => (
                boundary(text, line_start(text, at.start).unwrap_or(0).max(window.start)),
                boundary(text, line_end(text, at.start).unwrap_or(usize::MAX).min(window.end)),
            ),
        };
        let underlined_end = (at.start + at.len).clamp(at.start, end.max(at.start));
        let (before, len) = (width(&text[start..at.start]), width(text[at.start..underlined_end].trim_end()));
        let mut lines = vec![printable(&text[start..end])];
        let above = line.and_then(|(start, _)| line_above(text, start)).filter(|_| at.line > 1);
        let below = line.and_then(|(_, end)| line_below(text, end));
        let index = usize::from(above.is_some());
        lines.splice(0..0, above.map(printable));
        lines.extend(below.map(printable));
        Excerpt { first: at.line - u32::from(index == 1), lines, index, before, len }
    }

    /// Returns the lines, joined by line breaks.
    pub(super) fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// Writes the lines with their numbers. `place` is the title above the lines, and `label` is written below the
    /// underlined part. `paint` adds a colour to the underline and to the label.
    pub(super) fn write(
        &self,
        out: &mut impl fmt::Write,
        place: &str,
        paint: impl Fn(&str) -> String,
        label: &str,
    ) -> fmt::Result {
        let last = u64::from(self.first) + self.lines.len() as u64 - 1;
        let margin = last.to_string().len();
        writeln!(out, " {:margin$} ,-[{place}]", "")?;
        for ((index, line), number) in self.lines.iter().enumerate().zip(u64::from(self.first)..) {
            writeln!(out, " {number:>margin$} |{}{line}", if line.is_empty() { "" } else { " " })?;
            if index == self.index {
                let indent = self.before;
                let middle = self.len / 2;
                let mark = match self.len {
                    0 => "^".to_owned(),
                    len => format!("{}|{}", "^".repeat(middle), "^".repeat(len - middle - 1)),
                };
                writeln!(out, " {:margin$} : {:indent$}{}", "", "", paint(&mark))?;
                let indent = indent + middle;
                writeln!(out, " {:margin$} : {:indent$}{}", "", "", paint(&format!("`-- {label}")))?;
            }
        }
        writeln!(out, " {:margin$} `----", "")
    }
}

/// Returns where the line that contains the offset `at` starts. `None` if the start is more than [`MAX_LINE_BYTES`]
/// away.
///
/// Text further away is not read. If it were, a file of one huge line with thousands of errors would be read as a whole
/// for each error.
fn line_start(text: &str, at: usize) -> Option<usize> {
    let from = at.saturating_sub(MAX_LINE_BYTES + 1);
    let newline = text.as_bytes()[from..at].iter().rposition(|byte| *byte == b'\n');
    newline.map(|newline| from + newline + 1).or((from == 0).then_some(0))
}

/// Returns where the line that contains the offset `at` ends. `None` if the end is more than [`MAX_LINE_BYTES`] away.
fn line_end(text: &str, at: usize) -> Option<usize> {
    let to = text.len().min(at + MAX_LINE_BYTES + 1);
    let newline = text.as_bytes()[at..to].iter().position(|byte| *byte == b'\n');
    newline.map(|newline| at + newline).or((to == text.len()).then_some(to))
}

/// Returns the line above the line that starts at `start`. `None` if there is no such line, or if it is too long.
fn line_above(text: &str, start: usize) -> Option<&str> {
    let end = start.checked_sub(1)?;
    let start = line_start(text, end)?;
    (end - start <= MAX_LINE_BYTES).then(|| &text[start..end])
}

/// Returns the line below the line that ends at `end`. `None` if there is no such line, or if it is too long.
fn line_below(text: &str, end: usize) -> Option<&str> {
    let start = end + 1;
    let end = line_end(text, (start < text.len()).then_some(start)?)?;
    (end - start <= MAX_LINE_BYTES).then(|| &text[start..end])
}

/// The text that is shown instead of a tab.
const TAB: &str = "    ";

/// Returns a line in a form that is safe for a terminal. A tab becomes spaces. A control character is replaced, because
/// it could move the cursor or change text that was printed before.
fn printable(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for c in line.trim_end_matches('\r').chars() {
        match c {
            '\t' => shown.push_str(TAB),
            c if c.is_control() => shown.push(char::REPLACEMENT_CHARACTER),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns the number of columns that a part of a line needs. Every character except a tab needs one column.
fn width(part: &str) -> usize {
    part.chars().map(|c| if c == '\t' { TAB.len() } else { 1 }).sum()
}

/// Returns `at`, or the nearest character boundary before `at` if `at` is inside a character.
pub(super) fn boundary(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at)
}

#[cfg(test)]
mod tests;
