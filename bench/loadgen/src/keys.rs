//! Seeded key sequences: uniform, or Zipf by inverse transform over the exact cumulative weights.

use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Length of the pre-drawn cyclic sequence, so that drawing costs nothing under load.
const SEQUENCE: usize = 1 << 20;

pub(crate) struct Keys {
    prefix: Vec<u8>,
    sequence: Vec<u32>,
    next: usize,
    text: Vec<u8>,
}

impl Keys {
    pub(crate) fn new(prefix: &str, count: u64, exponent: f64, seed: u64) -> Self {
        let count = count.clamp(1, u32::MAX as u64);
        let mut rng = SmallRng::seed_from_u64(seed);
        let sequence = if exponent == 0.0 {
            (0..SEQUENCE).map(|_| rng.random_range(0..count) as u32).collect()
        } else {
            let mut total = 0.0;
            let weights: Vec<f64> = (1..=count)
                .map(|rank| {
                    total += (rank as f64).powf(-exponent);
                    total
                })
                .collect();
            (0..SEQUENCE)
                .map(|_| {
                    let at = rng.random::<f64>() * total;
                    weights.partition_point(|&w| w < at).min(count as usize - 1) as u32
                })
                .collect()
        };
        Keys { prefix: prefix.as_bytes().to_vec(), sequence, next: 0, text: Vec::new() }
    }

    /// The next key: the prefix and a zero-padded number of eight digits or more.
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
