//! Reservation ids: signed ids with which a client settles a reservation.
//!
//! An id contains the limits as they were when the reservation was made. So the reservation can be settled after a
//! reload of the rules, and by every server that uses the same store and the same key secret.

use std::time::Duration;

use spillgate::{Algorithm, Anchor, KeyHasher, MAX_HITS, Quota, QuotaBuilder, Receipt, Time};
use spillgate_service::{Claim, Reserved};

use super::signature::{BadId, Signer};

const VERSION: u8 = 2;
/// The length of the head of an id. One byte is the version. Two numbers of 8 bytes follow: the estimate, and the
/// number of the server that has counted the estimate in its own memory, or 0 if the configured store has counted it.
const HEAD_BYTES: usize = 1 + 2 * 8;
/// The length of a claim in an id. Two bytes name the algorithm, and the key has 16 bytes. Six numbers of 8 bytes
/// follow: the limit, the window or the lease, the capacity, the units, and the time and the mark of the receipt.
const CLAIM_BYTES: usize = 2 + 16 + 6 * 8;
const MAX_BYTES: usize = HEAD_BYTES + MAX_HITS * CLAIM_BYTES;

/// Signs reservation ids and checks them.
#[derive(Debug, Clone)]
pub(crate) struct ReservationKey(Signer);

impl ReservationKey {
    /// Derives the signing secret of reservation ids from the key secret.
    pub(crate) fn of(keys: &KeyHasher) -> ReservationKey {
        ReservationKey(Signer::of(keys, "reservation ids"))
    }

    /// Returns the id of a reservation, which has at most [`MAX_HITS`] claims.
    pub(crate) fn sign(&self, reserved: &Reserved) -> String {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + reserved.claims.len() * CLAIM_BYTES + 16);
        bytes.push(VERSION);
        bytes.extend_from_slice(&reserved.estimate.to_be_bytes());
        bytes.extend_from_slice(&reserved.server.unwrap_or(0).to_be_bytes());
        for Claim { key, quota, taken, receipt } in &reserved.claims {
            bytes.extend_from_slice(&algorithm_bytes(quota.algorithm()));
            bytes.extend_from_slice(&key.to_be_bytes());
            let span_ns = quota.window_ns().max(quota.lease_ns());
            for word in [quota.limit(), span_ns, quota.hard_capacity(), *taken, receipt.at.as_nanos(), receipt.mark] {
                bytes.extend_from_slice(&word.to_be_bytes());
            }
        }
        self.0.sign(bytes)
    }

    /// Returns the reservation in an id. Fails if the id was not signed with this secret.
    pub(crate) fn open(&self, id: &str) -> Result<Reserved, BadId> {
        let bytes = self.0.open(id, MAX_BYTES)?;
        let (&VERSION, bytes) = bytes.split_first().ok_or(BadId)? else { return Err(BadId) };
        let (estimate, bytes) = bytes.split_first_chunk::<8>().ok_or(BadId)?;
        let (server, claims) = bytes.split_first_chunk::<8>().ok_or(BadId)?;
        let (claims, []) = claims.as_chunks::<CLAIM_BYTES>() else { return Err(BadId) };
        let claims = claims.iter().map(read).collect::<Result<_, _>>()?;
        let server = Some(u64::from_be_bytes(*server)).filter(|server| *server > 0);
        Ok(Reserved { estimate: u64::from_be_bytes(*estimate), server, claims })
    }
}

fn read(bytes: &[u8; CLAIM_BYTES]) -> Result<Claim, BadId> {
    let (algorithm, rest) = bytes.split_first_chunk::<2>().ok_or(BadId)?;
    let (key, words) = rest.split_first_chunk::<16>().ok_or(BadId)?;
    let mut words = words.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
    let mut word = || words.next().ok_or(BadId);
    let (limit, span, capacity) = (word()?, Duration::from_nanos(word()?), word()?);
    let quota = quota(algorithm_of(*algorithm)?, limit, span, capacity)?;
    let (taken, receipt) = (word()?, Receipt::new(Time::from_nanos(word()?), word()?));
    Ok(Claim { key: u128::from_be_bytes(*key), quota, taken, receipt })
}

/// Returns a quota that has the same state as the quota of the reservation, and counts units in the same way. Options
/// that a settlement does not need, such as a penalty, are left out.
fn quota(algorithm: Algorithm, limit: u64, span: Duration, capacity: u64) -> Result<Quota, BadId> {
    let builder = match algorithm {
        Algorithm::Concurrency => Quota::concurrency(capacity).lease(span),
        // A token bucket needs its limit and its capacity: the limit says how fast units come back.
        Algorithm::TokenBucket => Quota::token_bucket(limit, span).burst(capacity),
        algorithm => QuotaBuilder::new(algorithm, capacity, span),
    };
    builder.build().map_err(|_| BadId)
}

