//! A store that a test can slow down and break.

use std::sync::Mutex;
use std::time::Duration;

use spillgate_core::{Decision, Hit, OpKind, Quota, Store, StoreError, StoreErrorKind, Timing, Verdict};

/// What is wrong with the way to a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// No request reaches the store, and each fails.
    Disconnected,
    /// No request is sent, and each fails, as while a circuit breaker is open.
    NotSent,
    /// Each request reaches the store and is charged, but its answer is lost.
    AnswerLost,
    /// No request reaches the store, and none ends.
    Hangs,
}

/// A store behind a network: it never answers at once (`try_decide` has no answer), and a test can break it.
#[derive(Debug)]
pub struct Remote<S> {
    store: S,
    delay: Duration,
    fault: Mutex<Fault>,
}

impl<S> Remote<S> {
    /// Puts `store` behind a network that works.
    pub fn new(store: S) -> Remote<S> {
        Remote { store, delay: Duration::ZERO, fault: Mutex::default() }
    }

    /// Returns the same store, which begins with this fault.
    #[must_use]
    pub fn with(self, fault: Fault) -> Remote<S> {
        self.set(fault);
        self
    }

    /// Returns the same store, where each request begins with a wait on the timer of Tokio.
    #[must_use]
    pub fn with_delay(self, delay: Duration) -> Remote<S> {
        Remote { delay, ..self }
    }

    /// Returns the store itself, without the network.
    pub const fn direct(&self) -> &S {
        &self.store
    }

    /// Breaks the way to the store, or repairs it.
    pub fn set(&self, fault: Fault) {
        *self.fault.lock().expect("no thread panicked with the lock") = fault;
    }
}

impl<S: Store> Store for Remote<S> {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.store.supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        self.store.has_clock()
    }

    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        let fault = || *self.fault.lock().expect("no thread panicked with the lock");
        match fault() {
            Fault::Disconnected => {
                return Err(StoreError::new(StoreErrorKind::Disconnected, "the test broke the link"));
            }
            Fault::NotSent => {
                return Err(StoreError::new(StoreErrorKind::CircuitOpen, "the test has opened the circuit"));
            }
            Fault::Hangs => std::future::pending().await,
            Fault::None | Fault::AnswerLost => {}
        }
        let verdict = self.store.decide(timing, hits, decisions).await;
        match fault() {
            Fault::AnswerLost => Err(StoreError::new(StoreErrorKind::Timeout, "the test lost the answer")),
            _ => verdict,
        }
    }
}
