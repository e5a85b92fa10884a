//! What the engine needs from a wire protocol.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Denied,
    Error,
}

/// One finished request: how many requests were sent before it on this connection, and its verdict.
pub(crate) struct Completion {
    pub request: u64,
    pub verdict: Verdict,
}

/// One connection's protocol state. Requests are numbered from 0 in the order they are encoded.
pub(crate) trait Protocol: Send {
    /// Bytes to send as soon as the connection is open.
    fn preface(&mut self, _out: &mut Vec<u8>) {}

    /// Encodes one request; false if the peer's flow control does not admit it yet.
    fn request(&mut self, key: &[u8], out: &mut Vec<u8>) -> bool;

    /// Consumes whole replies from the front of `input`, and returns how many bytes that was.
    fn replies(&mut self, input: &[u8], out: &mut Vec<u8>, done: &mut Vec<Completion>) -> Result<usize, String>;
}

/// Replaces every `{key}`; a template is split once and joined for each request.
#[derive(Clone)]
pub(crate) struct Template(Vec<Vec<u8>>);

impl Template {
    pub(crate) fn new(text: &str) -> Self {
        Template(text.split("{key}").map(|part| part.as_bytes().to_vec()).collect())
    }

    pub(crate) fn len(&self, key: &[u8]) -> usize {
        self.0.iter().map(Vec::len).sum::<usize>() + key.len() * (self.0.len() - 1)
    }

    pub(crate) fn write(&self, key: &[u8], out: &mut Vec<u8>) {
        for (i, part) in self.0.iter().enumerate() {
            if i > 0 {
                out.extend_from_slice(key);
            }
            out.extend_from_slice(part);
        }
    }
}
