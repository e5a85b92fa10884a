//! Many requests of one hit each: memory is asked for all of a group before any is decided.

use smallvec::SmallVec;
use spillgate_core::{Decision, Hit, Time};

use super::MemoryStore;
use super::place::Insists;

/// Requests whose buckets are fetched together: as many as a processor fetches at a time, and as a
/// thread can hold tables without counting references.
const GROUP: usize = 8;

impl MemoryStore {
    /// Decides each of `hits` at `now` as a request of its own, in order; `decisions` has the same length.
    pub(super) fn decide_each(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) {
        for (hits, decisions) in hits.chunks(GROUP).zip(decisions.chunks_mut(GROUP)) {
            let homes: SmallVec<[_; GROUP]> = hits.iter().map(|hit| self.home(hit)).collect();
            let tables: SmallVec<[_; GROUP]> = homes.iter().map(|(_, home)| home.load()).collect();
            // Nothing here depends on what was read before, so all of it is under way at once.
            let touched = homes.iter().zip(&tables).fold(0, |sum, ((key, _), table)| sum ^ table.touch(*key));
            std::hint::black_box(touched);
            for (i, decision) in decisions.iter_mut().enumerate() {
                let (key, home) = homes[i];
                match self.try_one(now, &hits[i], (key, home, &tables[i]), Insists::default(), decision) {
                    Ok(new) => self.tend_after(home, key, new, now),
                    Err(_) => self.decide_one(now, &hits[i], decision),
                }
            }
        }
    }
}
