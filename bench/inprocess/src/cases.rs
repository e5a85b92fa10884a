//! The limiters that are measured. Each limiter is called as in a real program.
//!
//! A comparison is fair only if every limiter gets the same keys, and if each answer is used: the compiler could leave
//! out a decision that nobody uses.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use foldhash::fast::RandomState;
use governor::clock::QuantaUpkeepClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use parking_lot::Mutex;
use pingora_limits::rate::Rate;
use spillgate::sketch::Sketch;
use spillgate::{Clock, KeyHasher, Limiter, MemoryOptions, MemoryStore, Quota, SystemClock, TickingClock};

use crate::keys::Keys;

/// The bytes of a sketch, and of pingora's counters.
const SKETCH_BYTES: usize = 64 << 20;
/// pingora counts each key with four hashes, as it does by default.
const PINGORA_HASHES: usize = 4;
/// pingora has one table of counters for the current interval, and one for the interval before it.
const PINGORA_TABLES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// Every request is allowed.
    Wide,
    /// Only the first request of each key is allowed.
    Narrow,
}

/// A limiter to measure, or a map for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    TokenBucket,
    /// The token bucket with a clock that a thread advances
    TokenBucketTicking,
    FixedWindow,
    SlidingWindowCounter,
    /// governor with its keyed DashMap, its default clock and String keys
    Governor,
    /// governor with its keyed DashMap, String keys and a clock that a thread advances
    GovernorUpkeep,
    /// A sketch of 64 MiB with token buckets
    Sketch,
    /// A sketch of 64 MiB with sliding windows
    SketchWindows,
    /// pingora's `Rate` with 64 MiB of counters: it counts, and has no limit
    PingoraRate,
    /// 256 mutexes, each around a HashMap that uses foldhash and owns its keys. This map has no clock and no limit, and
    /// shows the cost of a plain map
    PlainMap,
    /// A hash table with open addressing, 64-bit fingerprints and 16 bytes per slot. A decision is one atomic addition,
    /// without a clock and without a limit
    BareTable,
    /// The bare table with spillgate's hash and clock. The difference between this table and spillgate is the cost of
    /// the decision itself
    BareTableSameInputs,
}

impl Case {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Case::TokenBucket => "spillgate token bucket",
            Case::TokenBucketTicking => "spillgate token bucket, ticking clock",
            Case::FixedWindow => "spillgate fixed window",
            Case::SlidingWindowCounter => "spillgate sliding window counter",
            Case::Governor => "governor 0.10.4 keyed DashMap",
            Case::GovernorUpkeep => "governor 0.10.4 keyed DashMap, upkeep clock",
            Case::Sketch => "spillgate sketch, token bucket, 64 MiB",
            Case::SketchWindows => "spillgate sketch, sliding window counter, 64 MiB",
            Case::PingoraRate => "pingora-limits 0.9.1 `Rate::observe`, 64 MiB (no limit)",
            Case::PlainMap => "256 mutexes around HashMap, foldhash (no clock, no limit)",
            Case::BareTable => "table of 64-bit fingerprints (no clock, no limit)",
            Case::BareTableSameInputs => "table of 64-bit fingerprints, with spillgate's hash and clock (no limit)",
        }
    }

    /// Returns all cases that have an entry for each key. Sketches have none.
    pub(crate) fn with_keys() -> Vec<Case> {
        let sketches = [Case::Sketch, Case::SketchWindows, Case::PingoraRate];
        Case::value_variants().iter().copied().filter(|case| !sketches.contains(case)).collect()
    }

    /// The quota for spillgate. The state of a key does not expire during a run.
    pub(crate) fn quota(self, width: Width) -> Result<Quota, String> {
        let (limit, window) = match width {
            Width::Wide => (100_000_000, Duration::from_secs(100_000_000)),
            Width::Narrow => (1, Duration::from_secs(3600)),
        };
        let builder = match self {
            Case::FixedWindow => Quota::fixed_window(limit, window),
            Case::SlidingWindowCounter | Case::SketchWindows => Quota::sliding_window_counter(limit, window),
            _ => Quota::token_bucket(limit, window),
        };
        builder.build().map_err(|error| error.to_string())
    }

    /// Starts a new limiter for at most `max_keys` keys.
    pub(crate) fn start(self, max_keys: usize, width: Width) -> Result<Box<dyn Subject>, String> {
        Ok(match self {
            Case::Governor => Box::new(governor(width)?),
            Case::GovernorUpkeep => {
                let clock = QuantaUpkeepClock::from_interval(TickingClock::TICK).map_err(|error| error.to_string())?;
                Box::new(RateLimiter::dashmap_with_clock(governor_quota(width)?, clock))
            }
            Case::TokenBucketTicking => {
                let store = MemoryStore::new(MemoryOptions { max_keys, ..MemoryOptions::default() });
                let clock = TickingClock::start().map_err(|error| error.to_string())?;
                Box::new(Spillgate { limiter: Limiter::with_clock(store, clock), quota: self.quota(width)? })
            }
            Case::Sketch | Case::SketchWindows => {
                let quota = self.quota(width)?;
                let sketch = Sketch::new(&quota, SKETCH_BYTES).map_err(|error| error.to_string())?;
                Box::new(Sketched { limiter: Limiter::new(sketch), quota })
            }
            Case::PingoraRate => {
                let slots = SKETCH_BYTES / size_of::<isize>() / PINGORA_TABLES / PINGORA_HASHES;
                Box::new(Rate::new_with_estimator_config(Duration::from_secs(1), PINGORA_HASHES, slots))
            }
            Case::PlainMap => Box::new(PlainMap::new()),
            Case::BareTable => Box::new(BareTable::new(max_keys, Inputs::Fast(RandomState::default()))),
            Case::BareTableSameInputs => {
                Box::new(BareTable::new(max_keys, Inputs::Same(KeyHasher::random(), SystemClock::start())))
            }
            _ => {
                let limiter = Limiter::new(MemoryStore::new(MemoryOptions { max_keys, ..MemoryOptions::default() }));
                Box::new(Spillgate { limiter, quota: self.quota(width)? })
            }
        })
    }
}

