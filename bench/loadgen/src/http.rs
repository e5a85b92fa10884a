//! HTTP/1.1 on connections that are kept open. If several requests may be in flight on a connection, they are
//! pipelined.

use crate::proto::{Completion, Protocol, Template, Verdict};

/// The state of one connection. Replies come in the order of the requests.
#[derive(Clone)]
pub(crate) struct Http {
    head: Template,
    body: Template,
    done: u64,
}

impl Http {
    pub(crate) fn new(method: &str, path: &str, host: &str, body: &str) -> Self {
        let content = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{content}content-length: ");
        Http { head: Template::new(&head), body: Template::new(body), done: 0 }
    }
}

/// Returns the length of the chunked body at the front of `input`, or `None` if the body is not complete.
fn chunked_len(input: &[u8]) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        let Some(line) = input[at..].windows(2).position(|w| w == b"\r\n") else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&input[at..at + line]).map_err(|e| e.to_string())?;
        let size = usize::from_str_radix(text.split(';').next().unwrap_or("").trim(), 16).map_err(|e| e.to_string())?;
        at += line + 2 + size + 2;
        if at > input.len() {
            return Ok(None);
        }
        if size == 0 {
            return Ok(Some(at));
        }
    }
}

/// Reads the reply at the front of `input`. Returns its status and its length in bytes, or `None` if it is not
/// complete.
fn reply(input: &[u8]) -> Result<Option<(u16, usize)>, String> {
    let Some(head_len) = input.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4) else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&input[..head_len]).map_err(|e| e.to_string())?;
    let status = head.get(9..12).and_then(|s| s.parse().ok()).ok_or("not an HTTP/1.1 reply")?;
    let mut body_len = Some(0);
    for line in head.lines().skip(1) {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            body_len = Some(value.trim().parse().map_err(|_| "bad content-length")?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            body_len = chunked_len(&input[head_len..])?;
        }
    }
    Ok(body_len.map(|n| head_len + n).filter(|&n| n <= input.len()).map(|n| (status, n)))
}

impl Protocol for Http {
    fn request(&mut self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.head.write(key, out);
        out.extend_from_slice(self.body.len(key).to_string().as_bytes());
        out.extend_from_slice(b"\r\n\r\n");
        self.body.write(key, out);
        true
    }

    fn replies(&mut self, input: &[u8], _out: &mut Vec<u8>, done: &mut Vec<Completion>) -> Result<usize, String> {
        let mut used = 0;
        while let Some((status, len)) = reply(&input[used..])? {
            used += len;
            let verdict = match status {
                200 => Verdict::Allowed,
                429 => Verdict::Denied,
                _ => Verdict::Error,
            };
            done.push(Completion { request: self.done, verdict });
            self.done += 1;
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_and_partial_replies() {
        let mut http = Http::new("POST", "/c/{key}", "h", "{\"k\":\"{key}\"}");
        let mut out = Vec::new();
        http.request(b"ab", &mut out);
        assert!(out.starts_with(b"POST /c/ab HTTP/1.1\r\n"));
        assert!(out.ends_with(b"content-length: 10\r\n\r\n{\"k\":\"ab\"}"));
        let input = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 429 No\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nHTTP/1.1 500";
        let mut done = Vec::new();
        let used = http.replies(input, &mut out, &mut done).unwrap();
        assert_eq!(used, input.len() - 12);
        assert_eq!(done.iter().map(|c| c.verdict).collect::<Vec<_>>(), [Verdict::Allowed, Verdict::Denied]);
    }
}
