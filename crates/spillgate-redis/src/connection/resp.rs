//! Decodes RESP2, the protocol of Redis: where a reply ends, and what it contains.
//!
//! The replies come from the network, so their length, their number of elements and their depth are bounded here.

use std::io;

use redis::{Value, parse_redis_value};

/// The longest reply. CLUSTER SLOTS of a cluster in which every slot is a range of its own fits.
const LENGTH_MAX: usize = 8 << 20;
/// The most elements in all arrays of one reply.
const PARTS_MAX: usize = 1 << 19;
/// The longest error or other line.
const LINE_MAX: usize = 64 << 10;
/// The deepest nesting of arrays. CLUSTER SLOTS has four levels.
const DEPTH_MAX: usize = 8;
/// The longest number: a sign and 19 digits.
const NUMBER_MAX: usize = 20;

/// Finds the end of a reply. It continues where it stopped when more bytes have come.
#[derive(Default)]
pub(crate) struct LengthScanner {
    /// Everything before this is complete.
    end: usize,
    parts: usize,
    /// For each open array, the number of elements that are still missing.
    open: [usize; DEPTH_MAX],
    depth: usize,
}

impl LengthScanner {
    /// The length of the reply at the start of `read`; `None` if it is not complete. The next call must then pass the
    /// same bytes and more. After a complete reply the scanner starts again.
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

    /// Counts a value that is an array of `parts` elements. Returns whether the reply is complete.
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

/// The length of the reply, as [`LengthScanner::length`] finds it, if all bytes are here.
pub(crate) fn length(read: &[u8]) -> io::Result<Option<usize>> {
    LengthScanner::default().length(read)
}

/// The value of a complete reply.
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

/// The length of a line, including its end.
fn line(rest: &[u8]) -> io::Result<Option<usize>> {
    match rest.iter().take(LINE_MAX).position(|byte| *byte == b'\n') {
        Some(end) if end > 0 && rest[end - 1] == b'\r' => Ok(Some(end + 1)),
        Some(_) => Err(not_resp()),
        None if rest.len() >= LINE_MAX => Err(too_long()),
        None => Ok(None),
    }
}

/// A length, or `None` for a value that does not exist; and the length of its line, including the end.
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

/// The bytes are not RESP.
fn not_resp() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the reply is not in the protocol of Redis")
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server's reply is too long")
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::{DEPTH_MAX, LENGTH_MAX, LINE_MAX, LengthScanner, PARTS_MAX, length, value};

    const ANSWERS: [&[u8]; 14] = [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b"-\r\n",
        b":-7\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"$5\r\na\r\nbc\r\n",
        b"$10\r\n0123456789\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*2\r\n$1\r\na\r\n-MOVED 1 a:1\r\n",
        b"*3\r\n*2\r\n:1\r\n*0\r\n$-1\r\n*1\r\n*1\r\n+a\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        b"*2\r\n*-1\r\n:3\r\n",
    ];

    #[test]
    fn an_answer_ends_where_it_ends() {
        for answer in ANSWERS {
            let text = String::from_utf8_lossy(answer);
            for cut in 0..answer.len() {
                assert_eq!(length(&answer[..cut]).expect("a beginning"), None, "{text:?} up to {cut}");
            }
            let more = [answer, b"$-1\r\n"].concat();
            assert_eq!(length(&more).expect("an answer"), Some(answer.len()), "{text:?}");
            assert_eq!(value(answer).expect("an answer"), parse_redis_value(answer).expect("an answer"), "{text:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_a_reply_are_rejected_at_once() {
        let deep = [b"*1\r\n".repeat(DEPTH_MAX + 1), b":1\r\n".to_vec()].concat();
        let not_resp: [&[u8]; 17] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\x15\x03\x03",
            b"\r\n",
            b"%1\r\n",
            b"_\r\n",
            b"+OK\n",
            b"$\r\n",
            b"$x\r\n",
            b"$-2\r\n",
            b"$+1\r\n",
            b"$1\rx",
            b"$1\r\nab\r\n",
            b"$1\r\na\rb",
            b"*1\r\n?",
            b"$99999999999999999999\r\n",
            b"$111111111111111111111",
            &deep,
        ];
        for not_resp in not_resp {
            assert!(length(not_resp).is_err(), "{:?}", String::from_utf8_lossy(not_resp));
        }
        let long = format!("${LENGTH_MAX}\r\n");
        assert!(length(long.as_bytes()).is_err());
        let line = [b"+".to_vec(), vec![b'a'; LINE_MAX]].concat();
        assert!(length(&line).is_err() && matches!(length(&line[..LINE_MAX]), Ok(None)));
        let many = format!("*2\r\n*{}\r\n", PARTS_MAX - 3);
        assert!(matches!(length(many.as_bytes()), Ok(None)));
        assert!(length([many.as_bytes(), b"*1\r\n"].concat().as_slice()).is_ok());
        assert!(length([many.as_bytes(), b"*1\r\n*1\r\n"].concat().as_slice()).is_err());
        let strings = [format!("*{PARTS_MAX}\r\n").into_bytes(), b"$9\r\n123456789\r\n".repeat(PARTS_MAX)].concat();
        assert!(strings.len() < LENGTH_MAX && length(&strings).is_ok_and(|length| length == Some(strings.len())));
        let longer = [format!("*{PARTS_MAX}\r\n").into_bytes(), b"$20\r\n12345678901234567890\r\n".repeat(PARTS_MAX)];
        assert!(length(&longer.concat()).is_err());
    }

    #[test]
    fn a_scan_goes_on_where_it_has_stopped() {
        let all = ANSWERS.concat();
        for step in [1, 2, 3, 7, 50] {
            let (mut scanner, mut start, mut ends) = (LengthScanner::default(), 0, Vec::new());
            for end in (0..all.len()).step_by(step).chain([all.len()]) {
                while let Some(length) = scanner.length(&all[start..end]).expect("answers") {
                    start += length;
                    ends.push(length);
                }
            }
            assert!(ends.iter().copied().eq(ANSWERS.iter().map(|answer| answer.len())), "{step}");
        }
    }

    /// Compares with the client library's parser, on replies in which some bytes were replaced.
    #[test]
    fn random_bytes_are_read_as_the_client_library_reads_them_or_not_at_all() {
        let mut state = 7_u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let alphabet = b"*$:+-0123456789\r\nab";
        let (mut whole, mut values, mut partial, mut not_resp) = (0, 0, 0, 0);
        for _ in 0..200_000 {
            let mut bytes = [ANSWERS[below(ANSWERS.len())], ANSWERS[below(ANSWERS.len())]].concat();
            for _ in 0..below(3) {
                let at = below(bytes.len());
                bytes[at] = alphabet[below(alphabet.len())];
            }
            bytes.truncate(1 + below(bytes.len()));
            match length(&bytes) {
                Ok(Some(length)) => {
                    whole += 1;
                    let read = value(&bytes[..length]).ok();
                    // Here a number must have digits only.
                    let theirs = parse_redis_value(&bytes[..length]).ok();
                    assert!(read.is_none() || read == theirs, "{:?}", String::from_utf8_lossy(&bytes));
                    values += u32::from(read.is_some());
                }
                Ok(None) => partial += 1,
                Err(_) => not_resp += 1,
            }
        }
        assert!(values > 9 * whole / 10, "{values} values of {whole}");
        assert!(
            whole > 10_000 && partial > 10_000 && not_resp > 10_000,
            "{whole} whole, {partial} partial, {not_resp} not RESP"
        );
        assert_eq!(value(b"").ok(), None::<Value>);
    }
}
