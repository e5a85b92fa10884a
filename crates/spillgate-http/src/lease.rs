//! Lease ids: signed ids with which a client releases or renews the permits of `concurrency` limits.

use std::time::Duration;

use spillgate::{Algorithm, KeyHasher, MAX_HITS, Quota, Receipt, Time};

use super::signature::{BadId, Signer};

const VERSION: u8 = 1;
/// The length of a lease in an id. The key has 16 bytes. Five numbers of 8 bytes follow: the limit, the duration, the
/// number of permits, and the time and the mark of the receipt.
const LEASE_BYTES: usize = 56;
/// The maximum number of bytes in an id, without its tag. The largest id has one lease for each hit that a request can
/// have.
const MAX_BYTES: usize = 1 + MAX_HITS * LEASE_BYTES;

/// Permits that one limit granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) key: u128,
    pub(crate) quota: Quota,
    pub(crate) permits: u64,
    pub(crate) receipt: Receipt,
}

/// Signs lease ids and checks them.
#[derive(Debug, Clone)]
pub(crate) struct LeaseKey(Signer);

impl LeaseKey {
    /// Derives the signing secret of lease ids from the key secret.
    pub(crate) fn of(keys: &KeyHasher) -> LeaseKey {
        LeaseKey(Signer::of(keys, "lease ids"))
    }

    /// Returns the id of `leases`, of which there are at most [`MAX_HITS`].
    pub(crate) fn sign(&self, leases: &[Lease]) -> String {
        let mut bytes = Vec::with_capacity(64 + leases.len() * LEASE_BYTES);
        bytes.push(VERSION);
        for Lease { key, quota, permits, receipt } in leases {
            bytes.extend_from_slice(&key.to_be_bytes());
            for word in [quota.hard_capacity(), quota.lease_ns(), *permits, receipt.at.as_nanos(), receipt.mark] {
                bytes.extend_from_slice(&word.to_be_bytes());
            }
        }
        self.0.sign(bytes)
    }

    /// Returns the leases in an id. Fails if the id was not signed with this secret.
    pub(crate) fn open(&self, id: &str) -> Result<Vec<Lease>, BadId> {
        let bytes = self.0.open(id, MAX_BYTES)?;
        let (&VERSION, leases) = bytes.split_first().ok_or(BadId)? else { return Err(BadId) };
        let (leases, []) = leases.as_chunks::<LEASE_BYTES>() else { return Err(BadId) };
        leases.iter().map(read).collect()
    }
}

fn read(bytes: &[u8; LEASE_BYTES]) -> Result<Lease, BadId> {
    let (key, words) = bytes.split_first_chunk::<16>().ok_or(BadId)?;
    let mut words = words.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
    let mut word = || words.next().ok_or(BadId);
    let quota = Quota::concurrency(word()?).lease(Duration::from_nanos(word()?)).build().map_err(|_| BadId)?;
    let permits = word()?;
    let receipt = Receipt::new(Time::from_nanos(word()?), word()?);
    Ok(Lease { key: u128::from_be_bytes(*key), quota, permits, receipt })
}

/// Returns whether a request that takes units of `quota` gets a lease for them.
pub(crate) fn is_leased(quota: &Quota) -> bool {
    quota.algorithm() == Algorithm::Concurrency
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

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
            assert_eq!(key.open(&URL_SAFE_NO_PAD.encode(altered)), Err(BadId), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(key.open(&URL_SAFE_NO_PAD.encode(&bytes[..len])), Err(BadId), "cut at {len}");
        }
    }

    #[test]
    fn tokens_of_another_server_and_junk_are_refused() {
        let key = LeaseKey::of(&KeyHasher::random());
        let long = "A".repeat(MAX_BYTES * 2);
        for junk in
            ["", "A", "=", "not a token", "\u{1F980}", &long, &LeaseKey::of(&KeyHasher::random()).sign(&[lease(1)])]
        {
            assert_eq!(key.open(junk), Err(BadId), "{junk:.20}");
        }
    }
}
