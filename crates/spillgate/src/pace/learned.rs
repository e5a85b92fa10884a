//! A pace that is learned from the answers of the far side, and lies in the store beside the queue.
//!
//! Each key of a learned pace has four states in the store, so that all programs on one store have one pace:
//!
//! | state | limit | what it means |
//! |---|---|---|
//! | pace | a token bucket for 1.1 calls | a call takes more units, the slower the pace is |
//! | level | a token bucket that loses one unit each second | how slow the pace is: each unit makes it 1 % slower |
//! | pause | a penalty | no call goes before its end |
//! | change | four units a second | the level is lowered at most this often |
//!
//! A request for a turn takes from the pace, and reads the level and the pause, in one atomic step. The level falls by
//! itself, so the pace rises again by 1 % each second.

use std::time::Duration;

use spillgate_core::{
    Binding, Decision, Hit, OnStoreFailure, Op, Quota, QuotaBuilder, QuotaError, Receipt, Store, StoreError,
};

use crate::{Clock, Limiter};

const SECOND: Duration = Duration::from_secs(1);
/// The units of a call at the fastest pace. Smaller steps of the pace are not possible.
const CALL: u64 = 100;
/// The largest level. There the pace is ten thousand times slower than the fastest one.
pub(crate) const MAX_LEVEL: u64 = 926;
/// How much slower each level is.
const STEP: f64 = 1.01;

/// The four states of a key.
#[derive(Clone, Copy)]
enum Kind {
    Pace = 1,
    Level = 2,
    Pause = 3,
    Change = 4,
}

/// Returns the key of a state. Buckets of one key with the same window would be one state, so each state has a key of its
/// own. In a Redis Cluster, all of them are in the same slot.
const fn key_of(key: u128, kind: Kind) -> u128 {
    // The digits are those of the golden ratio. Any number whose bits look random would do.
    const MIXED: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834;
    key ^ MIXED.wrapping_mul(kind as u128) & ((1 << Hit::SLOT_SHIFT) - 1)
}

/// The limits of the four states.
#[derive(Clone, Debug)]
pub(crate) struct Learned {
    /// The fastest pace.
    fastest: Quota,
    /// The units of a call at level 0: 100, and the headroom in percent.
    call: u64,
    level: Quota,
    change: Quota,
    pause: Quota,
}

impl Learned {
    /// Returns the limits for a pace that is never faster than `fastest`, minus the headroom.
    ///
    /// # Panics
    /// Panics if `fastest` is so slow or so fast that the pace has no valid bucket.
    pub(crate) fn new(fastest: &Quota, headroom_percent: u64) -> Learned {
        let constant = |builder| build(builder).expect("invariant: these limits are valid");
        let learned = Learned {
            fastest: fastest.clone(),
            call: CALL + headroom_percent,
            level: constant(Quota::token_bucket(1, SECOND).burst(MAX_LEVEL)),
            change: constant(Quota::token_bucket(4, SECOND).burst(1)),
            pause: constant(Quota::fixed_window(1, SECOND).penalty(SECOND)),
        };
        for level in [0, MAX_LEVEL] {
            let valid = learned.bucket_at(level);
            assert!(valid.is_ok(), "the fastest pace must be at least one call a day, and at most a million a second");
        }
        learned
    }

    pub(crate) fn with_headroom(&self, headroom_percent: u64) -> Learned {
        Learned::new(&self.fastest, headroom_percent)
    }

    /// Returns the units of one call at this level.
    fn cost(&self, level: u64) -> u64 {
        // The product is below 2^53, so every program computes the same number.
        (self.call as f64 * STEP.powi(i32::try_from(level.min(MAX_LEVEL)).unwrap_or(0))) as u64
    }

    /// Returns the level at which one call goes in each `interval`, with the headroom. A pace that is faster than the
    /// fastest one has the level 0.
    pub(crate) fn level_of(&self, interval: Duration) -> u64 {
        let fastest_ns = self.fastest.window_ns() as f64 / self.fastest.limit() as f64;
        let slower = interval.as_nanos() as f64 / fastest_ns;
        // The headroom is in `call`, so it counts at every level.
        (slower.max(1.0).ln() / STEP.ln()).ceil().min(MAX_LEVEL as f64) as u64
    }

    /// Returns the bucket of the pace at this level. It has units for 1.1 calls, so that a turn that was taken late does
    /// not make all later turns late.
    pub(super) fn bucket(&self, level: u64) -> Quota {
        self.bucket_at(level).expect("invariant: the slowest and the fastest bucket are valid")
    }

