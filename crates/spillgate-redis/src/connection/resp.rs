//! Decodes RESP2, the protocol of Redis: finds where a reply ends, and reads its value.
//!
//! Replies come from the network, so this file bounds their length, their number of elements and their depth.
//!
//! | bytes | value |
//! |---|---|
//! | `+OK\r\n` | the text `OK` |
//! | `-MOVED 1 a:1\r\n` | an error of the server |
//! | `:-7\r\n` | the number -7 |
//! | `$3\r\nabc\r\n` | the string `abc`, which may contain any bytes |
//! | `$-1\r\n`, `*-1\r\n` | a value that does not exist |
//! | `*2\r\n:1\r\n:2\r\n` | an array of two numbers |
//!
//! Decoding has two steps. [`LengthScanner`] finds the end of a reply, even if the reply comes in many pieces.
//! [`value`] then decodes a reply that is complete. Types of RESP3, such as `%` and `_`, are rejected. The store never
//! sends HELLO, so no Redis server replies in RESP3.

use std::io;

use redis::{Value, parse_redis_value};

use crate::not_redis::NotRedis;

/// The longest reply, in bytes. The longest reply that the store expects is shorter: CLUSTER SLOTS, with
/// each slot in a range of its own.
const LENGTH_MAX: usize = 8 << 20;
/// The maximum number of elements in all arrays of one reply.
const PARTS_MAX: usize = 1 << 19;
/// The longest line, in bytes, for example of an error.
const LINE_MAX: usize = 64 << 10;
/// The deepest nesting of arrays. CLUSTER SLOTS has four levels.
const DEPTH_MAX: usize = 8;
/// The longest number: a sign and 19 digits.
const NUMBER_MAX: usize = 20;

/// Finds the end of a reply. Each call continues where the last one stopped.
///
/// ```text
/// "*2\r\n:1\r\n"           None: one element is missing
/// "*2\r\n:1\r\n:2\r\n"     12: the reply is complete
/// "*2\r\n:1\r\n:2\r\n+O"   12: a second reply has begun
/// "HTTP/1.1 400"           an error: not RESP
/// ```
#[derive(Default)]
pub(crate) struct LengthScanner {
    /// The position after the last complete value.
    end: usize,
    /// The number of elements in all arrays so far. It includes elements that have not come yet.
    parts: usize,
    /// For each open array, the number of elements that are still missing.
    open: [usize; DEPTH_MAX],
    /// The number of open arrays.
    depth: usize,
}

impl LengthScanner {
    /// Returns the length of the reply at the start of `read`. `None` if the reply is not complete: the next call must
    /// then pass the same bytes and more. After a complete reply the scanner starts again.
    ///
    /// # Errors
    /// The bytes are not a reply, or the reply is too long.
    pub(crate) fn length(&mut self, read: &[u8]) -> io::Result<Option<usize>> {
        loop {
            let Some((kind, rest)) = read[self.end..].split_first() else { return Ok(None) };
            let (number, line) = match kind {
                b'+' | b'-' | b':' => match line(rest)? {
                    Some(line) => (None, line),
                    None => return Ok(None),
                },
                b'$' | b'*' => match number(rest)? {
                    Some(length_and_line) => length_and_line,
                    None => return Ok(None),
                },
                _ => return Err(not_resp()),
            };
            let bytes = number.filter(|_| *kind == b'$').map_or(Some(0), |length| length.checked_add(2));
            let end = bytes.and_then(|bytes| bytes.checked_add(self.end + 1 + line)).ok_or_else(too_long)?;
            if end > LENGTH_MAX {
                return Err(too_long());
            }
            match read.get(..end) {
                Some(part) if part.ends_with(b"\r\n") => self.end = end,
                Some(_) => return Err(not_resp()),
                None => return Ok(None),
            }
            if self.is_whole_with(number.filter(|_| *kind == b'*').unwrap_or(0))? {
                return Ok(Some(std::mem::take(self).end));
            }
        }
    }

