//! Sequences of random keys, uniform or by a Zipf distribution. The same seed gives the same sequence.

/// The length of the sequence. The sequence is drawn before the run and then repeated, so that drawing takes no time
/// under load.
const SEQUENCE: usize = 1 << 20;

pub(crate) struct Keys {
    prefix: Vec<u8>,
    sequence: Vec<u32>,
    next: usize,
    text: Vec<u8>,
}

impl Keys {
    pub(crate) fn new(prefix: &str, count: u64, exponent: f64, seed: u64) -> Self {
        let sequence = kit::draw(u32::try_from(count).unwrap_or(u32::MAX), exponent, seed, SEQUENCE);
        Keys { prefix: prefix.as_bytes().to_vec(), sequence, next: 0, text: Vec::new() }
    }

    /// Returns the next key: the prefix, and a number of at least eight digits, with zeros in front.
    pub(crate) fn next(&mut self) -> &[u8] {
        use std::io::Write;
        let index = self.sequence[self.next];
        self.next = (self.next + 1) % self.sequence.len();
        self.text.clear();
        self.text.extend_from_slice(&self.prefix);
        let _ = write!(self.text, "{index:08}");
        &self.text
    }
}
