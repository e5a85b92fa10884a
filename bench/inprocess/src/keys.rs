//! Keys of 16 bytes, made before the measurement starts.
//!
//! To make a key costs as much as a decision, so it must not be part of the measurement.

use std::io::Write;

const KEY_BYTES: usize = 16;

/// The key of a number, written into `text`.
fn key_of(index: u32, text: &mut [u8; KEY_BYTES]) -> &str {
    // The text is long enough for every number, so this cannot fail.
    let _ = write!(text.as_mut_slice(), "user:{index:011}");
    std::str::from_utf8(text).unwrap_or_default()
}

/// Keys in one flat buffer, in the order in which they are used. The next key is in the cache, like the key of a request
/// that was just received.
pub(crate) struct Keys(Vec<u8>);

impl Keys {
    pub(crate) fn new(sequence: &[u32]) -> Keys {
        let mut keys = Keys::with_capacity(sequence.len());
        keys.fill(sequence.iter().copied());
        keys
    }

    pub(crate) fn with_capacity(keys: usize) -> Keys {
        Keys(Vec::with_capacity(keys * KEY_BYTES))
    }

    /// Replaces all keys. Allocates nothing if there were as many keys before.
    pub(crate) fn fill(&mut self, sequence: impl IntoIterator<Item = u32>) {
        self.0.clear();
        let mut text = [0; KEY_BYTES];
        for index in sequence {
            self.0.extend_from_slice(key_of(index, &mut text).as_bytes());
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        // The check of 16 ASCII bytes costs one or two nanoseconds, and the same for every limiter.
        self.0.chunks_exact(KEY_BYTES).map(|key| std::str::from_utf8(key).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_length_and_keep_their_order() {
        let keys = Keys::new(&[7, 0, u32::MAX]);
        let listed: Vec<&str> = keys.iter().collect();
        assert_eq!(listed, ["user:00000000007", "user:00000000000", "user:04294967295"]);
        let mut keys = Keys::with_capacity(1);
        keys.fill([1, 2]);
        keys.fill([3]);
        assert_eq!(keys.iter().collect::<Vec<_>>(), ["user:00000000003"]);
    }
}
