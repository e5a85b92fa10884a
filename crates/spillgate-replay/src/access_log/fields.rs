//! The values of the wanted fields of one line. A field can be a part of another one, as the path is a part of the
//! request line.

use memchr::{memchr, memrchr};

/// The values of the wanted fields of one line, in the order in which the fields were named. Each line reuses the
/// memory of the line before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields {
    text: String,
    /// Where the value of each field begins and ends in `text`. Both positions are equal if the line has no value.
    spans: Vec<(u32, u32)>,
}

impl Fields {
    /// Returns the value of a field. Returns `None` if the line has no such value, or if the value is empty or `-`.
    #[must_use]
    pub fn value(&self, index: usize) -> Option<&str> {
        let (begin, end) = *self.spans.get(index)?;
        self.text.get(begin as usize..end as usize).filter(|value| !value.is_empty())
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
    }

    /// Returns the bytes that are allocated for the values, used or not.
    pub(super) fn capacity_bytes(&self) -> usize {
        self.text.capacity() + self.spans.capacity() * size_of::<(u32, u32)>()
    }

    /// Adds the value of the next field. Bytes that are not UTF-8 are replaced. If `escapes` is true, the escapes of
    /// nginx and Apache are decoded.
    pub(super) fn push(&mut self, value: &[u8], escapes: bool) {
        let begin = self.text.len() as u32;
        if escapes && memchr(b'\\', value).is_some() {
            self.push_lossy(&unescaped(value));
        } else {
            self.push_lossy(value);
        }
        self.spans.push((begin, self.text.len() as u32));
    }

    fn push_lossy(&mut self, value: &[u8]) {
        match std::str::from_utf8(value) {
            Ok(value) => self.text.push_str(value),
            Err(_) => self.text.push_str(&String::from_utf8_lossy(value)),
        }
    }
}

/// Decodes `\x22`, which nginx and Apache write, and `\"`, `\\`, `\n`, `\t` and others, which Apache writes.
fn unescaped(value: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = memchr(b'\\', rest) {
        decoded.extend_from_slice(&rest[..at]);
        let hex = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let (byte, length) = match rest[at + 1..] {
            [b'x', high, low, ..] => match (hex(high), hex(low)) {
                (Some(high), Some(low)) => (high * 16 + low, 4),
                _ => (b'\\', 1),
            },
            [byte @ (b'"' | b'\\' | b'/'), ..] => (byte, 2),
            [b'n', ..] => (b'\n', 2),
            [b'r', ..] => (b'\r', 2),
            [b't', ..] => (b'\t', 2),
            [b'v', ..] => (0x0b, 2),
            [b'f', ..] => (0x0c, 2),
            [b'b', ..] => (0x08, 2),
            _ => (b'\\', 1),
        };
        decoded.push(byte);
        rest = &rest[at + length..];
    }
    decoded.extend_from_slice(rest);
    decoded
}

/// The part of a value that a field consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// This variant and those up to `Protocol` are parts of a request line such as `GET /path?query HTTP/1.1`.
    Method,
    Target,
    TargetPath,
    TargetQuery,
    Protocol,
    /// This variant and `Query` are parts of a target such as `/path?query`.
    Path,
    Query,
    /// The last address of `X-Forwarded-For`. A client can choose all addresses before the last one.
    LastAddress,
    /// The address of an address and a port. Some servers write no brackets around an IPv6 address before its port.
    BeforePort,
}

impl Part {
    /// Returns this part of a value. The result is empty if the value has no such part.
    pub(super) fn of(self, value: &[u8]) -> &[u8] {
        let of_line = |part: fn(RequestLine) -> &[u8]| RequestLine::read(value).map_or(&[][..], part);
        match self {
            Part::Whole => value,
            Part::Method => of_line(|line| line.method),
            Part::Target => of_line(|line| line.target),
            Part::TargetPath => of_line(|line| path(line.target)),
            Part::TargetQuery => of_line(|line| query(line.target)),
            Part::Protocol => of_line(|line| line.protocol),
            Part::Path => path(origin_form(value)),
            Part::Query => query(value),
            Part::BeforePort => before_port(value),
            Part::LastAddress => memrchr(b',', value).map_or(value, |at| &value[at + 1..]).trim_ascii(),
        }
    }
}

struct RequestLine<'v> {
    method: &'v [u8],
    target: &'v [u8],
    protocol: &'v [u8],
}

impl<'v> RequestLine<'v> {
    /// Reads `GET /path HTTP/1.1`. The protocol can be missing (HTTP/0.9), and the target can have spaces. Returns
    /// `None` for anything else, for example the first bytes of TLS that a client sent to a port for HTTP.
    fn read(value: &'v [u8]) -> Option<RequestLine<'v>> {
        let (method, rest) = value.split_at(memchr(b' ', value)?);
        let rest = &rest[1..];
        let (target, protocol) = match memrchr(b' ', rest) {
            Some(at) if rest[at + 1..].starts_with(b"HTTP/") => (&rest[..at], &rest[at + 1..]),
            _ => (rest, &[][..]),
        };
        let valid = method.first().is_some_and(u8::is_ascii_alphabetic)
            && method.iter().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(byte));
        valid.then(|| RequestLine { method, target: origin_form(target), protocol })
    }
}

