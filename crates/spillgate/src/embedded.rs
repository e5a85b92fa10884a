//! A limiter over memory answers at once: the same calls without a future.

use spillgate_core::{Decision, Quota, StoreError};

use crate::{Clock, Limiter, MemoryStore};

impl<C: Clock> Limiter<MemoryStore, C> {
    /// [`Limiter::hit`] without a future to wait for.
    ///
    /// # Errors
    /// None that a well-formed hit can meet; the type is that of every store.
    pub fn hit_now(&self, bucket: &str, key: &str, quota: &Quota, cost: u64) -> Result<Decision, StoreError> {
        // The key first: processors wait with reading the time until memory has answered.
        let hit = self.hit_on(bucket, key, quota, cost);
        Ok(self.store().hit_now(self.now(), &hit))
    }
}
