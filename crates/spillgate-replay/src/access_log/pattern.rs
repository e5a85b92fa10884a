//! Reads lines by a pattern, as nginx's `log_format` writes it: `$remote_addr [$time_local] "$request" $status`.
//!
//! A value ends at the text that follows its variable in the pattern. The line is read only up to the last needed
//! value, so anything after this value is ignored. Two spaces in a pattern stand for any number of spaces, because some
//! servers pad their columns.

use memchr::{memchr, memchr_iter, memmem, memrchr};

use super::counts::Unreadable;
use super::plan::{TIME_FIELDS, Values};
use super::reader::FormatError;
use super::time::common_bytes;

/// The formats of servers are far shorter.
const PATTERN_BYTES_MAX: usize = 4096;

/// A variable of a pattern, and the text between it and the next one.
#[derive(Debug, Clone)]
struct Variable {
    name: String,
    end: Vec<u8>,
    /// Whether the value is in quotes. Then a quote after a backslash belongs to the value.
    is_quoted: bool,
    /// The index of the value in [`Values`], if it is needed.
    source: Option<usize>,
    /// Whether the value is a time, which can contain spaces.
    is_time: bool,
    /// The text after `$time_local`, if this is the next variable. A client can choose the user name, which comes
    /// before the time and can look like a time. So the value ends only where this text follows after the length of a
    /// time.
    end_of_time: Option<Vec<u8>>,
    /// Whether further spaces can follow the text after the value, because the next column is padded.
    is_padded: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Pattern {
    begin: Vec<u8>,
    variables: Vec<Variable>,
    /// The index of `$ident`, if `$remote_user` follows it. If other words are before the address, all values are
    /// shifted: `$ident` is not `-`, and `$remote_user` has a space. Both together show such a line. The space alone
    /// proves nothing, because the name of a user can have one.
    ident: Option<usize>,
    /// Whether words of syslog can be before the first value. Then the first value is the word before the time.
    has_prefix: bool,
}

impl Pattern {
    /// Parses a pattern. If `escapes` is false, the server writes quotes inside of values as they are.
    pub(super) fn parse(text: &str, escapes: bool) -> Result<Pattern, FormatError> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(FormatError(format!("the pattern is longer than {PATTERN_BYTES_MAX} bytes")));
        }
        let mut pieces = text.split('$');
        let begin = pieces.next().unwrap_or_default().as_bytes().to_vec();
        let mut variables: Vec<Variable> = Vec::new();
        let mut last_end = begin.as_slice();
        let mut ends = Vec::new();
        for piece in pieces {
            let (name, end) = name_and_end(piece)?;
            ends.push((name, end.as_bytes()));
        }
        // If the date and the time of day are two values, neither of them has a space.
        let has_date = ["date", "time"].iter().all(|name| ends.iter().any(|(known, _)| known == name));
        for (at, (name, end)) in ends.iter().enumerate() {
            if let (true, Some((next, _))) = (end.is_empty(), ends.get(at + 1)) {
                return Err(FormatError(format!(
                    "the pattern needs a text between ${name} and ${next}, which shows where the first value ends"
                )));
            }
            let is_padded = end.ends_with(b"  ");
            let end = if is_padded { &end[..end.len() - 1] } else { end };
            let end_of_time = ends.get(at + 1).filter(|(next, _)| *next == "time_local").map(|(_, end)| end.to_vec());
            let is_quoted = escapes && last_end.ends_with(b"\"") && end.starts_with(b"\"");
            let is_time = TIME_FIELDS.contains(name) && !(has_date && matches!(*name, "date" | "time"));
            let (name, source) = ((*name).to_owned(), None);
            variables.push(Variable { name, end: end.to_vec(), is_quoted, source, is_time, end_of_time, is_padded });
            last_end = end;
        }
        let ident = ends.windows(2).position(|pair| pair[0].0 == "ident" && pair[1].0 == "remote_user");
        Ok(Pattern { begin, variables, ident, has_prefix: false })
    }

    /// Lets words of syslog be before the first value, which is followed by ` [` and a time.
    pub(super) fn with_prefix(self) -> Pattern {
        Pattern { has_prefix: true, ..self }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.variables.iter().map(|variable| variable.name.clone()).collect()
    }

    /// Sets which values are needed, and which of them is the time. Variables after the last needed one are dropped.
    pub(super) fn need(&mut self, sources: &[String], time_field: Option<&str>) {
        for (at, source) in sources.iter().enumerate() {
            let variable = self.variables.iter_mut().find(|variable| variable.name == *source);
            if let Some(variable) = variable {
                variable.source = Some(at);
                variable.is_time |= time_field == Some(source);
            }
        }
        let last = self.variables.iter().rposition(|variable| variable.source.is_some());
        self.variables.truncate(last.map_or(0, |last| last + 1));
    }

    pub(super) fn read(&self, line: &[u8], values: &mut Values) -> Result<(), Unreadable> {
        let mut at = line.starts_with(&self.begin).then_some(self.begin.len()).ok_or(Unreadable::Form)?;
        if self.has_prefix {
            let mut times = memmem::find_iter(line, b" [");
            let end = times.find(|at| common_bytes(&line[at + 2..]).is_some()).ok_or(Unreadable::Form)?;
            at = memrchr(b' ', &line[..end]).map_or(0, |space| space + 1);
        }
        let mut has_ident = false;
        for (index, variable) in self.variables.iter().enumerate() {
            let length = variable.length(&line[at..]).ok_or(Unreadable::Form)?;
            let value = &line[at..at + length];
            if has_ident && memchr(b' ', value).is_some() {
                let is_syslog = memmem::find(value, b": ").is_some();
                return Err(if is_syslog { Unreadable::Syslog } else { Unreadable::Prefix });
            }
            has_ident = self.ident == Some(index) && value != b"-";
            if let Some(source) = variable.source {
                values.spans[source] = Some((at as u32, (at + length) as u32));
            }
            at += length + variable.end.len();
            if variable.is_padded {
                at += line[at..].iter().take_while(|byte| **byte == b' ').count();
            }
        }
        Ok(())
    }
}

