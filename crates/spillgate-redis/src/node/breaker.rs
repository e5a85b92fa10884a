//! The circuit breaker of a node: decides whether a request is sent, and when a node that is down is tried again.
//!
//! Without a breaker, each request to a node that is down would wait for its whole timeout, and a node that comes back
//! would get all requests at once.
//!
//! | state | `probe_at_ns` | requests | next state |
//! |---|---|---|---|
//! | closed | 0 | all pass | open after `max_failures` in a row, or at once if the node says that it is down, or cannot be reached |
//! | open | even: the time of the next probe | none passes before that time | half open when a request comes after that time |
//! | half open | odd: the time of the next probe, with the bit `PROBING` | one has passed as the probe | closed by a reply, open by a failure |
//!
//! A probe may end without a result, for example because its caller had little time. The breaker is then open again,
//! and the next request is the probe.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use spillgate_core::Circuit;

use crate::node::jitter::Jitter;

/// This bit in the time of the next probe means that a probe has been sent and has no result yet.
const PROBING: u64 = 1;
/// The earliest time of a probe. It is even, and not zero, because zero means "closed".
const EARLIEST_NS: u64 = 2;

/// A circuit breaker. While the breaker is closed, a request that passes costs one atomic load. While it is open, one
/// request passes as a probe after each wait of at most `probe_every`, even if the last probe never got a result.
///
/// Times are nanoseconds of the caller's clock, and never zero.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// Zero while the breaker is closed. While it is open, the time of the next probe, which is an even number. While
    /// the breaker is half open, the bit `PROBING` is added.
    probe_at_ns: AtomicU64,
    failures_in_a_row: AtomicU32,
    max_failures: u32,
    /// The longest wait for the next probe.
    probe_every: Duration,
    /// Shortens each wait by up to a half.
    jitter: Jitter,
}

impl Breaker {
    pub(crate) fn new(max_failures: u32, probe_every: Duration, jitter: Jitter) -> Breaker {
        Breaker {
            probe_at_ns: AtomicU64::new(0),
            failures_in_a_row: AtomicU32::new(0),
            max_failures,
            probe_every,
            jitter,
        }
    }

    /// Returns whether a request may pass. A request that passes while the breaker is open is the probe.
    pub(crate) fn admits(&self, now_ns: u64) -> bool {
        let at = self.probe_at_ns.load(Ordering::Acquire);
        if at == 0 || now_ns < at & !PROBING {
            return at == 0;
        }
        // Of several requests at the same time, the first one passes.
        let next = self.next_probe_ns(now_ns) | PROBING;
        self.probe_at_ns.compare_exchange(at, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Reports that a reply came. Returns whether the reply closes the breaker.
    pub(crate) fn succeeded(&self) -> bool {
        if self.failures_in_a_row.load(Ordering::Relaxed) != 0 {
            self.failures_in_a_row.store(0, Ordering::Relaxed);
        }
        let was_open = self.probe_at_ns.load(Ordering::Relaxed) != 0;
        if was_open {
            self.probe_at_ns.store(0, Ordering::Release);
        }
        was_open
    }

    /// Reports that no reply came. Returns whether this failure opens the breaker.
    pub(crate) fn failed(&self, now_ns: u64) -> bool {
        let failures = self.failures_in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        (failures >= self.max_failures || self.circuit() != Circuit::Closed) && self.open(now_ns)
    }

    /// Reports that a request ended, and that its result says nothing about the node. If the breaker is half open, the
    /// next request becomes the probe.
    pub(crate) fn inconclusive(&self) {
        let at = self.probe_at_ns.load(Ordering::Relaxed);
        if at & PROBING != 0 {
            let _ = self.probe_at_ns.compare_exchange(at, EARLIEST_NS, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Reports that the node is down or cannot be reached. Returns whether this opens the breaker.
    pub(crate) fn open(&self, now_ns: u64) -> bool {
        let next = self.next_probe_ns(now_ns);
        let was_closed = self.probe_at_ns.compare_exchange(0, next, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !was_closed {
            // The breaker was open already. Either the probe failed, or a request that was sent earlier failed.
            self.probe_at_ns.fetch_and(!PROBING, Ordering::AcqRel);
        }
        was_closed
    }

    pub(crate) fn circuit(&self) -> Circuit {
        match self.probe_at_ns.load(Ordering::Acquire) {
            0 => Circuit::Closed,
            at if at & PROBING == 0 => Circuit::Open,
            _ => Circuit::HalfOpen,
        }
    }

    /// Returns the time of the next probe. The wait is random, between half of `probe_every` and `probe_every`, so that
    /// the processes that share the node do not probe all at once.
    fn next_probe_ns(&self, now_ns: u64) -> u64 {
        let wait_ns = u64::try_from(self.jitter.of(self.probe_every).as_nanos()).unwrap_or(u64::MAX);
        (now_ns.saturating_add(wait_ns) & !PROBING).max(EARLIEST_NS)
    }
}

#[cfg(test)]
mod tests;