/// A limiter that threads share.
pub(crate) trait Subject: Sync {
    /// Decides once for every key in `keys`, and returns how many were allowed.
    fn count_allowed(&self, keys: &Keys) -> usize;
}

/// spillgate with one quota for all keys.
pub(crate) struct Spillgate<C = SystemClock> {
    pub(crate) limiter: Limiter<MemoryStore, C>,
    pub(crate) quota: Quota,
}

impl<C: Clock> Spillgate<C> {
    pub(crate) fn allows(&self, key: &str) -> bool {
        self.limiter.take_now(&self.quota, ("api", key), 1).allowed
    }
}

impl<C: Clock> Subject for Spillgate<C> {
    fn count_allowed(&self, keys: &Keys) -> usize {
        keys.iter().filter(|key| self.allows(key)).count()
    }
}

/// A sketch with one quota for all keys.
struct Sketched {
    limiter: Limiter<Sketch>,
    quota: Quota,
}

impl Subject for Sketched {
    fn count_allowed(&self, keys: &Keys) -> usize {
        keys.iter().filter(|key| self.limiter.take_now(&self.quota, ("api", *key), 1).allowed).count()
    }
}

impl Subject for Rate {
    fn count_allowed(&self, keys: &Keys) -> usize {
        keys.iter().filter(|key| self.observe(&("api", *key), 1) > 0).count()
    }
}

/// A governor limiter for keys that are strings.
pub(crate) fn governor(width: Width) -> Result<DefaultKeyedRateLimiter<String>, String> {
    Ok(DefaultKeyedRateLimiter::dashmap(governor_quota(width)?))
}

fn governor_quota(width: Width) -> Result<governor::Quota, String> {
    let (burst, period) = match width {
        Width::Wide => (100_000_000, Duration::from_secs(1)),
        Width::Narrow => (1, Duration::from_secs(3600)),
    };
    let burst = NonZeroU32::new(burst).ok_or("governor needs a burst")?;
    Ok(governor::Quota::with_period(period).ok_or("governor needs a period")?.allow_burst(burst))
}

