//! The trait that every protocol of the load generator implements. With this trait, the engine sends and counts
//! requests without knowing the protocol.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Denied,
    Error,
}

/// A finished request: its number on this connection, and its verdict.
pub(crate) struct Completion {
    pub request: u64,
    pub verdict: Verdict,
}

/// The state of a protocol on one connection. Requests are numbered from 0, in the order in which they are encoded.
pub(crate) trait Protocol: Send {
    /// Writes the bytes that have to be sent as soon as the connection is open.
    fn preface(&mut self, _out: &mut Vec<u8>) {}

    /// Encodes one request. Returns false if the flow control of the server does not allow this request yet.
    fn request(&mut self, key: &[u8], out: &mut Vec<u8>) -> bool;

    /// Reads complete replies from the front of `input`. Returns the number of bytes that were read.
    fn replies(&mut self, input: &[u8], out: &mut Vec<u8>, done: &mut Vec<Completion>) -> Result<usize, String>;
}

/// A text in which every `{key}` is replaced. The text is split once, and its parts are joined for each request.
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
