//! A shared store that a test can make fail. In these tests, a node is a server that uses the shared store, as in
//! `expected_nodes`.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use spillgate_limiter::{
    Decision, FallbackStore, Hit, MemoryOptions, MemoryStore, OpKind, Quota, Store, StoreError, StoreErrorKind, Time,
    Timing, Verdict,
};

/// The state of one server's link to the shared store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    #[default]
    Works,
    /// The link is down, so no request reaches the store.
    Lost,
    /// The request reaches the store and is charged, but the server gets an error in place of the answer.
    AnswerLost,
}

/// One server's link to a store that several servers share.
#[derive(Clone, Debug)]
pub(crate) struct Shaky {
    pub(crate) shared: Arc<MemoryStore>,
    link: Arc<Mutex<Link>>,
    /// The time of the store's clock, or `None` if the store has no clock.
    pub(crate) clock: Option<Time>,
}

impl Shaky {
    pub(crate) fn new() -> Shaky {
        Shaky { shared: Arc::new(memory()), link: Arc::default(), clock: None }
    }

    /// Returns the link of another server to the same store.
    pub(crate) fn other_node(&self) -> Shaky {
        Shaky { link: Arc::default(), ..self.clone() }
    }

    pub(crate) fn set(&self, link: Link) {
        *self.link.lock().expect("no thread panicked with the lock") = link;
    }
}

impl Store for Shaky {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.shared.supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let link = *self.link.lock().expect("no thread panicked with the lock");
        assert_eq!(timing.now.is_none(), self.has_clock(), "a store with a clock gets no time");
        let lost = || StoreError::new(StoreErrorKind::Disconnected, format!("{link:?}"));
        if link == Link::Lost {
            return Err(lost());
        }
        let mut timing = timing;
        timing.now = timing.now.or(self.clock);
        let verdict = self.shared.decide(timing, hits, decisions).await?;
        if link == Link::AnswerLost { Err(lost()) } else { Ok(verdict) }
    }
}

pub(crate) fn memory() -> MemoryStore {
    MemoryStore::new(MemoryOptions { max_keys: 100_000, ..MemoryOptions::default() })
}

pub(crate) fn nodes(nodes: u32) -> NonZeroU32 {
    NonZeroU32::new(nodes).expect("at least one node")
}

/// Returns `store` with an empty local store that answers while `store` fails.
pub(crate) fn with_fallback<S: Store>(store: S, expected_nodes: u32) -> FallbackStore<S> {
    FallbackStore::new(store, memory(), nodes(expected_nodes))
}

/// Returns the output of a future that never waits.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing here waits"),
    }
}