impl<C> Subject for RateLimiter<String, DashMapStateStore<String>, C, NoOpMiddleware<C::Instant>>
where
    C: governor::clock::Clock + Sync,
{
    fn count_allowed(&self, keys: &Keys) -> usize {
        // governor's lookup needs a `&String`. One string is used again and again, so that nothing is allocated.
        let mut owned = String::with_capacity(16);
        let allows = |key: &&str| {
            owned.clear();
            owned.push_str(key);
            self.check_key(&owned).is_ok()
        };
        keys.iter().filter(allows).count()
    }
}

/// A map that owns its keys. It only counts and never refuses.
struct PlainMap {
    shards: Box<[PlainShard]>,
    hasher: RandomState,
}

type PlainShard = Mutex<HashMap<Box<str>, u64, RandomState>>;

impl PlainMap {
    const SHARDS: usize = 256;

    fn new() -> PlainMap {
        let hasher = RandomState::default();
        let shard = |_| Mutex::new(HashMap::with_hasher(hasher.clone()));
        PlainMap { shards: (0..PlainMap::SHARDS).map(shard).collect(), hasher }
    }
}

impl Subject for PlainMap {
    fn count_allowed(&self, keys: &Keys) -> usize {
        let allows = |key: &&str| {
            let index = (self.hasher.hash_one(key) >> 32) as usize % PlainMap::SHARDS;
            let mut shard = self.shards[index].lock();
            match shard.get_mut(*key) {
                Some(used) => *used += 1,
                None => {
                    shard.insert((*key).into(), 1);
                }
            }
            true
        };
        keys.iter().filter(allows).count()
    }
}

/// A table that shows the cost of memory alone. A decision accesses one slot and makes one addition.
struct BareTable {
    slots: Box<[Slot]>,
    inputs: Inputs,
}

/// What a decision computes before it accesses the table.
enum Inputs {
    /// Only a fast hash.
    Fast(RandomState),
    /// The hash with a secret and the clock that spillgate uses.
    Same(KeyHasher, SystemClock),
}

impl Inputs {
    /// Returns the fingerprint of `key`. It also reads the clock if there is one.
    fn read(&self, key: &str) -> u64 {
        match self {
            Inputs::Fast(hasher) => hasher.hash_one(key),
            Inputs::Same(hasher, clock) => {
                let key = hasher.start().part(b"api").part(key.as_bytes()).finish();
                black_box(clock.now());
                key as u64
            }
        }
    }
}

#[derive(Default)]
struct Slot {
    /// 0 if the slot is free.
    fingerprint: AtomicU64,
    used: AtomicU64,
}

impl BareTable {
    fn new(max_keys: usize, inputs: Inputs) -> BareTable {
        // At most half of the slots are used. At least one slot is always free, so that every search ends.
        let slots = (max_keys * 2 + 1).next_power_of_two();
        BareTable { slots: (0..slots).map(|_| Slot::default()).collect(), inputs }
    }

    fn slot(&self, key: &str) -> &Slot {
        let fingerprint = self.inputs.read(key) | 1;
        let mask = self.slots.len() - 1;
        let mut index = (fingerprint >> 20) as usize & mask;
        loop {
            let slot = &self.slots[index];
            let stored = slot.fingerprint.load(Ordering::Relaxed);
            if stored == fingerprint {
                return slot;
            }
            if stored == 0 {
                let claim = slot.fingerprint.compare_exchange(0, fingerprint, Ordering::Relaxed, Ordering::Relaxed);
                if claim.is_ok() || claim == Err(fingerprint) {
                    return slot;
                }
            }
            index = (index + 1) & mask;
        }
    }
}

impl Subject for BareTable {
    fn count_allowed(&self, keys: &Keys) -> usize {
        let allows = |key: &&str| self.slot(key).used.fetch_add(1, Ordering::Relaxed) != u64::MAX;
        keys.iter().filter(allows).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_answers_as_its_width_says() {
        let keys = Keys::new(&[1, 2, 1, 3, 1, 2]);
        for &case in Case::value_variants() {
            let wide = case.start(10, Width::Wide).unwrap();
            assert_eq!(wide.count_allowed(&keys), 6, "{}", case.name());
        }
        for case in [Case::TokenBucket, Case::FixedWindow, Case::SlidingWindowCounter, Case::Governor] {
            let narrow = case.start(10, Width::Narrow).unwrap();
            assert_eq!(narrow.count_allowed(&keys), 3, "{}", case.name());
        }
    }
}
