//! Where answers end and what they are, in the second version of the protocol.

use std::io;

use redis::{Value, parse_redis_value};

/// The longest answer: the longest state is a tenth of that.
const LENGTH_MAX: usize = 16 << 20;
/// Arrays within arrays: those of CLUSTER SLOTS are four deep.
const DEPTH_MAX: usize = 8;
/// Letters of a number: a sign, and 19 digits.
const NUMBER_MAX: usize = 20;

/// The length of the first answer in `read`; `None` if it is not all there yet.
///
/// # Errors
/// It is no answer, or too long.
pub(crate) fn length(read: &[u8]) -> io::Result<Option<usize>> {
    // Those of the arrays that the next answer is part of that are still to come.
    let mut open: [usize; DEPTH_MAX] = [0; DEPTH_MAX];
    let (mut depth, mut end) = (0, 0);
    loop {
        let Some((kind, rest)) = read[end..].split_first() else { return Ok(None) };
        let (number, after) = match kind {
            b'+' | b'-' | b':' => {
                let Some(line) = line(rest)? else { return Ok(None) };
                (None, end + 1 + line)
            }
            b'$' | b'*' => {
                let Some((number, line)) = number(rest)? else { return Ok(None) };
                (number, end + 1 + line)
            }
            _ => return Err(none()),
        };
        end = after;
        if end > LENGTH_MAX {
            return Err(too_long());
        }
        match (kind, number) {
            (b'$', Some(length)) => {
                end = end.checked_add(length).and_then(|end| end.checked_add(2)).ok_or_else(none)?;
                if end > LENGTH_MAX {
                    return Err(too_long());
                }
                match read.get(end - 2..end) {
                    Some(b"\r\n") => {}
                    Some(_) => return Err(none()),
                    None => return Ok(None),
                }
            }
            (b'*', Some(parts @ 1..)) => {
                *open.get_mut(depth).ok_or_else(none)? = parts;
                depth += 1;
                continue;
            }
            _ => {}
        }
        while depth > 0 {
            open[depth - 1] -= 1;
            if open[depth - 1] > 0 {
                break;
            }
            depth -= 1;
        }
        if depth == 0 {
            return Ok(Some(end));
        }
    }
}

/// A whole answer's value.
///
/// # Errors
/// It is none.
pub(crate) fn value(reply: &[u8]) -> io::Result<Value> {
    let (kind, rest) = reply.split_first().ok_or_else(none)?;
    match (kind, number(rest)) {
        (b'$', Ok(Some((Some(length), line)))) => {
            rest.get(line..line + length).map(|bytes| Value::BulkString(bytes.to_vec())).ok_or_else(none)
        }
        (b'*', Ok(Some((Some(parts), line)))) => {
            let (mut rest, mut values) = (&rest[line..], Vec::with_capacity(parts.min(rest.len())));
            for _ in 0..parts {
                let (part, after) = rest.split_at(length(rest)?.ok_or_else(none)?);
                values.push(value(part)?);
                rest = after;
            }
            Ok(Value::Array(values))
        }
        _ => parse_redis_value(reply).map_err(|_| none()),
    }
}

/// The length of a line with its end.
fn line(rest: &[u8]) -> io::Result<Option<usize>> {
    match rest.iter().position(|byte| *byte == b'\n') {
        Some(end) if end > 0 && rest[end - 1] == b'\r' => Ok(Some(end + 1)),
        Some(_) => Err(none()),
        None if rest.len() > LENGTH_MAX => Err(too_long()),
        None => Ok(None),
    }
}

/// A length, `None` for that of nothing; and the length of its line with its end.
fn number(rest: &[u8]) -> io::Result<Option<(Option<usize>, usize)>> {
    let Some(end) = rest.iter().take(NUMBER_MAX + 1).position(|byte| *byte == b'\r') else {
        return if rest.len() > NUMBER_MAX { Err(none()) } else { Ok(None) };
    };
    let number = match &rest[..end] {
        b"-1" => None,
        digits if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => {
            let number = digits
                .iter()
                .try_fold(0_usize, |number, digit| number.checked_mul(10)?.checked_add(usize::from(digit - b'0')));
            Some(number.ok_or_else(too_long)?)
        }
        _ => return Err(none()),
    };
    match rest.get(end + 1) {
        Some(b'\n') => Ok(Some((number, end + 2))),
        Some(_) => Err(none()),
        None => Ok(None),
    }
}

/// What is no answer.
fn none() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what answers there is no Redis")
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server's answer is too long")
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::{DEPTH_MAX, LENGTH_MAX, length, value};

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
    fn what_is_no_answer_is_found_out_at_once() {
        let deep = [b"*1\r\n".repeat(DEPTH_MAX + 1), b":1\r\n".to_vec()].concat();
        let none: [&[u8]; 17] = [
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
        for none in none {
            assert!(length(none).is_err(), "{:?}", String::from_utf8_lossy(none));
        }
        let long = format!("${LENGTH_MAX}\r\n");
        assert!(length(long.as_bytes()).is_err());
        assert!(length(&[b"+".to_vec(), vec![b'a'; LENGTH_MAX + 1]].concat()).is_err());
        let many = [b"*9999999999\r\n".to_vec(), b":1\r\n".repeat(LENGTH_MAX / 4)].concat();
        assert!(length(&many).is_err());
    }

    /// Against the client library's parser, on what answers become when bytes of theirs change places.
    #[test]
    fn random_bytes_are_read_as_the_client_library_reads_them_or_not_at_all() {
        let mut state = 7_u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let alphabet = b"*$:+-0123456789\r\nab";
        let (mut whole, mut partial, mut none) = (0, 0, 0);
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
                    // It lets pass an integer that is none; that is found out by who reads the value.
                    let theirs = parse_redis_value(&bytes[..length]).ok();
                    assert_eq!(read, theirs, "{:?}", String::from_utf8_lossy(&bytes));
                }
                Ok(None) => partial += 1,
                Err(_) => none += 1,
            }
        }
        assert!(whole > 10_000 && partial > 10_000 && none > 10_000, "{whole} whole, {partial} partial, {none} none");
        assert_eq!(value(b"").ok(), None::<Value>);
    }
}
