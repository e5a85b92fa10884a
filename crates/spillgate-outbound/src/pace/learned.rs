//! A pace that is learned from the answers of the far side (the service that a program calls).
//!
//! Each key of a learned pace has five states in the store, so that all programs on one store have one pace:
//!
//! | state | limit | what it means |
//! |---|---|---|
//! | pace | a token bucket for 1.1 calls | the slower the pace, the more units a call takes |
//! | level | a token bucket that loses one unit each second | how slow the pace is: each unit makes it 1 % slower |
//! | pause | a penalty | no call is sent before its end |
//! | change | four units a second | answers lower the level at most this often |
//! | hold | one unit in 25 seconds, and a penalty | no answer lowers the level before the end of the penalty |
//!
//! A request for a turn takes from the pace, and reads the level and the pause, in one atomic step. The level falls by
//! itself, so the pace rises again by 1 % each second. A refusal is unexplained if its answer names no limit, or only
//! limits that the pace has kept. After two unexplained refusals within 25 seconds, the pace rises only by 1 % each
//! second for 25 seconds, whatever other answers say.

use std::time::Duration;

use smallvec::SmallVec;
use spillgate_core::{
    Binding, Decision, Denied, Hit, OnStoreFailure, Op, Quota, QuotaBuilder, QuotaError, Receipt, Store, StoreError,
};

use spillgate_limiter::{Clock, Limiter};

const SECOND: Duration = Duration::from_secs(1);
/// The units of a call at the fastest pace. At 100 units, the smallest possible step of the pace is 1 %.
const CALL: u64 = 100;
/// The largest level. At this level, the pace is ten thousand times slower than the fastest pace.
pub(crate) const MAX_LEVEL: u64 = 926;
/// A refusal that names the limit makes the pace 20 levels slower, that is 1 % for each level.
const A_LITTLE: u64 = 20;
/// A refusal that does not name the limit halves the pace: 70 levels of 1 %.
const HALVED: u64 = 70;
/// After two unexplained refusals, no answer lowers the level for this time. Without this rule, a far side that allows
/// less than it names would often refuse. The level still falls by itself, and is back at the level of the refused call
/// before this time ends. One refusal is not enough, because the far side may have lowered its limit while calls were
/// on their way.
const HOLD: Duration = Duration::from_secs(A_LITTLE + 5);
/// For each level, how many times slower its pace is than that of level 0, in units of 1 / 2^32.
const TIMES_SLOWER: [u64; MAX_LEVEL as usize + 1] = times_slower();
const TIMES_SLOWER_BITS: u32 = 32;

const fn times_slower() -> [u64; MAX_LEVEL as usize + 1] {
    let mut table = [1 << TIMES_SLOWER_BITS; MAX_LEVEL as usize + 1];
    let mut level = 1;
    while level < table.len() {
        // The last value is about ten thousand times the first one, so the product has less than 53 bits.
        table[level] = table[level - 1] * 101 / 100;
        level += 1;
    }
    table
}

/// The five states of a key.
#[derive(Clone, Copy)]
enum Kind {
    Pace = 1,
    Level = 2,
    Pause = 3,
    Change = 4,
    Hold = 5,
}

/// Returns the key of a state. Buckets of one key with the same window would count in one state, so each state has a
/// key of its own. In a Redis Cluster, the five states of a key are in the same slot.
const fn key_of(key: u128, kind: Kind) -> u128 {
    // The digits are those of the golden ratio. Any number whose bits look random would do.
    const MIXED: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834;
    key ^ MIXED.wrapping_mul(kind as u128) & ((1 << Hit::SLOT_SHIFT) - 1)
}

/// What one answer of the far side says about the pace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The level of the pace when the call was sent.
    pub(crate) taken_at: u64,
    /// The smallest level that keeps the limits in the answer. `None` if the answer names no limits.
    pub(crate) named: Option<u64>,
    /// Whether the right level can be higher than `named`.
    pub(crate) is_bound: bool,
    /// Whether the far side refused the call because of too many calls.
    pub(crate) is_refusal: bool,
    /// How long no call may be sent. `None` if the answer asks for no pause.
    pub(crate) pause: Option<Duration>,
}

impl Change {
    /// Returns the level that the answer asks for. `None` if the level should stay.
    fn level(&self) -> Option<u64> {
        let refused = self.taken_at + if self.named.is_some() && !self.is_bound { A_LITTLE } else { HALVED };
        let level = if self.is_refusal { Some(refused.max(self.named.unwrap_or(0))) } else { self.named };
        level.map(|level| level.min(MAX_LEVEL))
    }

    /// Returns whether the refusal is unexplained: the answer names no limit, or a limit that the pace has kept.
    fn is_unexplained(&self) -> bool {
        self.is_refusal && self.named.is_none_or(|named| named <= self.taken_at + A_LITTLE)
    }

    /// Returns by how much the level falls during the pause of a refusal. The answer raises the level by this number in
    /// addition, so that the pace is still slow after the pause.
    fn levels_of_pause(&self) -> u64 {
        if self.is_refusal { self.pause.map_or(0, |pause| pause.as_secs()) } else { 0 }
    }
}

