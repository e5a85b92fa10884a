//! Permits of a concurrency limit. A task of tokio renews each permit while it is held.
//!
//! The lease of a permit ends by itself, so a program that crashes keeps no permit. But work can take longer than a
//! lease. So the task renews the lease while the work runs.

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillgate_core::{Algorithm, Binding, Decision, Hit, Op, Quota, Receipt, Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{Clock, Key, Limiter};

impl<S: Store + 'static, C: Clock + 'static> Limiter<S, C> {
    /// Takes one permit of a [concurrency limit](Quota::concurrency), and renews the permit until it is dropped.
    ///
    /// Returns the decision, and a permit if the decision allows the work. If the store fails and the limit has
    /// [`OnStoreFailure::Allow`](crate::OnStoreFailure::Allow), the permit is not counted in any store.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spillgate::{Limiter, Quota};
    ///
    /// const REPORTS: Quota = Quota::concurrency(2).constant(); // two reports at a time for each user
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limiter = Arc::new(Limiter::in_memory());
    /// let (decision, permit) = limiter.hold(&REPORTS, ("report", "ann")).await?;
    /// if let Some(permit) = permit {
    ///     println!("{} more reports can run", decision.remaining);
    ///     // Make the report. Then:
    ///     permit.release().await?;
    /// }
    /// # Ok::<(), spillgate::StoreError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide), or `quota` is not a concurrency limit.
    ///
    /// # Panics
    /// Panics outside a runtime of tokio, or in a runtime without timers.
    pub async fn hold(
        self: &Arc<Self>,
        quota: &Quota,
        key: impl Key,
    ) -> Result<(Decision, Option<Permit>), StoreError> {
        let key = self.keys().start().key(&key).finish();
        if quota.algorithm() != Algorithm::Concurrency {
            return Err(StoreError::malformed("only a concurrency limit has permits; make it with Quota::concurrency"));
        }
        // Without a runtime, or without timers, one of these two lines panics, before a permit is taken.
        let runtime = Handle::current();
        let _ = timeout(Duration::ZERO, ready(())).await;
        let lease = Duration::from_nanos(quota.lease_ns());
        let (asked, asked_by_clock) = (Instant::now(), self.now());
        let decision = self.decide_one(Hit::new(key, quota, Op::take(1), Binding::Enforce)).await?;
        if !decision.allowed {
            return Ok((decision, None));
        }
        let limiter = Arc::clone(self);
        let now_ns = Box::new(move || limiter.now().as_nanos());
        // A decision without a receipt has counted nothing, so there is nothing to renew or to release.
        let Some(receipt) = decision.receipt else {
            let held = Arc::new(Held { until_ns: AtomicU64::new(u64::MAX) });
            return Ok((decision, Some(Permit { release: None, held, now_ns })));
        };
        let held = Arc::new(Held { until_ns: AtomicU64::new(asked_by_clock.after(lease).as_nanos()) });
        let (release, released) = oneshot::channel();
        let renewal =
            Renewal { limiter: Arc::clone(self), quota: quota.clone(), key, receipt, held: Arc::clone(&held) };
        runtime.spawn(renewal.keep(asked + lease, lease, released));
        Ok((decision, Some(Permit { release: Some(release), held, now_ns })))
    }
}

/// The task that renews a permit sends the result of the release through this sender.
type Reply = oneshot::Sender<Result<Decision, StoreError>>;

/// A permit of a concurrency limit. It is renewed while it is held, and released when it is dropped.
/// [`Limiter::hold`] has an example.
///
/// * **Renewal.** A task of tokio renews the permit each time that a third of its lease has passed. If the store fails,
///   the task tries again. If no renewal succeeds before the lease ends, the permit is lost: another caller may get it,
///   and [`is_held`](Permit::is_held) returns false.
/// * **Drop.** The same task releases the permit. A permit can therefore be dropped on any thread, also outside a
///   runtime. If the store fails at this moment, the permit becomes free when its lease ends.
/// * **Cancellation.** If the future of [`Limiter::hold`] is dropped before it returns, the store may have given out a
///   permit that nobody renews. A store on Redis gives this permit back as soon as it learns of it. If it never does, and
///   with other stores, the permit becomes free when its lease ends.
/// * **Without a count.** While the store fails, a policy can allow the work without counting it. Such a permit has no
///   lease, so it is held until it is dropped.
/// * **End of the runtime.** If the runtime ends while the permit is held, its tasks end too. The permit then becomes
///   free when its lease ends. The same is true if the process crashes.
pub struct Permit {
    /// Tells the task to release the permit. `None` if the permit is not counted, or after [`Permit::release`] was
    /// called.
    release: Option<oneshot::Sender<Reply>>,
    held: Arc<Held>,
    /// Returns the time of the limiter's clock.
    now_ns: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// How long a permit is held.
struct Held {
    /// When the lease ends, by the clock of the limiter in nanoseconds since 1970. 0 if the permit is not held any more.
    until_ns: AtomicU64,
}

impl Permit {
    /// Returns whether the permit is still held.
    ///
    /// The result is `false` as soon as the lease has ended without a renewal, for example because Redis failed for
    /// longer than the lease. After that, more callers than the limit allows may work at the same time. The result is
    /// also `false` as soon as the runtime has ended, because nothing renews the permit after that.
    ///
    /// The end of the lease is measured with the timers of tokio and also with the clock of the limiter. On most systems,
    /// only [`SystemClock`](crate::SystemClock) counts the time in which the machine is suspended. If somebody sets the
    /// wall clock forward by more than what is left of the lease, the result can be `false` until the next renewal, although
    /// the permit is still held in a store with a clock of its own.
    #[must_use]
    pub fn is_held(&self) -> bool {
        (self.now_ns)() < self.held.until_ns.load(Ordering::Relaxed)
    }

    /// Releases the permit, and waits until the store has released it. A drop does not wait.
    ///
    /// Returns `None` if the permit was lost or not counted, or if the runtime of its task has ended.
    ///
    /// # Errors
    /// The store failed. The permit becomes free when its lease ends.
    pub async fn release(mut self) -> Result<Option<Decision>, StoreError> {
        let (reply, replied) = oneshot::channel();
        let sent = self.release.take().is_some_and(|release| release.send(reply).is_ok());
        if !sent {
            return Ok(None);
        }
        replied.await.ok().transpose()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("is_held", &self.is_held()).finish_non_exhaustive()
    }
}

/// The task that renews one permit.
struct Renewal<S, C> {
    limiter: Arc<Limiter<S, C>>,
    quota: Quota,
    key: u128,
    receipt: Receipt,
    held: Arc<Held>,
}

impl<S: Store, C: Clock> Renewal<S, C> {
    /// Renews the permit until the caller drops or releases it, and then releases it in the store. Gives up when the
    /// permit is lost. The lease ends at `ends`, unless it is renewed.
    async fn keep(self, mut ends: Instant, lease: Duration, mut released: oneshot::Receiver<Reply>) {
        while Instant::now() < ends {
            // The pause before a renewal is a third of the time until the lease ends. So the pauses get shorter while
            // renewals fail. A pause is at least a thirtieth of the lease, because a store that fails at once would
            // otherwise be asked almost without a pause. But no pause goes beyond the end of the lease, because the
            // permit is lost then.
            let now = Instant::now();
            let next = now + ((ends - now) / 3).max(lease / 30);
            if let Ok(reply) = timeout_at(next.min(ends), &mut released).await {
                let result = self.apply(Op::Refund { cost: 1, receipt: Some(self.receipt) }).await;
                if let Ok(reply) = reply {
                    // The result is ignored, because the caller may have stopped waiting.
                    let _ = reply.send(result);
                }
                return;
            }
            let (asked, asked_by_clock) = (Instant::now(), self.limiter.now());
            match timeout_at(ends, self.apply(Op::Renew { receipt: self.receipt })).await {
                Ok(Ok(decision)) if decision.allowed => {
                    ends = asked + lease;
                    self.held.until_ns.store(asked_by_clock.after(lease).as_nanos(), Ordering::Relaxed);
                }
                // Another caller may have the permit already.
                Ok(Ok(_)) => break,
                // The store failed, or has not answered before the end of the lease.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    async fn apply(&self, op: Op) -> Result<Decision, StoreError> {
        self.limiter.decide_one(Hit::new(self.key, &self.quota, op, Binding::Enforce)).await
    }
}

impl<S, C> Drop for Renewal<S, C> {
    /// Runs when the task has ended, and when a runtime that ends drops the task. Nothing renews the permit after that.
    fn drop(&mut self) {
        self.held.until_ns.store(0, Ordering::Relaxed);
    }
}