    /// Counts a value, and returns whether the reply is complete. `parts` is the number of elements of the value, or 0
    /// if it is not an array.
    fn is_whole_with(&mut self, parts: usize) -> io::Result<bool> {
        self.parts = self.parts.saturating_add(parts);
        if self.parts > PARTS_MAX {
            return Err(too_long());
        }
        if parts > 0 {
            *self.open.get_mut(self.depth).ok_or_else(not_resp)? = parts;
            self.depth += 1;
            return Ok(false);
        }
        while self.depth > 0 {
            let open = &mut self.open[self.depth - 1];
            *open -= 1;
            if *open > 0 {
                return Ok(false);
            }
            self.depth -= 1;
        }
        Ok(true)
    }
}

/// Returns the length of the reply at the start of `read`. `None` if the reply is not complete.
pub(crate) fn length(read: &[u8]) -> io::Result<Option<usize>> {
    LengthScanner::default().length(read)
}

/// Returns the value of a complete reply.
///
/// # Errors
/// The bytes are not a reply.
pub(crate) fn value(reply: &[u8]) -> io::Result<Value> {
    let (kind, rest) = reply.split_first().ok_or_else(not_resp)?;
    if *kind == b':' {
        let digits = rest.strip_suffix(b"\r\n").and_then(|digits| std::str::from_utf8(digits).ok());
        return digits.and_then(|digits| digits.parse().ok()).map(Value::Int).ok_or_else(not_resp);
    }
    match (kind, number(rest)) {
        (b'$', Ok(Some((Some(length), line)))) => {
            rest.get(line..line + length).map(|bytes| Value::BulkString(bytes.to_vec())).ok_or_else(not_resp)
        }
        (b'*', Ok(Some((Some(parts), line)))) => {
            let (mut rest, mut values) = (&rest[line..], Vec::with_capacity(parts.min(rest.len())));
            for _ in 0..parts {
                let (part, after) = rest.split_at(length(rest)?.ok_or_else(not_resp)?);
                values.push(value(part)?);
                rest = after;
            }
            Ok(Value::Array(values))
        }
        _ => parse_redis_value(reply).map_err(|_| not_resp()),
    }
}

/// Returns the length of a line, including its end. `None` if the line is not complete.
fn line(rest: &[u8]) -> io::Result<Option<usize>> {
    match rest.iter().take(LINE_MAX).position(|byte| *byte == b'\n') {
        Some(end) if end > 0 && rest[end - 1] == b'\r' => Ok(Some(end + 1)),
        Some(_) => Err(not_resp()),
        None if rest.len() >= LINE_MAX => Err(too_long()),
        None => Ok(None),
    }
}

/// Reads the first line of a string or an array. Returns the length of the string or array, which this line contains,
/// and the number of bytes of the line with its end. The length is `None` for a value that does not exist. The result
/// is `None` if the line is not complete.
fn number(rest: &[u8]) -> io::Result<Option<(Option<usize>, usize)>> {
    let Some(end) = rest.iter().take(NUMBER_MAX + 1).position(|byte| *byte == b'\r') else {
        return if rest.len() > NUMBER_MAX { Err(not_resp()) } else { Ok(None) };
    };
    let number = match &rest[..end] {
        b"-1" => None,
        digits if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => {
            let number = digits
                .iter()
                .try_fold(0_usize, |number, digit| number.checked_mul(10)?.checked_add(usize::from(digit - b'0')));
            Some(number.ok_or_else(too_long)?)
        }
        _ => return Err(not_resp()),
    };
    match rest.get(end + 1) {
        Some(b'\n') => Ok(Some((number, end + 2))),
        Some(_) => Err(not_resp()),
        None => Ok(None),
    }
}

/// Returns the error for bytes that are not RESP.
fn not_resp() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, NotRedis)
}

/// Returns the error for a reply that is longer, or has more elements, than any reply to a command of the store.
fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server's reply is too long")
}

#[cfg(test)]
mod tests;