/// The limits of the five states.
#[derive(Clone, Debug)]
pub(crate) struct Learned {
    /// The fastest pace: only the limit and the window of this quota are used.
    fastest: Quota,
    /// The units of a call at level 0: 100, plus the headroom in percent.
    call: u64,
    level: Quota,
    change: Quota,
    hold: Quota,
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
            hold: constant(Quota::token_bucket(1, HOLD).burst(1).penalty(HOLD)),
            pause: constant(penalty(SECOND)),
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
        let times_slower = TIMES_SLOWER[level.min(MAX_LEVEL) as usize];
        // The headroom is at most 1,000 %, so the product has less than 64 bits.
        (self.call * times_slower) >> TIMES_SLOWER_BITS
    }

    /// Returns the level whose pace is one call in each `interval`, slowed down by the headroom. If this pace is faster
    /// than the fastest pace, the level is 0.
    pub(crate) fn level_of(&self, interval: Duration) -> u64 {
        // The headroom is in `call`, so it counts at every level.
        let (calls, window_ns) = (u128::from(self.fastest.limit()), u128::from(self.fastest.window_ns()));
        let wanted = interval.as_nanos().saturating_mul(calls).saturating_mul(1 << TIMES_SLOWER_BITS);
        let is_too_fast = |slower: &u64| u128::from(*slower) * window_ns < wanted;
        (TIMES_SLOWER.partition_point(is_too_fast) as u64).min(MAX_LEVEL)
    }

    /// Returns the bucket of the pace at this level. The bucket has units for 1.1 calls, so that one late call does not
    /// make all later calls late.
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

    /// Returns the level that the last of these decisions shows. The last hit of a request reads the level.
    pub(super) fn level_in(decisions: &[Decision]) -> u64 {
        decisions.last().map_or(0, |decision| MAX_LEVEL - decision.remaining.min(MAX_LEVEL))
    }

    /// Returns the hit that reads the level.
    pub(super) fn peek(&self, key: u128) -> Hit<'_> {
        Hit::new(key_of(key, Kind::Level), &self.level, Op::Peek, Binding::Enforce)
    }

    /// Changes the pace as an answer says: first reads the level, and then makes all changes in one atomic step.
    pub(crate) async fn change<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        key: u128,
        change: &Change,
    ) -> Result<(), StoreError> {
        let pause = change.pause.and_then(|pause| build(penalty(pause.max(Duration::from_nanos(1)))).ok());
        // A settlement lowers the level, because a settlement takes effect only if the whole request is allowed. The
        // mark of this receipt is 0, so the token bucket gives back units of any age.
        let receipt = Receipt::new(limiter.now(), 0);
        let (capped, bucket);
        let mut hits = SmallVec::<[Hit<'_>; 4]>::new();
        match self.levels(limiter, key, change).await? {
            Some((level, asked, target)) if target > level => {
                // This take fits only if at most `level` units are used. If another answer has raised the level
                // meanwhile, the take is refused, so two answers never slow the pace twice.
                capped =
                    build(Quota::token_bucket(1, SECOND).burst(target)).expect("invariant: a level is a valid burst");
                hits.push(Hit::new(key_of(key, Kind::Level), &capped, Op::take(target - level), Binding::Enforce));
                // The call was sent at a pace that was too fast, so it took too few units. The settlement takes the
                // difference.
                bucket = self.bucket(asked);
                let op = Op::settle(self.cost(change.taken_at).min(self.cost(asked)), self.cost(asked), receipt);
                hits.push(Hit::new(key_of(key, Kind::Pace), &bucket, op, Binding::Enforce));
            }
            Some((level, _, target)) if target < level && !change.is_refusal && !change.is_bound => {
                let op = Op::settle(level, target, receipt);
                hits.push(Hit::new(key_of(key, Kind::Hold), &self.hold, Op::Peek, Binding::Enforce));
                hits.push(Hit::new(key_of(key, Kind::Change), &self.change, Op::take(1), Binding::Enforce));
                hits.push(Hit::new(key_of(key, Kind::Level), &self.level, op, Binding::Enforce));
            }
            _ => {}
        }
        if change.is_unexplained() {
            hits.push(Hit::new(key_of(key, Kind::Hold), &self.hold, Op::take(1), Binding::Shadow));
        }
        // A take that never fits starts the penalty. Its refusal is charged, because a longer penalty replaces a
        // shorter one only if refusals are charged.
        if let Some(pause) = &pause {
            hits.push(Hit::new(key_of(key, Kind::Pause), pause, Op::take(2), Binding::Shadow));
        }
        if hits.is_empty() {
            return Ok(());
        }
        let mut decisions = SmallVec::<[Decision; 4]>::from_elem(Decision::default(), hits.len());
        limiter.decide(&hits, &mut decisions).await.map(drop)
    }

    /// Returns the level in the store, the level that the answer asks for, and the level that the store should get.
    /// Returns `None` if the level should stay.
    async fn levels<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        key: u128,
        change: &Change,
    ) -> Result<Option<(u64, u64, u64)>, StoreError> {
        let Some(asked) = change.level() else { return Ok(None) };
        // Other answers may have changed the level since the turn was taken.
        let mut seen = [Decision::default()];
        limiter.decide(&[self.peek(key)], &mut seen).await?;
        let (level, target) = (Learned::level_in(&seen), (asked + change.levels_of_pause()).min(MAX_LEVEL));
        // A step of one level (1 %) is not worth a call of the store.
        Ok((target.abs_diff(level) > 1).then_some((level, asked, target)))
    }
}

/// Returns a quota whose refusals start a penalty. Its window is so short that the units of a refusal never count.
const fn penalty(duration: Duration) -> QuotaBuilder {
    Quota::fixed_window(1, Duration::from_micros(1)).penalty(duration).denied(Denied::Charged)
}

/// Builds a limit. If a shared store fails, callers get an error. A local share of the pace would be too slow when some
/// programs have no callers.
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
