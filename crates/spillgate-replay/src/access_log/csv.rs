//! A line of a CSV file. The first line names the columns.
//!
//! Commas, tabs or semicolons separate the columns: whichever the first line has. A value between quotes can have these, and
//! two quotes for one. It cannot have a line end, because each row is one line.

use memchr::memchr;

use super::counts::Unreadable;
use super::plan::Values;

#[derive(Debug, Clone)]
pub(super) struct Columns {
    /// For each column of the file, the value that it is. Empty before the first line.
    sources: Vec<Option<usize>>,
    separator: u8,
}

impl Columns {
    pub(super) fn new() -> Columns {
        Columns { sources: Vec::new(), separator: b',' }
    }

    /// Finds the values of a line. `names` has the names of the wanted values.
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

/// Appends the values of a line to `decoded`, and calls `each` after each value with the position where it begins. Returns
/// whether all quotes are closed.
fn split(line: &[u8], separator: u8, decoded: &mut Vec<u8>, mut each: impl FnMut(&mut Vec<u8>, usize)) -> bool {
    let mut rest = line;
    loop {
        let begin = decoded.len();
        while let Some(quoted) = rest.strip_prefix(b"\"") {
            let Some(end) = memchr(b'"', quoted) else { return false };
            decoded.extend_from_slice(&quoted[..end]);
            rest = &quoted[end + 1..];
            // Two quotes are one quote of the value, and the value goes on.
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
