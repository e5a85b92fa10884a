//! A limiter over memory answers at once: the same calls without a future.

use spillgate_core::{Decision, Quota, StoreError};

use crate::{Clock, Limiter, MemoryStore};

impl<C: Clock> Limiter<MemoryStore, C> {
    /// [`Limiter::hit`] without a future to wait for.
    ///
    /// # Errors
    /// None that a well-formed hit can meet; the type is that of every store.
    pub fn hit_now(&self, bucket: &str, key: &str, quota: &Quota, cost: u64) -> Result<Decision, StoreError> {
        let mut decisions = [Decision::default()];
        self.store().decide_now(self.now(), &[self.hit_on(bucket, key, quota, cost)], &mut decisions)?;
        let [decision] = decisions;
        Ok(decision)
    }
}
