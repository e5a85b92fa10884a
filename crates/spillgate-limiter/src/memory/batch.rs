//! Decides the argument of [`MemoryStore::hit_batch_now`]: many requests, each with one hit.
//!
//! If a store has many keys, a decision spends most of its time waiting for memory. So this code starts to fetch the
//! buckets of a whole group of hits before it decides the first of them. The waits then overlap.

use smallvec::SmallVec;
use spillgate_core::{Decision, Hit, Time};

use super::retry::GiveUpOn;
use super::store::MemoryStore;

/// The number of requests whose buckets are fetched together.
///
/// A processor can fetch about this many cache lines at the same time. `arc_swap` also has a limit of this size: a
/// thread can use up to eight tables at the same time without counting references to them.
const GROUP: usize = 8;

impl MemoryStore {
    /// Decides each of `hits` at `now`, in order, as a separate request. `decisions` must have the same length as
    /// `hits`.
    pub(super) fn decide_each(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) {
        for (hits, decisions) in hits.chunks(GROUP).zip(decisions.chunks_mut(GROUP)) {
            let located: SmallVec<[_; GROUP]> = hits.iter().map(|hit| self.locate(hit)).collect();
            let tables: SmallVec<[_; GROUP]> = located.iter().map(|(_, shard)| shard.load()).collect();
            // No fetch depends on an earlier fetch, so the processor can work on all of them at the same time.
            let touched = located.iter().zip(&tables).fold(0, |sum, ((key, _), table)| sum ^ table.touch(*key));
            std::hint::black_box(touched);
            for (i, decision) in decisions.iter_mut().enumerate() {
                let (key, shard) = located[i];
                match self.try_one(now, &hits[i], (key, shard, &tables[i]), GiveUpOn::default(), decision) {
                    Ok(new) => self.sweep_now_and_then(shard, key, new, now),
                    Err(_) => self.decide_one(now, &hits[i], decision),
                }
            }
        }
    }
}
