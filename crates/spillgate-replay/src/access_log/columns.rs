//! Reads lines whose columns are named by a line that begins with `#Fields:`, as IIS and CloudFront write them (the
//! extended log format of the W3C).
//!
//! The columns of IIS are separated by spaces, and those of CloudFront by tabs. IIS names the columns again when they
//! change.

use memchr::memchr;

use super::counts::Unreadable;
use super::plan::Values;

/// The names of nginx for values that the extended log format names.
const NAMES: [(&str, &str); 14] = [
    ("c-ip", "remote_addr"),
    ("cs-method", "request_method"),
    ("cs-uri-stem", "uri"),
    ("cs-uri-query", "args"),
    ("sc-status", "status"),
    ("sc-bytes", "bytes_sent"),
    ("cs-username", "remote_user"),
    ("cs-version", "server_protocol"),
    ("cs-protocol-version", "server_protocol"),
    ("cs-host", "host"),
    ("x-host-header", "host"),
    ("x-forwarded-for", "http_x_forwarded_for"),
    ("cs(user-agent)", "http_user_agent"),
    ("cs(referer)", "http_referer"),
];

/// The values that one column has: one by the name of the column, and one by the name of nginx.
type Sources = [Option<usize>; 2];

#[derive(Debug, Clone, Default)]
pub(super) struct Columns {
    /// The values of each column. The list is empty until a line names the columns.
    sources: Vec<Sources>,
}

impl Columns {
    /// Finds the values with the names `names` in a line. A line that begins with `#` has no values.
    pub(super) fn read(&mut self, line: &[u8], names: &[String], values: &mut Values) -> Result<(), Unreadable> {
        if line.starts_with(b"#") {
            if let Some(fields) = line.strip_prefix(b"#Fields:") {
                let fields = fields.split(u8::is_ascii_whitespace).filter(|name| !name.is_empty());
                self.sources = fields.map(|name| sources(name, names)).collect();
            }
            return Err(Unreadable::Header);
        }
        if self.sources.is_empty() {
            return Err(Unreadable::Unnamed);
        }
        let separator = if memchr(b'\t', line).is_some() { b'\t' } else { b' ' };
        let (mut column, mut begin) = (0, 0);
        loop {
            let end = memchr(separator, &line[begin..]).map_or(line.len(), |at| begin + at);
            for source in self.sources.get(column).into_iter().flatten().flatten() {
                values.spans[*source] = Some((begin as u32, end as u32));
            }
            column += 1;
            if end == line.len() {
                break;
            }
            begin = end + 1;
        }
        if column == self.sources.len() { Ok(()) } else { Err(Unreadable::Columns) }
    }
}

fn sources(column: &[u8], names: &[String]) -> Sources {
    let position = |name: &[u8]| names.iter().position(|wanted| wanted.as_bytes().eq_ignore_ascii_case(name));
    let of_nginx = NAMES.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(column));
    [position(column), of_nginx.and_then(|(_, name)| position(name.as_bytes()))]
}