impl Variable {
    /// Returns the length of the value at the beginning of `text`.
    fn length(&self, text: &[u8]) -> Option<usize> {
        let inside = if self.is_time { inside_of_time(text) } else { 0 };
        let Some(first) = self.end.first() else {
            // This is the last variable of the pattern, but the line can have further fields.
            return Some(memchr(b' ', &text[inside..]).map_or(text.len(), |at| inside + at));
        };
        memchr_iter(*first, &text[inside..]).map(|at| inside + at).find(|at| {
            let rest = &text[*at..];
            rest.starts_with(&self.end)
                && !(self.is_quoted && is_escaped(text, *at))
                && self.end_of_time.as_ref().is_none_or(|end| {
                    let time = &rest[self.end.len()..];
                    common_bytes(time).is_some_and(|bytes| time[bytes..].starts_with(end))
                })
        })
    }
}

/// Returns how many bytes at the beginning of `text` certainly belong to a time. The end of the value is searched after
/// these bytes, because a time can have a space before its hour, and before its offset from UTC: `10/Oct/2000:13:55:36
/// -0700`.
fn inside_of_time(text: &[u8]) -> usize {
    let date = match text {
        [_, _, _, _, b'-' | b'/', _, _, b'-' | b'/', _, _, b' ', hour, ..] if hour.is_ascii_digit() => 11,
        [_, _, _, _, b'-', ..] | [_, _, b'/', ..] => 0,
        _ => return 0,
    };
    let Some(space) = memchr(b' ', &text[date..]) else { return date };
    let offset = date + space + 1;
    match text[offset..] {
        [b'+' | b'-', hours, more, minutes, ..]
            if hours.is_ascii_digit() && more.is_ascii_digit() && (minutes == b':' || minutes.is_ascii_digit()) =>
        {
            offset + 4
        }
        [b'U', b'T', b'C', ..] => offset + 3,
        _ => date,
    }
}

/// Returns whether an odd number of backslashes is before the byte at `at`.
fn is_escaped(text: &[u8], at: usize) -> bool {
    text[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Splits `name more` and `{name}more` into the name of a variable, and the text after it.
fn name_and_end(piece: &str) -> Result<(&str, &str), FormatError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (name, end) = match piece.strip_prefix('{').map(|inside| inside.split_once('}')) {
        Some(Some(split)) => split,
        Some(None) => ("", piece),
        None => piece.split_at(piece.find(|c| !is_name(c)).unwrap_or(piece.len())),
    };
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(FormatError(String::from(
            "a $ of the pattern has no name after it: write $remote_addr or ${remote_addr}",
        )));
    }
    Ok((name, end))
}
