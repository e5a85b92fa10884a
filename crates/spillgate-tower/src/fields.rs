//! The header fields of an answer that tell a client about its limits.

use std::fmt;

use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, Entry, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use spillgate_limiter::headers::{HeaderStyle, write_fields};

use super::Outcome;

/// Which fields an answer has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    pub(super) style: HeaderStyle,
    /// Whether `Access-Control-Expose-Headers` lists the fields, so that the JavaScript of another site can read them.
    pub(super) exposed: bool,
}

impl Fields {
    /// Sets the fields of a refusal.
    pub(super) fn set(self, outcome: &Outcome, headers: &mut HeaderMap) {
        self.write(outcome, headers, |headers, name, value| drop(headers.insert(name, value)));
    }

    /// Adds the fields of an allowed request. If a layer behind this one has already set a field, the value of that
    /// layer stays: it may have refused the request, or its limits apply to fewer requests. The fields of draft 11 are
    /// lists, so they contain the limits of both layers.
    pub(super) fn add(self, outcome: &Outcome, headers: &mut HeaderMap) {
        let is_list = self.style == HeaderStyle::Draft11;
        self.write(outcome, headers, |headers, name, value| match headers.entry(name) {
            Entry::Vacant(entry) => drop(entry.insert(value)),
            Entry::Occupied(mut entry) if is_list => entry.append(value),
            Entry::Occupied(_) => {}
        });
    }

    fn write(self, outcome: &Outcome, headers: &mut HeaderMap, put: impl Fn(&mut HeaderMap, HeaderName, HeaderValue)) {
        let (policies, binding) = outcome.policies();
        let mut names = String::new();
        let mut buffer = Buffer::default();
        write_fields(self.style, &policies, binding, outcome.verdict.retry_after, &mut buffer, |name, value| {
            if self.exposed {
                names.push_str(if names.is_empty() { "" } else { ", " });
                names.push_str(name);
            }
            if let Some(value) = field_value(&value.0) {
                put(headers, field_name(name), value);
            }
            value.0.clear();
        });
        if let (false, Ok(names)) = (names.is_empty(), HeaderValue::try_from(names)) {
            // Several lines of this field are one list. So the fields that the service itself exposes stay exposed.
            headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, names);
        }
    }
}

/// The text of one field. Most fields fit on the stack.
#[derive(Default)]
struct Buffer(SmallVec<[u8; 128]>);

impl fmt::Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Returns the name of a field. Known names are constants, so that they are not parsed for each answer.
fn field_name(name: &'static str) -> HeaderName {
    macro_rules! constants {
        ($($text:literal)*) => {
            match name {
                $($text => {
                    const NAME: HeaderName = HeaderName::from_static($text);
                    NAME
                })*
                "retry-after" => RETRY_AFTER,
                other => HeaderName::from_static(other),
            }
        };
    }
    constants! {
        "ratelimit" "ratelimit-policy" "ratelimit-limit" "ratelimit-remaining" "ratelimit-reset"
        "x-ratelimit-limit" "x-ratelimit-remaining" "x-ratelimit-reset" "x-ratelimit-retry-after"
    }
}

/// The texts from 000 to 999, one after the other.
const THREE_DIGITS: [u8; 3_000] = {
    let mut digits = [0; 3_000];
    let mut number = 0;
    while number < 1_000 {
        digits[3 * number] = b'0' + (number / 100) as u8;
        digits[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
        digits[3 * number + 2] = b'0' + (number % 10) as u8;
        number += 1;
    }
    digits
};

/// Makes the value of a field. For a number below 1,000, no memory is allocated. Most limits are below 1,000.
fn field_value(text: &[u8]) -> Option<HeaderValue> {
    static TEXT: &[u8] = &THREE_DIGITS;
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| usize::from(byte - b'0'));
    if let (1..=3, Some(number)) = (text.len(), text.iter().try_fold(0, |sum, byte| Some(10 * sum + digit(byte)?))) {
        let end = 3 * number + 3;
        let digits = std::str::from_utf8(&TEXT[end - text.len()..end]).ok()?;
        return Some(HeaderValue::from_static(digits));
    }
    HeaderValue::from_bytes(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_short_number_is_its_own_text() {
        for number in
            (0..2_000).map(|number| number.to_string()).chain(["00", "007", "a", "1a", "", "1.5"].map(str::to_owned))
        {
            assert_eq!(field_value(number.as_bytes()), HeaderValue::from_str(&number).ok());
        }
        assert_eq!(field_value(b"a\nb"), None);
    }
}
