//! RESP2, the protocol of Redis. If several requests may be in flight on a connection, they are pipelined.
//!
//! A request may have several commands, which are sent together. The request is finished when all its commands are
//! answered. The first reply says whether the request is allowed. If any reply is an error, the request is an error.

use crate::proto::{Completion, Protocol, Template, Verdict};

pub(crate) struct Resp {
    commands: Vec<Vec<Template>>,
    denied: i64,
    done: u64,
    /// The verdicts of the replies that have arrived for the current request.
    partial: Vec<Verdict>,
}

impl Resp {
    pub(crate) fn new(command: &str, denied: i64) -> Self {
        let words = |text: &str| text.split_whitespace().map(Template::new).collect();
        Resp { commands: command.split(';').map(words).collect(), denied, done: 0, partial: Vec::new() }
    }
}

/// Reads the value at the front of `input`. Returns its length, whether it is an error, and the first integer in it.
/// Returns `None` if the value is not complete.
fn value(input: &[u8]) -> Result<Option<(usize, bool, Option<i64>)>, String> {
    let Some(line) = input.windows(2).position(|w| w == b"\r\n") else {
        return Ok(None);
    };
    let end = line + 2;
    let number = || -> Result<i64, String> {
        std::str::from_utf8(&input[1..line]).ok().and_then(|s| s.parse().ok()).ok_or("bad RESP number".into())
    };
    match input[0] {
        b'+' => Ok(Some((end, false, None))),
        b'-' => Ok(Some((end, true, None))),
        b':' => Ok(Some((end, false, Some(number()?)))),
        b'$' => {
            let len = number()?;
            let end = if len < 0 { end } else { end + len as usize + 2 };
            Ok((end <= input.len()).then_some((end, false, None)))
        }
        b'*' => {
            let (mut end, mut error, mut first) = (end, false, None);
            for i in 0..number()? {
                let Some((len, is_error, integer)) = value(&input[end..])? else {
                    return Ok(None);
                };
                end += len;
                error |= is_error;
                if i == 0 {
                    first = integer;
                }
            }
            Ok(Some((end, error, first)))
        }
        other => Err(format!("not RESP2: byte {other}")),
    }
}

impl Protocol for Resp {
    fn request(&mut self, key: &[u8], out: &mut Vec<u8>) -> bool {
        use std::io::Write;
        for words in &self.commands {
            let _ = write!(out, "*{}\r\n", words.len());
            for word in words {
                let _ = write!(out, "${}\r\n", word.len(key));
                word.write(key, out);
                out.extend_from_slice(b"\r\n");
            }
        }
        true
    }

    fn replies(&mut self, input: &[u8], _out: &mut Vec<u8>, done: &mut Vec<Completion>) -> Result<usize, String> {
        let mut used = 0;
        while let Some((len, error, first)) = value(&input[used..])? {
            used += len;
            self.partial.push(match first {
                _ if error => Verdict::Error,
                Some(n) if n == self.denied => Verdict::Denied,
                _ => Verdict::Allowed,
            });
            if self.partial.len() == self.commands.len() {
                let failed = self.partial.contains(&Verdict::Error);
                let verdict = if failed { Verdict::Error } else { self.partial[0] };
                done.push(Completion { request: self.done, verdict });
                self.done += 1;
                self.partial.clear();
            }
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_and_partial_replies() {
        let mut resp = Resp::new("T {key} 1", 1);
        let mut out = Vec::new();
        resp.request(b"ab", &mut out);
        assert_eq!(out, b"*3\r\n$1\r\nT\r\n$2\r\nab\r\n$1\r\n1\r\n");
        let input = b"*2\r\n:1\r\n$2\r\nxx\r\n+PONG\r\n-ERR\r\n*2\r\n:0\r\n";
        let mut done = Vec::new();
        let used = resp.replies(input, &mut out, &mut done).unwrap();
        assert_eq!(used, input.len() - 8);
        let verdicts: Vec<_> = done.iter().map(|c| c.verdict).collect();
        assert_eq!(verdicts, [Verdict::Denied, Verdict::Allowed, Verdict::Error]);
    }

    #[test]
    fn several_commands_are_one_request() {
        let mut resp = Resp::new("INCR {key}; EXPIRE {key} 60 NX", 9);
        let (mut out, mut done) = (Vec::new(), Vec::new());
        resp.request(b"k", &mut out);
        assert!(out.starts_with(b"*2\r\n$4\r\nINCR") && out.ends_with(b"$2\r\nNX\r\n"));
        resp.replies(b":9\r\n:1\r\n:1\r\n-E\r\n:1\r\n", &mut out, &mut done).unwrap();
        let seen: Vec<_> = done.iter().map(|c| (c.request, c.verdict)).collect();
        assert_eq!(seen, [(0, Verdict::Denied), (1, Verdict::Error)]);
    }
}
