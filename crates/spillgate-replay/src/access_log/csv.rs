//! Reads the lines of CSV files. The first line names the columns.
//!
//! The separator is a comma, a tab or a semicolon: the first of these three that the first line contains. A value in
//! quotes can contain the separator, and two quotes in it stand for one quote. No value can contain a line end, because
//! the file was split at line ends before.

use memchr::memchr;

use super::counts::Unreadable;
use super::plan::Values;

#[derive(Debug, Clone)]
pub(super) struct Csv {
    /// For each column, the index of the wanted value that the column has, if any. The list is empty until the first
    /// line is read.
    sources: Vec<Option<usize>>,
    separator: u8,
}

impl Csv {
    pub(super) fn new() -> Csv {
        Csv { sources: Vec::new(), separator: b',' }
    }

    /// Finds the values with the names `names` in a line. The first line has no values, and is returned as
    /// `Unreadable::Header`.
    pub(super) fn read(&mut self, line: &[u8], names: &[String], values: &mut Values) -> Result<(), Unreadable> {
        if self.sources.is_empty() {
            self.read_names(line, names, values);
            return Err(Unreadable::Header);
        }
        let mut column = 0;
        let closed = split(line, self.separator, &mut values.decoded, |decoded, begin| {
            let source = self.sources.get(column).copied().flatten();
            column += 1;
            match source {
                Some(source) => values.spans[source] = Some((begin as u32, decoded.len() as u32)),
                None => decoded.truncate(begin),
            }
        });
        if closed && column == self.sources.len() { Ok(()) } else { Err(Unreadable::Columns) }
    }

    fn read_names(&mut self, line: &[u8], names: &[String], values: &mut Values) {
        let found = [b',', b'\t', b';'].into_iter().find(|separator| memchr(*separator, line).is_some());
        self.separator = found.unwrap_or(b',');
        let mut sources = Vec::new();
        split(line, self.separator, &mut values.decoded, |decoded, begin| {
            let name = decoded[begin..].trim_ascii();
            sources.push(names.iter().position(|wanted| wanted.as_bytes().eq_ignore_ascii_case(name)));
        });
        self.sources = sources;
    }
}

/// Appends the values of a line to `decoded`. After each value, calls `each` with the position in `decoded` where this
/// value begins. Returns whether all quotes are closed.
fn split(line: &[u8], separator: u8, decoded: &mut Vec<u8>, mut each: impl FnMut(&mut Vec<u8>, usize)) -> bool {
    let mut rest = line;
    loop {
        let begin = decoded.len();
        while let Some(quoted) = rest.strip_prefix(b"\"") {
            let Some(end) = memchr(b'"', quoted) else { return false };
            decoded.extend_from_slice(&quoted[..end]);
            rest = &quoted[end + 1..];
            // Two quotes stand for one quote inside of the value.
            if rest.starts_with(b"\"") {
                decoded.push(b'"');
            }
        }
        let end = memchr(separator, rest);
        decoded.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
        each(decoded, begin);
        match end {
            Some(end) => rest = &rest[end + 1..],
            None => return true,
        }
    }
}
