//! The functions of a limiter for one limit and one key, with any store.

use spillgate_core::{Decision, Hit, Op, Quota, Receipt, Store, StoreError};

use crate::{Clock, Key, Limiter};

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Takes `cost` units for `key`, if they fit `quota`. A refused take costs nothing, unless the quota
    /// [says otherwise](crate::QuotaBuilder::denied).
    ///
    /// A take of cost 0 takes nothing and reads what is left. Unlike a peek, it starts the penalty of the quota if it
    /// is refused.
    ///
    /// The time of the decision comes from the store's clock, or from the limiter's clock if the store has no clock.
    /// The waits in the decision start at that time.
    ///
    /// ```
    /// use spillgate::{Limiter, Quota};
    ///
    /// const LOGIN: Quota = Quota::per_minute(5).constant();
    ///
    /// # async fn example() -> Result<(), spillgate::StoreError> {
    /// let limiter = Limiter::in_memory();
    /// let decision = limiter.take(&LOGIN, ("login", "user-7"), 1).await?;
    /// if !decision.allowed {
    ///     println!("try again in {:?} s", decision.retry_after.secs_ceil());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide).
    pub fn take(
        &self,
        quota: &Quota,
        key: impl Key,
        cost: u64,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.decide_one(self.hit(quota, key, cost))
    }

    /// Reads what is left for `key`, and changes nothing.
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide).
    pub fn peek(&self, quota: &Quota, key: impl Key) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.decide_one(self.hit(quota, key, 0).with_op(Op::Peek))
    }

    /// Counts `cost` units that were used already, even if they do not fit.
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide).
    pub fn force(
        &self,
        quota: &Quota,
        key: impl Key,
        cost: u64,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.decide_one(self.hit(quota, key, 0).with_op(Op::Force { cost }))
    }

    /// Gives `cost` units back. `receipt` is the [receipt](Decision::receipt) of the take that is refunded.
    /// [`Op::Refund`] says what a refund without a receipt gives back.
    ///
    /// ```
    /// use spillgate::{Limiter, Quota};
    ///
    /// const UPLOAD: Quota = Quota::per_hour(100).constant();
    ///
    /// # async fn example() -> Result<(), spillgate::StoreError> {
    /// let limiter = Limiter::in_memory();
    /// let decision = limiter.take(&UPLOAD, "ann", 10).await?; // 10 MB are announced,
    /// limiter.refund(&UPLOAD, "ann", 4, decision.receipt).await?; // and only 6 MB arrive
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide).
    pub fn refund(
        &self,
        quota: &Quota,
        key: impl Key,
        cost: u64,
        receipt: Option<Receipt>,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.decide_one(self.hit(quota, key, 0).with_op(Op::Refund { cost, receipt }))
    }

    /// Forgets everything that was counted for `key`, and any penalty.
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide).
    pub fn reset(&self, quota: &Quota, key: impl Key) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.decide_one(self.hit(quota, key, 0).with_op(Op::Reset))
    }

    pub(crate) async fn decide_one(&self, hit: Hit<'_>) -> Result<Decision, StoreError> {
        let (_, [decision]) = self.decide_all([hit]).await?;
        Ok(decision)
    }
}
