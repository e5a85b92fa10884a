//! The store that was picked at the start.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use spillgate::{Binding, Decision, Fallback, Hit, MemoryStore, Op, OpKind, Quota, Store, StoreError, Time, Verdict};
use spillgate_redis::{Error, ErrorKind, RedisStore};
use tokio::time::Instant;

/// The store that was picked at the start.
#[derive(Debug)]
pub enum Backend {
    /// State in this process.
    Memory(MemoryStore),
    /// State that a fleet shares.
    Redis(Box<Shared>),
}

impl Backend {
    /// One question, answered within `timeout` if the store has to be waited for and can be.
    pub(super) async fn ask(
        &self,
        now: Time,
        timeout: Option<Duration>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        match self {
            Backend::Memory(store) => store.decide(Some(now), hits, decisions).await,
            Backend::Redis(shared) => {
                // In a box, so that questions to memory do not carry its size around, nor the compiler its type.
                let asked: Pin<Box<dyn Future<Output = _> + Send + '_>> =
                    Box::pin(shared.ask(now, timeout, hits, decisions));
                asked.await
            }
        }
    }

    /// The store in this process: all there is, or what stands in for the shared one.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        match self {
            Backend::Memory(store) => store,
            Backend::Redis(shared) => shared.fallback.local(),
        }
    }

    /// The store that a fleet shares, if it is one.
    #[must_use]
    pub fn shared(&self) -> Option<&Shared> {
        match self {
            Backend::Memory(_) => None,
            Backend::Redis(shared) => Some(shared),
        }
    }
}

/// A store has a clock of its own, but what stands in for it has none: so there is always a time to pass.
impl Store for Backend {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        match self {
            Backend::Memory(store) => store.supports(quota, op),
            Backend::Redis(shared) => shared.store.supports(quota, op),
        }
    }

    async fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let now = now.ok_or(StoreError::Malformed("no time"))?;
        self.ask(now, None, hits, decisions).await
    }
}

/// A store that a fleet shares, and what answers while it fails.
#[derive(Debug)]
pub struct Shared {
    store: RedisStore,
    fallback: Fallback,
    deadline: Duration,
    /// What every store has; its keys are gone at once.
    probe: Quota,
    failures: [Failures; ErrorKind::ALL.len()],
}

/// Requests that failed in one way.
#[derive(Debug, Default)]
struct Failures {
    count: AtomicU64,
    /// The first since somebody looked.
    detail: ArcSwapOption<Error>,
}

impl Shared {
    /// `store`, which has at most `deadline` for each request, and `fallback` for what it does not decide.
    ///
    /// # Panics
    /// Never: a millisecond is a window.
    #[must_use]
    pub fn new(store: RedisStore, fallback: Fallback, deadline: Duration) -> Shared {
        let probe = Quota::fixed_window(1, Duration::from_millis(1)).build();
        let probe = probe.expect("invariant: a millisecond is a window");
        Shared { store, fallback, deadline, probe, failures: Default::default() }
    }

    /// The store itself.
    #[must_use]
    pub const fn store(&self) -> &RedisStore {
        &self.store
    }

    /// How long a request waits for the store at most.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Requests that the store did not decide, so; probes are none.
    #[must_use]
    pub fn failures(&self, class: ErrorKind) -> u64 {
        self.failures[class as usize].count.load(Ordering::Relaxed)
    }

    /// What was said at the first failure of this class since the last look.
    #[must_use]
    pub fn take_detail(&self, class: ErrorKind) -> Option<String> {
        self.failures[class as usize].detail.swap(None).map(|failed| failed.detail.to_string())
    }

    /// Takes from a key that no request has, within `timeout`; each probe is for another slot. All servers of a fleet probe
    /// the same keys: a probe that is refused is an answer too.
    ///
    /// # Errors
    /// The store does not decide.
    pub async fn probe(&self, probe: u32, timeout: Duration) -> Result<Verdict, Error> {
        let hits = [Hit::new(u128::from(probe) << Hit::SLOT_SHIFT, &self.probe, Op::take(1), Binding::Enforce)];
        let timeout = timeout.min(self.deadline);
        self.store.decide_within(timeout, None, &hits, &mut [Decision::default()]).await
    }

    /// When a question that is asked now, with that time of its own, has to be answered.
    pub(super) fn until(&self, timeout: Option<Duration>) -> Instant {
        Instant::now() + self.time(timeout)
    }

    fn time(&self, timeout: Option<Duration>) -> Duration {
        timeout.map_or(self.deadline, |timeout| timeout.min(self.deadline))
    }

    async fn ask(
        &self,
        now: Time,
        timeout: Option<Duration>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let timeout = self.time(timeout);
        self.fallback.decide(&Timed { shared: self, timeout }, now, hits, decisions).await
    }
}

/// The shared store, with a time for each request, and a count of those that fail.
struct Timed<'s> {
    shared: &'s Shared,
    timeout: Duration,
}

impl Store for Timed<'_> {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.shared.store.supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        true
    }

    async fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let decided = self.shared.store.decide_within(self.timeout, now, hits, decisions).await;
        decided.map_err(|failed| {
            let class = failed.kind;
            let Failures { count, detail } = &self.shared.failures[class as usize];
            count.fetch_add(1, Ordering::Relaxed);
            if detail.load().is_none() {
                detail.store(Some(failed.into()));
            }
            // What the store says is for the log: callers get what that means. One that the store cannot put as asked is
            // a failure like any other, since the service has seen to what is wrong with it: the policies answer.
            StoreError::Unavailable(class.explanation().into())
        })
    }
}
