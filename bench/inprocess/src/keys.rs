//! Keys of 16 bytes, made before the measurement starts.
//!
//! Making a key costs as much as a decision, so the measurement must not include it.

use std::io::Write;

const KEY_BYTES: usize = 16;

/// Writes the key with this number into `text`.
fn key_of(index: u32, text: &mut [u8; KEY_BYTES]) -> &str {
    // `text` is long enough for every number, so this cannot fail.
    let _ = write!(text.as_mut_slice(), "user:{index:011}");
    std::str::from_utf8(text).unwrap_or_default()
}

/// Keys in one buffer, in the order in which they are used. The next key is therefore usually in the processor's cache,
/// like the key of a request that has just arrived.
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

    /// Replaces all keys. Allocates nothing if the buffer has capacity for the new keys.
    pub(crate) fn fill(&mut self, sequence: impl IntoIterator<Item = u32>) {
        self.0.clear();
        let mut text = [0; KEY_BYTES];
        for index in sequence {
            self.0.extend_from_slice(key_of(index, &mut text).as_bytes());
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        // The check of 16 ASCII bytes costs one or two nanoseconds. The cost is the same for every limiter.
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
