//! A batch: many requests of one hit each.
//!
//! With many keys, a decision mostly waits for memory. A batch starts to fetch the buckets of a whole group before it
//! decides the first hit, so that these waits overlap.

use smallvec::SmallVec;
use spillgate_core::{Decision, Hit, Time};

use super::retry::GiveUpOn;
use super::store::MemoryStore;

/// The number of requests whose buckets are fetched together.
///
/// A processor fetches about this many lines at a time. A thread can also hold this many tables without reference counts.
const GROUP: usize = 8;

impl MemoryStore {
    /// Decides each of `hits` at `now`, in order, as a request of its own. `decisions` has the same length.
    pub(super) fn decide_each(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) {
        for (hits, decisions) in hits.chunks(GROUP).zip(decisions.chunks_mut(GROUP)) {
            let located: SmallVec<[_; GROUP]> = hits.iter().map(|hit| self.locate(hit)).collect();
            let tables: SmallVec<[_; GROUP]> = located.iter().map(|(_, shard)| shard.load()).collect();
            // No fetch depends on an earlier one, so all are under way at once.
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