fn before_port(value: &[u8]) -> &[u8] {
    let address = memrchr(b':', value).map_or(value, |at| &value[..at]);
    address.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")).unwrap_or(address)
}

/// Returns `/path` of `http://host/path`, which clients send to a proxy.
fn origin_form(target: &[u8]) -> &[u8] {
    let is_absolute = !target.starts_with(b"/");
    let Some(after) = memchr::memmem::find(target, b"://").filter(|_| is_absolute) else { return target };
    let host = &target[after + 3..];
    memchr(b'/', host).map_or(b"/", |at| &host[at..])
}

fn path(target: &[u8]) -> &[u8] {
    split_target(target).0
}

fn query(target: &[u8]) -> &[u8] {
    split_target(target).1
}

/// Returns the path and the query of `/path?query#fragment`.
fn split_target(target: &[u8]) -> (&[u8], &[u8]) {
    let target = memchr(b'#', target).map_or(target, |at| &target[..at]);
    memchr(b'?', target).map_or((target, &[]), |at| (&target[..at], &target[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_nginx_and_apache_are_decoded() {
        for (written, decoded) in [
            (r"plain", "plain"),
            (r"\x22\x5C\x5c", "\"\\\\"),
            (r#"a \"b\" \\"#, "a \"b\" \\"),
            (r"\xE2\x82\xAC", "€"),
            (r"\n\t\x00", "\n\t\0"),
            (r"\", "\\"),
            (r"\x", "\\x"),
            (r"\x2", "\\x2"),
            (r"\xg0\q", "\\xg0\\q"),
            (r"\xFF", "\u{fffd}"),
        ] {
            let mut fields = Fields::default();
            fields.push(written.as_bytes(), true);
            fields.push(written.as_bytes(), false);
            assert_eq!(fields.value(0), Some(decoded), "{written}");
            assert_eq!(fields.value(1), Some(written), "{written}");
        }
    }

    #[test]
    fn a_request_line_has_parts() {
        let parts = |line: &str| {
            [Part::Method, Part::Target, Part::TargetPath, Part::TargetQuery, Part::Protocol]
                .map(|part| String::from_utf8(part.of(line.as_bytes()).to_vec()).unwrap())
        };
        for (line, expected) in [
            ("GET /a?b=c HTTP/1.1", ["GET", "/a?b=c", "/a", "b=c", "HTTP/1.1"]),
            ("GET /a", ["GET", "/a", "/a", "", ""]),
            ("M-SEARCH /a?b?c#d HTTP/2.0", ["M-SEARCH", "/a?b?c#d", "/a", "b?c", "HTTP/2.0"]),
            ("GET /a#b?c HTTP/1.1", ["GET", "/a#b?c", "/a", "", "HTTP/1.1"]),
            ("GET /a b c HTTP/1.0", ["GET", "/a b c", "/a b c", "", "HTTP/1.0"]),
            ("GET http://h:80/a?b HTTP/1.1", ["GET", "/a?b", "/a", "b", "HTTP/1.1"]),
            ("GET http://h HTTP/1.1", ["GET", "/", "/", "", "HTTP/1.1"]),
            ("GET /?u=http://h/a HTTP/1.1", ["GET", "/?u=http://h/a", "/", "u=http://h/a", "HTTP/1.1"]),
            ("OPTIONS * HTTP/1.1", ["OPTIONS", "*", "*", "", "HTTP/1.1"]),
            ("-", [""; 5]),
            ("- - -", [""; 5]),
            ("", [""; 5]),
            (r"\x16\x03\x01 x", [""; 5]),
            (" GET /", [""; 5]),
        ] {
            assert_eq!(parts(line), expected, "{line}");
        }
    }

    #[test]
    fn the_last_forwarded_address_is_the_client() {
        assert_eq!(Part::LastAddress.of(b"10.0.0.1, 10.0.0.2"), b"10.0.0.2");
        assert_eq!(Part::LastAddress.of(b"::1"), b"::1");
    }

    #[test]
    fn an_address_is_before_its_port() {
        for (value, address) in [
            ("203.0.113.7:40000", "203.0.113.7"),
            ("2001:db8::7:8080", "2001:db8::7"),
            ("[2001:db8::7]:8080", "2001:db8::7"),
            ("unix:1", "unix"),
            ("", ""),
        ] {
            assert_eq!(Part::BeforePort.of(value.as_bytes()), address.as_bytes(), "{value}");
        }
    }
}
