//! Bounds the keys that takes make in Redis, so that a client that makes many keys cannot fill Redis.
//!
//! Each limit has a bucket of tokens, and a take that made a key uses one token:
//!
//! ```text
//! bucket has tokens:  take ---------------------> the reply shows that there was no state: one token is used
//! bucket is empty:    look (GET) -> the state exists -> take
//!                     look (GET) -> no state ---------> the request fails as NewKeys, and no key is made
//! ```
//!
//! So traffic costs nothing more while keys are left, and callers whose keys exist are always decided by Redis. The token
//! is used when the reply comes, because only the reply shows whether a key was made. Until then other takes can be sent,
//! so a bucket can owe tokens. It owes at most as many as takes were in flight, and pays them back first. If no reply comes,
//! a token is used for each key that the take could make.
//!
//! The look is a plain command and not a peek, because a script would cost Redis as much as the take that is avoided.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use spillgate_core::{Decision, Hit, Op, Quota, Reason, StoreErrorKind, Wait};
use tokio::time::Instant;

use crate::error::Error;

/// The number of buckets, 2 KiB. A client of `override` can send any number of limits, so the memory must not grow with
/// their number. Two limits in one bucket share its tokens: newcomers of one can then be held because of the other.
const BUCKETS: usize = 256;
/// The tokens of a full bucket come back in this time.
const SECOND_NS: u64 = 1_000_000_000;

/// The buckets of all limits.
pub(crate) struct NewKeys {
    /// All times are counted from here.
    began: Instant,
    /// The time in which a token comes back.
    token_ns: u64,
    /// For each bucket, the time at which it is full.
    full_at_ns: [AtomicU64; BUCKETS],
}

impl NewKeys {
    pub(crate) fn new(per_second: NonZeroU32) -> NewKeys {
        NewKeys {
            began: Instant::now(),
            token_ns: (SECOND_NS / u64::from(per_second.get())).max(1),
            full_at_ns: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    fn now_ns(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    fn bucket(&self, quota: &Quota) -> &AtomicU64 {
        // The identity is well mixed, but it does not depend on the capacity.
        let [.., mixed] =
            (quota.identity() as u64 ^ quota.hard_capacity()).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        &self.full_at_ns[usize::from(mixed)]
    }

    /// Returns whether the hit could make a key, and its limit has no token left.
    fn is_short(&self, hit: &Hit<'_>, now_ns: u64) -> bool {
        let full_at_ns = self.bucket(hit.quota).load(Ordering::Relaxed);
        may_create(hit) && full_at_ns.saturating_sub(now_ns).saturating_add(self.token_ns) > SECOND_NS
    }

    /// Returns whether a key of these hits must not be made now.
    pub(crate) fn is_any_short(&self, hits: &[Hit<'_>], now: Instant) -> bool {
        let now_ns = self.now_ns(now);
        hits.iter().any(|hit| self.is_short(hit, now_ns))
    }

    /// Returns the positions of the hits whose keys must not be made now.
    pub(crate) fn short(&self, hits: &[Hit<'_>], now: Instant) -> Vec<usize> {
        let now_ns = self.now_ns(now);
        (0..hits.len()).filter(|i| self.is_short(&hits[*i], now_ns)).collect()
    }

    /// Uses a token for the key that this hit made.
    pub(crate) fn charge(&self, hit: &Hit<'_>) {
        let now_ns = self.now_ns(Instant::now());
        let later = |full_at_ns: u64| Some(full_at_ns.max(now_ns).saturating_add(self.token_ns));
        let _ = self.bucket(hit.quota).fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// Uses a token for each key that these hits could make, because no reply shows which keys they made.
    pub(crate) fn charge_unseen<'q>(&self, hits: impl Iterator<Item = Hit<'q>>) {
        hits.filter(may_create).for_each(|hit| self.charge(&hit));
    }
}

/// Marks in `decisions` the hits at these positions whose states do not exist.
///
/// # Errors
/// [`NewKeys`](StoreErrorKind::NewKeys) if there is such a hit.
pub(crate) fn check(
    hits: &[Hit<'_>],
    positions: &[usize],
    exist: &[bool],
    decisions: &mut [Decision],
) -> Result<(), Error> {
    decisions.fill(Decision::default());
    for (&i, _) in positions.iter().zip(exist).filter(|(_, exists)| !**exists) {
        decisions[i] = Decision::refuse(hits[i].quota.capacity(), Reason::NotAsked, Wait::Unknown);
    }
    if exist.iter().all(|exists| *exists) {
        return Ok(());
    }
    Err(Error::new(StoreErrorKind::NewKeys, "a client makes many keys of one limit"))
}

/// Returns whether the hit can make a key that does not exist. A settlement can too, but each one needs a take before it.
fn may_create(hit: &Hit<'_>) -> bool {
    match hit.op {
        Op::Take { cost, .. } => cost > 0 && (cost <= hit.quota.hard_capacity() || !hit.quota.refusal_is_free()),
        Op::Force { cost } => cost > 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use spillgate_core::Binding;

    use super::*;

    fn take(cost: u64, quota: &Quota) -> Hit<'_> {
        Hit::new(7, quota, Op::take(cost), Binding::Enforce)
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_holds_what_comes_back_in_a_second() {
        let quota = Quota::per_minute(5).build().expect("the quota is valid");
        let new_keys = NewKeys::new(NonZeroU32::new(3).expect("not 0"));
        let hits = [take(1, &quota)];
        let is_short = || new_keys.is_any_short(&hits, Instant::now());
        for _ in 0..2 {
            for _ in 0..3 {
                assert!(!is_short());
                new_keys.charge(&hits[0]);
            }
            assert!(is_short());
            tokio::time::advance(Duration::from_millis(1001)).await;
        }
        // Takes in flight can make a bucket owe tokens. They are paid back first.
        for _ in 0..6 {
            new_keys.charge(&hits[0]);
        }
        tokio::time::advance(Duration::from_millis(1001)).await;
        assert!(is_short());
        tokio::time::advance(Duration::from_millis(1001)).await;
        assert!(!is_short());
    }

    #[tokio::test(start_paused = true)]
    async fn hits_without_a_reply_use_a_token_if_they_could_make_a_key() {
        let quota = Quota::per_minute(5).build().expect("the quota is valid");
        let new_keys = NewKeys::new(NonZeroU32::new(1).expect("not 0"));
        new_keys.charge_unseen([take(1, &quota).with_op(Op::Peek), take(6, &quota)].into_iter());
        assert!(!new_keys.is_any_short(&[take(1, &quota)], Instant::now()));
        new_keys.charge_unseen([take(1, &quota)].into_iter());
        assert!(new_keys.is_any_short(&[take(1, &quota)], Instant::now()));
    }

    #[test]
    fn only_hits_that_can_make_a_key_are_held() {
        let free = Quota::per_minute(5).build().expect("the quota is valid");
        let punishing = Quota::per_minute(5).penalty(Duration::from_secs(1)).build().expect("the quota is valid");
        assert!(may_create(&take(5, &free)) && may_create(&take(6, &punishing)));
        assert!(!may_create(&take(6, &free)) && !may_create(&take(0, &free)));
        assert!(!may_create(&take(1, &free).with_op(Op::Peek)) && !may_create(&take(1, &free).with_op(Op::Reset)));
        assert!(may_create(&take(1, &free).with_op(Op::Force { cost: 1 })));
    }
}
