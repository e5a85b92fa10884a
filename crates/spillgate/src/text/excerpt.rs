//! The few lines of a text that a diagnostic shows.
//!
//! They are copied when the diagnostic is made. A rule's value can be megabytes long, so a long line is cut.

use std::fmt;

use super::diagnostic::At;

/// Longer lines are cut, in bytes.
const MAX_LINE_BYTES: usize = 400;

/// What is shown of a cut line before the position, in bytes.
const BEFORE_BYTES: usize = 100;

/// The line of a position with the short lines above and below it, and what is underlined in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Excerpt {
    /// The number of the first line.
    first: u32,
    lines: Vec<String>,
    /// Which of the lines has the position.
    index: usize,
    /// Characters before the position in that line, and characters that are underlined.
    before: usize,
    len: usize,
}

impl Excerpt {
    /// The lines around `at`, which is inside the text and on character boundaries. Its line number is known already.
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

    /// The lines, joined by line breaks.
    pub(super) fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// Draws the lines with their numbers, and `label` below what is underlined.
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

/// Where the line of `at` starts; `None` if that is further away than a line may be long. Nothing further is read: a
/// file of one huge line can have thousands of errors.
fn line_start(text: &str, at: usize) -> Option<usize> {
    let from = at.saturating_sub(MAX_LINE_BYTES + 1);
    let newline = text.as_bytes()[from..at].iter().rposition(|byte| *byte == b'\n');
    newline.map(|newline| from + newline + 1).or((from == 0).then_some(0))
}

/// Where the line of `at` ends; `None` if that is further away than a line may be long.
fn line_end(text: &str, at: usize) -> Option<usize> {
    let to = text.len().min(at + MAX_LINE_BYTES + 1);
    let newline = text.as_bytes()[at..to].iter().position(|byte| *byte == b'\n');
    newline.map(|newline| at + newline).or((to == text.len()).then_some(to))
}

/// The line above the one that starts at `start`, if it is short.
fn line_above(text: &str, start: usize) -> Option<&str> {
    let end = start.checked_sub(1)?;
    let start = line_start(text, end)?;
    (end - start <= MAX_LINE_BYTES).then(|| &text[start..end])
}

/// The line below the one that ends at `end`, if it is short and the text does not end there.
fn line_below(text: &str, end: usize) -> Option<&str> {
    let start = end + 1;
    let end = line_end(text, (start < text.len()).then_some(start)?)?;
    (end - start <= MAX_LINE_BYTES).then(|| &text[start..end])
}

/// What a tab is shown as.
const TAB: &str = "    ";

/// A line as a terminal can show it: a tab becomes spaces, and a control character is replaced, so that no text can
/// move the cursor.
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

/// The columns that a part of a line takes.
fn width(part: &str) -> usize {
    part.chars().map(|c| if c == '\t' { TAB.len() } else { 1 }).sum()
}

/// The nearest character boundary at or before `at`.
pub(super) fn boundary(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str, start: usize, len: usize) -> String {
        let at = At::of(text, start..start + len);
        let mut out = String::new();
        Excerpt::around(text, at).write(&mut out, "f:1", str::to_owned, "here").expect("a string takes everything");
        out
    }

    #[test]
    fn the_label_is_below_the_middle_of_what_is_underlined() {
        let expected = ",-[f:1]\n  9 |\n 10 | ab: cde\n    :     ^|^\n    :      `-- here\n 11 | f\n    `----\n";
        let text = format!("{}\nab: cde\nf", "\n".repeat(8));
        assert_eq!(drawn(&text, 13, 3).trim_start(), expected);
    }

    #[test]
    fn a_tab_is_four_columns_and_a_control_character_is_not_printed() {
        let shown = drawn("\tä\u{1b}[2J: b", 9, 1);
        assert!(!shown.contains(['\u{1b}', '\t']), "{shown:?}");
        assert_eq!(shown.lines().nth(2).map(|line| line.find('|')), Some(Some(16)), "{shown}");
    }

    #[test]
    fn a_long_line_is_cut_around_its_position() {
        let text = format!("above\n{}x{}\nbelow", "ü".repeat(500), "y".repeat(1_000));
        let shown = drawn(&text, 6 + 1_000, 1);
        assert!(shown.len() < 1_200 && !shown.contains("above") && !shown.contains("below"), "{shown}");
        assert_eq!(shown.lines().nth(1).and_then(|line| line.chars().position(|c| c == 'x')), Some(55), "{shown}");
    }
}
