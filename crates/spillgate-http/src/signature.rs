//! Signs the ids that clients get and send back: lease ids and reservation ids.
//!
//! An id contains everything that its later use needs, so the server keeps no table of ids. A client that does not know
//! the signing secret cannot make or change an id. So such a client cannot release or settle what belongs to others.
//!
//! An id is a text in base64url: its bytes, and then a tag of 16 bytes. The tag is a SipHash-2-4-128 of the bytes, with
//! the signing secret. Each kind of id has a signing secret of its own, which is derived from the key secret (the
//! secret with which keys are hashed). With a shared store and without `store.key_secret_file`, the key secret is
//! public, so everyone can compute the signing secrets.

use std::hash::Hasher as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use spillgate::KeyHasher;

const TAG_BYTES: usize = 16;

/// The signing secret of one kind of id: it signs ids and checks them.
#[derive(Clone)]
pub(crate) struct Signer([u8; 16]);

/// An id is invalid: it was signed with another signing secret, was altered, or has another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadId;

impl Signer {
    /// Derives the signing secret from the key secret. If the key secret changes, the server cannot find its old counts
    /// any more, and old ids become invalid at the same time.
    ///
    /// The signing secret is a hash of `kind` with the key secret. A client can read other hashes with the key secret,
    /// namely the keys in an id. But from these hashes, nobody can compute the hash of another text.
    pub(crate) fn of(keys: &KeyHasher, kind: &str) -> Signer {
        Signer(keys.start().part(kind.as_bytes()).finish().to_be_bytes())
    }

    /// Returns the id that has these bytes and their tag.
    pub(crate) fn sign(&self, mut bytes: Vec<u8>) -> String {
        let tag = self.tag(&bytes);
        bytes.extend_from_slice(&tag);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Returns the bytes of an id without its tag. Fails if the id was not signed with this secret, or if it is longer
    /// than an id of `max_bytes` bytes can be.
    pub(crate) fn open(&self, id: &str, max_bytes: usize) -> Result<Vec<u8>, BadId> {
        if id.len() > (max_bytes + TAG_BYTES).div_ceil(3) * 4 {
            return Err(BadId);
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(id).map_err(|_| BadId)?;
        let (signed, tag) = bytes.split_last_chunk::<TAG_BYTES>().ok_or(BadId)?;
        if !equal_in_constant_time(&self.tag(signed), tag) {
            return Err(BadId);
        }
        bytes.truncate(bytes.len() - TAG_BYTES);
        Ok(bytes)
    }

    fn tag(&self, bytes: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }
}

impl std::fmt::Debug for Signer {
    /// Does not show the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

/// Returns whether `a` and `b` are equal. The comparison takes the same time whichever bytes differ, so nobody can
/// guess a tag byte by byte.
pub(crate) fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| std::hint::black_box(differ | (a ^ b)));
    a.len() == b.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_kind_are_no_ids_of_another_kind() {
        let keys = KeyHasher::random();
        let (one, other) = (Signer::of(&keys, "one"), Signer::of(&keys, "other"));
        let id = one.sign(vec![1, 2, 3]);
        assert_eq!(one.open(&id, 3), Ok(vec![1, 2, 3]));
        assert_eq!(other.open(&id, 3), Err(BadId));
    }

    #[test]
    fn comparing_reads_every_byte() {
        assert!(equal_in_constant_time(b"", b"") && equal_in_constant_time(b"abc", b"abc"));
        assert!(
            !equal_in_constant_time(b"abc", b"abd")
                && !equal_in_constant_time(b"abc", b"ab")
                && !equal_in_constant_time(b"", b"a")
        );
    }
}