    fn bucket_at(&self, level: u64) -> Result<Quota, QuotaError> {
        let cost = self.cost(level);
        let window = Duration::from_nanos(self.fastest.window_ns());
        build(Quota::token_bucket(self.fastest.limit().saturating_mul(CALL), window).burst(cost + cost / 10))
    }

    /// Returns the hits of a request for one turn. `bucket` is the bucket at `level`.
    pub(super) fn hits<'q>(&'q self, key: u128, bucket: &'q Quota, level: u64) -> [Hit<'q>; 3] {
        [
            Hit::new(key_of(key, Kind::Pace), bucket, Op::take(self.cost(level)), Binding::Enforce),
            Hit::new(key_of(key, Kind::Pause), &self.pause, Op::Peek, Binding::Enforce),
            Hit::new(key_of(key, Kind::Level), &self.level, Op::Peek, Binding::Shadow),
        ]
    }

    /// Returns the level that the last one of these decisions shows.
    pub(super) fn level_in(decisions: &[Decision]) -> u64 {
        decisions.last().map_or(0, |decision| MAX_LEVEL - decision.remaining.min(MAX_LEVEL))
    }

    /// Returns the hit that reads the level.
    pub(super) fn peek(&self, key: u128) -> Hit<'_> {
        Hit::new(key_of(key, Kind::Level), &self.level, Op::Peek, Binding::Enforce)
    }

    /// Slows the pace from `level` to `target`. If another program has slowed it meanwhile, nothing changes.
    async fn slow_down<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        key: u128,
        (level, target): (u64, u64),
    ) -> Result<(), StoreError> {
        // The take fits only if at most `level` units are used.
        let capped = build(Quota::token_bucket(1, SECOND).burst(target)).expect("invariant: a level is a valid burst");
        let hits = [Hit::new(key_of(key, Kind::Level), &capped, Op::take(target - level), Binding::Enforce)];
        limiter.decide(&hits, &mut [Decision::default()]).await.map(drop)
    }

    /// Lets the pace rise from `level` to `target`, at most four times a second for all programs together.
    async fn speed_up<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        key: u128,
        (level, target): (u64, u64),
    ) -> Result<(), StoreError> {
        // A settlement takes effect only if the request is allowed. A token bucket does not need its receipt.
        let op = Op::settle(level, target, Receipt::new(limiter.now(), 0));
        let hits = [
            Hit::new(key_of(key, Kind::Change), &self.change, Op::take(1), Binding::Enforce),
            Hit::new(key_of(key, Kind::Level), &self.level, op, Binding::Enforce),
        ];
        limiter.decide(&hits, &mut [Decision::default(); 2]).await.map(drop)
    }

    /// Changes the pace from `level` to `target`.
    pub(crate) async fn change<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        key: u128,
        (level, target): (u64, u64),
    ) -> Result<(), StoreError> {
        let target = target.min(MAX_LEVEL);
        if target > level {
            self.slow_down(limiter, key, (level, target)).await
        } else if target < level {
            self.speed_up(limiter, key, (level, target)).await
        } else {
            Ok(())
        }
    }

    /// Lets no call go for `pause`. A pause that ends later stays.
    pub(crate) async fn pause<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        key: u128,
        pause: Duration,
    ) -> Result<(), StoreError> {
        let penalty = pause.max(Duration::from_nanos(1));
        let Ok(quota) = build(Quota::fixed_window(1, SECOND).penalty(penalty)) else { return Ok(()) };
        // A take that can never fit starts the penalty.
        let hits = [Hit::new(key_of(key, Kind::Pause), &quota, Op::take(2), Binding::Shadow)];
        limiter.decide(&hits, &mut [Decision::default()]).await.map(drop)
    }
}

/// Builds a limit. If a shared store fails, its caller gets an error: a part of the pace for each node would be wrong as
/// soon as a node has no callers.
fn build(builder: QuotaBuilder) -> Result<Quota, QuotaError> {
    builder.on_store_failure(OnStoreFailure::Error).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_one_percent_slower() {
        let learned = Learned::new(&Quota::per_second(100).constant(), 5);
        assert_eq!(learned.cost(0), 105);
        for (times, level) in [(1, 0), (2, 70), (10, 232), (10_000, MAX_LEVEL)] {
            assert_eq!(learned.level_of(Duration::from_millis(10) * times), level);
            let cost = learned.cost(level) as f64 / (105.0 * f64::from(times));
            assert!((0.99..1.02).contains(&cost), "{times} times slower: {cost}");
        }
        assert_eq!(learned.level_of(Duration::ZERO), 0);
        assert_eq!(learned.level_of(Duration::MAX), MAX_LEVEL);
    }
}