fn algorithm_bytes(algorithm: Algorithm) -> [u8; 2] {
    match algorithm {
        Algorithm::TokenBucket => [1, 0],
        Algorithm::LeakyBucket => [2, 0],
        Algorithm::FixedWindow(Anchor::Epoch) => [3, 0],
        Algorithm::FixedWindow(Anchor::FirstHit) => [4, 0],
        Algorithm::SlidingWindowCounter { segments } => [5, segments],
        Algorithm::SlidingWindowLog => [6, 0],
        Algorithm::Concurrency => [7, 0],
    }
}

fn algorithm_of(bytes: [u8; 2]) -> Result<Algorithm, BadId> {
    Ok(match bytes {
        [1, 0] => Algorithm::TokenBucket,
        [3, 0] => Algorithm::FixedWindow(Anchor::Epoch),
        [4, 0] => Algorithm::FixedWindow(Anchor::FirstHit),
        [5, segments] => Algorithm::SlidingWindowCounter { segments },
        [6, 0] => Algorithm::SlidingWindowLog,
        [7, 0] => Algorithm::Concurrency,
        _ => return Err(BadId),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas() -> Vec<Quota> {
        let builders = [
            Quota::per_minute(7).burst(100).soft_ppm(200_000),
            Quota::token_bucket(3, Duration::from_secs(86_400)),
            Quota::fixed_window(5, Duration::from_secs(60)).soft_ppm(500_000).penalty(Duration::from_secs(9)),
            Quota::fixed_window(5, Duration::from_secs(60)).anchor(Anchor::FirstHit),
            Quota::sliding_window_counter(1_000_000, Duration::from_secs(3_600)).segments(60),
            Quota::sliding_window_log(50, Duration::from_millis(1_500)),
            Quota::concurrency(65_536).lease(Duration::from_secs(600)),
        ];
        builders.map(|builder| builder.build().expect("the quota is valid")).into()
    }

    fn reserved(quotas: Vec<Quota>) -> Reserved {
        let claim = |(i, quota): (usize, Quota)| Claim {
            key: (i as u128) << 90 | 5,
            quota,
            taken: 3 * i as u64,
            receipt: Receipt::new(Time::from_nanos(i as u64), u64::MAX - i as u64),
        };
        Reserved { estimate: 3, server: Some(u64::MAX), claims: quotas.into_iter().enumerate().map(claim).collect() }
    }

    #[test]
    fn what_is_signed_is_read_back() {
        let key = ReservationKey::of(&KeyHasher::random());
        let made = reserved(quotas());
        let read = key.open(&key.sign(&made)).expect("the id is valid");
        assert_eq!((read.estimate, read.server, read.claims.len()), (made.estimate, made.server, made.claims.len()));
        for (read, made) in read.claims.iter().zip(&made.claims) {
            assert_eq!((read.key, read.taken, read.receipt), (made.key, made.taken, made.receipt));
            let parts = |quota: &Quota| {
                (quota.identity(), quota.interval_ns(), quota.hard_capacity(), quota.lease_ns(), quota.window_ns())
            };
            assert_eq!(parts(&read.quota), parts(&made.quota), "{:?}", made.quota);
        }
    }

    #[test]
    fn the_largest_reservation_fits() {
        let key = ReservationKey::of(&KeyHasher::random());
        let made = reserved(vec![quotas().swap_remove(0); MAX_HITS]);
        assert_eq!(key.open(&key.sign(&made)).map(|read| read.claims.len()), Ok(MAX_HITS));
    }

    #[test]
    fn junk_is_refused() {
        let key = ReservationKey::of(&KeyHasher::random());
        let other = ReservationKey::of(&KeyHasher::random()).sign(&reserved(quotas()));
        for junk in ["", "A", "not an id", "\u{1F980}", &"A".repeat(2 * MAX_BYTES), &other] {
            assert!(key.open(junk).is_err(), "{junk:.20}");
        }
        for cut in [0, 1, 8, 9, 16, 17, 18, 82] {
            let bytes = vec![VERSION; cut];
            assert!(cut == HEAD_BYTES || key.open(&key.0.sign(bytes)).is_err(), "{cut} bytes");
        }
    }
}
