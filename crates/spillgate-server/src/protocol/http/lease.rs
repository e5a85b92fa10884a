//! Lease ids: signed tokens that release or renew the permits of a `concurrency` limit.
//!
//! A token contains everything that a release or a renewal needs, so the server keeps no table of leases.
//!
//! A token is base64url(version, leases, tag). The tag is a SipHash-2-4-128 of the version and the leases, with the
//! signing secret. A client that does not know the signing secret cannot make or change a token, and therefore cannot
//! release the permits of other clients.
//!
//! The signing secret is derived from the key secret (the secret with which keys are hashed). With a shared store and
//! without `store.key_secret_file`, the key secret is public, so everyone can compute the signing secret.

use std::hash::Hasher as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use spillgate::{Algorithm, KeyHasher, MAX_HITS, Quota, Receipt, Time};

const VERSION: u8 = 1;
/// The key has 16 bytes. The limit, the duration, the number of permits, and the time and the mark of the receipt have
/// 8 bytes each.
const LEASE_BYTES: usize = 56;
const TAG_BYTES: usize = 16;
/// The longest token that is decoded. It has one lease for each hit that a request can have.
const MAX_TOKEN_CHARS: usize = (1 + MAX_HITS * LEASE_BYTES + TAG_BYTES).div_ceil(3) * 4;

/// Permits that one limit granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) key: u128,
    pub(crate) quota: Quota,
    pub(crate) permits: u64,
    pub(crate) receipt: Receipt,
}

/// The signing secret: it signs lease ids and checks them.
#[derive(Clone)]
pub(crate) struct LeaseKey([u8; 16]);

/// The token is invalid: it was not signed with the signing secret of this server, was altered, or has another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadLeaseId;

impl LeaseKey {
    /// Derives the signing secret from the key secret. If the key secret changes, the server cannot find its old counts
    /// any more, and old tokens become invalid at the same time.
    ///
    /// A client can read the keys in a token. But a client that does not know the key secret cannot compute the signing
    /// secret from these keys, because they are hashes of other texts.
    pub(crate) fn of(keys: &KeyHasher) -> LeaseKey {
        LeaseKey(keys.start().part(b"lease ids").finish().to_be_bytes())
    }

    /// Returns the token of `leases`, of which there are at most [`MAX_HITS`].
    pub(crate) fn sign(&self, leases: &[Lease]) -> String {
        let mut bytes = Vec::with_capacity(1 + leases.len() * LEASE_BYTES + TAG_BYTES);
        bytes.push(VERSION);
        for Lease { key, quota, permits, receipt } in leases {
            bytes.extend_from_slice(&key.to_be_bytes());
            for word in [quota.hard_capacity(), quota.lease_ns(), *permits, receipt.at.as_nanos(), receipt.mark] {
                bytes.extend_from_slice(&word.to_be_bytes());
            }
        }
        let tag = self.tag(&bytes);
        bytes.extend_from_slice(&tag);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Returns the leases of a token that was signed with this secret.
    pub(crate) fn open(&self, token: &str) -> Result<Vec<Lease>, BadLeaseId> {
        if token.len() > MAX_TOKEN_CHARS {
            return Err(BadLeaseId);
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| BadLeaseId)?;
        let (signed, tag) = bytes.split_last_chunk::<TAG_BYTES>().ok_or(BadLeaseId)?;
        if !equal_in_constant_time(&self.tag(signed), tag) {
            return Err(BadLeaseId);
        }
        let (&VERSION, leases) = signed.split_first().ok_or(BadLeaseId)? else { return Err(BadLeaseId) };
        let (leases, []) = leases.as_chunks::<LEASE_BYTES>() else { return Err(BadLeaseId) };
        leases.iter().map(read).collect()
    }

    fn tag(&self, bytes: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }
}

impl std::fmt::Debug for LeaseKey {
    /// Does not show the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseKey")
    }
}

fn read(bytes: &[u8; LEASE_BYTES]) -> Result<Lease, BadLeaseId> {
    let (key, words) = bytes.split_first_chunk::<16>().ok_or(BadLeaseId)?;
    let mut words = words.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
    let mut word = || words.next().ok_or(BadLeaseId);
    let quota = Quota::concurrency(word()?).lease(Duration::from_nanos(word()?)).build().map_err(|_| BadLeaseId)?;
    let permits = word()?;
    let receipt = Receipt::new(Time::from_nanos(word()?), word()?);
    Ok(Lease { key: u128::from_be_bytes(*key), quota, permits, receipt })
}

/// Returns whether `a` and `b` are equal. The time of the comparison does not depend on which bytes differ.
pub(crate) fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| std::hint::black_box(differ | (a ^ b)));
    a.len() == b.len() && differ == 0
}

/// Returns whether a request that takes units of `quota` gets a lease: permits that are in use until they are released
/// or expire.
pub(crate) fn is_leased(quota: &Quota) -> bool {
    quota.algorithm() == Algorithm::Concurrency
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(permits: u64) -> Lease {
        let quota = Quota::concurrency(8).lease(Duration::from_secs(5)).build().unwrap();
        Lease { key: 7 << 100, quota, permits, receipt: Receipt::new(Time::from_nanos(5), 9) }
    }

    #[test]
    fn what_is_signed_is_read_back() {
        let key = LeaseKey::of(&KeyHasher::random());
        for leases in [vec![lease(1)], vec![lease(3), lease(u64::MAX)], vec![lease(1); MAX_HITS]] {
            let token = key.sign(&leases);
            assert_eq!(key.open(&token), Ok(leases));
            assert!(
                token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)),
                "the token is safe in a URL"
            );
        }
    }

    #[test]
    fn no_altered_bit_is_accepted() {
        let key = LeaseKey::of(&KeyHasher::random());
        let bytes = URL_SAFE_NO_PAD.decode(key.sign(&[lease(2)])).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut altered = bytes.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(&URL_SAFE_NO_PAD.encode(altered)), Err(BadLeaseId), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(key.open(&URL_SAFE_NO_PAD.encode(&bytes[..len])), Err(BadLeaseId), "cut at {len}");
        }
    }

    #[test]
    fn tokens_of_another_server_and_junk_are_refused() {
        let key = LeaseKey::of(&KeyHasher::random());
        let long = "A".repeat(MAX_TOKEN_CHARS + 1);
        for junk in
            ["", "A", "=", "not a token", "\u{1F980}", &long, &LeaseKey::of(&KeyHasher::random()).sign(&[lease(1)])]
        {
            assert_eq!(key.open(junk), Err(BadLeaseId), "{junk:.20}");
        }
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
