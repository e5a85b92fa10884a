//! The circuit breaker: when a server that is down is tried again.
//!
//! Without it each request would wait its whole timeout while a server is down, and a server that comes back would get
//! all requests at the same moment.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use spillgate_core::Circuit;

use crate::node::jitter::Jitter;

/// A bit in the time of the next probe: a probe is in flight.
const PROBING: u64 = 1;
/// The earliest time of a probe.
const EARLIEST_NS: u64 = 2;

/// A circuit breaker. A request that passes costs one atomic load.
///
/// It opens after `max_failures` requests in a row failed, or when the server itself says that it is down. While it is
/// open, one request passes as a probe in each `probe_every`. The first success closes it.
///
/// Times are nanoseconds of the caller's clock, and never zero. A probe that never gets a reply blocks nothing: the
/// next probe passes at its time.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// Zero while closed. Otherwise the time of the next probe, an even number, and the bit `PROBING`.
    probe_at_ns: AtomicU64,
    failures_in_a_row: AtomicU32,
    max_failures: u32,
    probe_every: Duration,
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

    /// Whether a request may pass. If the breaker is open, this request is the probe.
    pub(crate) fn admits(&self, now_ns: u64) -> bool {
        let at = self.probe_at_ns.load(Ordering::Acquire);
        if at == 0 || now_ns < at & !PROBING {
            return at == 0;
        }
        // If several requests come at the same time, the first one passes.
        let next = self.next_probe_ns(now_ns) | PROBING;
        self.probe_at_ns.compare_exchange(at, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// A reply came. Returns whether that closes the breaker.
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

    /// No reply came. Returns whether that opens the breaker.
    pub(crate) fn failed(&self, now_ns: u64) -> bool {
        let failures = self.failures_in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        (failures >= self.max_failures || self.circuit() != Circuit::Closed) && self.open(now_ns)
    }

    /// A request ended and says nothing about the server. If it was the probe, the next request is the probe.
    pub(crate) fn inconclusive(&self) {
        let at = self.probe_at_ns.load(Ordering::Relaxed);
        if at & PROBING != 0 {
            let _ = self.probe_at_ns.compare_exchange(at, EARLIEST_NS, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The server is down. Returns whether that opens the breaker.
    pub(crate) fn open(&self, now_ns: u64) -> bool {
        let next = self.next_probe_ns(now_ns);
        let was_closed = self.probe_at_ns.compare_exchange(0, next, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !was_closed {
            // The probe failed, or a request that was sent before the breaker opened.
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

    /// At most `probe_every` from now, and at least half of that, so that the servers of a fleet do not probe at the
    /// same time.
    fn next_probe_ns(&self, now_ns: u64) -> u64 {
        let wait_ns = u64::try_from(self.jitter.of(self.probe_every).as_nanos()).unwrap_or(u64::MAX);
        (now_ns.saturating_add(wait_ns) & !PROBING).max(EARLIEST_NS)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::{Breaker, Circuit};

    use crate::node::jitter::Jitter;

    const PROBE_EVERY_NS: u64 = 250_000_000;

    fn breaker() -> Breaker {
        Breaker::new(3, Duration::from_nanos(PROBE_EVERY_NS), Jitter::new())
    }

    #[test]
    fn as_many_failures_in_a_row_as_may_be_open_it() {
        let breaker = breaker();
        for now_ns in 1..100 {
            breaker.failed(now_ns);
            breaker.failed(now_ns);
            assert!(breaker.admits(now_ns));
            breaker.succeeded();
        }
        assert_eq!(breaker.circuit(), Circuit::Closed);
        assert_eq!([100; 3].map(|now_ns| breaker.failed(now_ns)), [false, false, true]);
        assert_eq!(breaker.circuit(), Circuit::Open);
        assert!(!breaker.admits(101));
    }

    #[test]
    fn the_servers_own_word_opens_it_at_once() {
        let breaker = breaker();
        breaker.open(1);
        assert_eq!((breaker.circuit(), breaker.admits(2)), (Circuit::Open, false));
    }

    #[test]
    fn a_probe_comes_after_at_least_half_the_time_and_at_most_all_of_it() {
        let breaker = breaker();
        let mut opened_ns = 1;
        breaker.open(opened_ns);
        for _ in 0..1000 {
            assert!(!breaker.admits(opened_ns + PROBE_EVERY_NS / 2 - 2));
            opened_ns += PROBE_EVERY_NS;
            assert!(breaker.admits(opened_ns), "the first one is the probe");
            assert_eq!(breaker.circuit(), Circuit::HalfOpen);
            assert!(!breaker.admits(opened_ns), "and no second one");
            breaker.failed(opened_ns);
            assert_eq!(breaker.circuit(), Circuit::Open);
        }
    }

    #[test]
    fn a_probe_without_an_end_is_followed_by_the_next() {
        let breaker = breaker();
        breaker.open(1);
        for turn in 1..10 {
            assert!(breaker.admits(1 + turn * PROBE_EVERY_NS), "probe {turn}");
        }
    }

    #[test]
    fn a_probe_that_tells_nothing_is_followed_at_once() {
        let breaker = breaker();
        breaker.inconclusive();
        assert_eq!(breaker.circuit(), Circuit::Closed);
        breaker.open(1);
        breaker.inconclusive();
        assert!(!breaker.admits(2), "it was not the probe");
        for _ in 0..3 {
            assert!(breaker.admits(1 + PROBE_EVERY_NS));
            assert!(!breaker.admits(1 + PROBE_EVERY_NS), "one at a time");
            breaker.inconclusive();
            assert_eq!(breaker.circuit(), Circuit::Open);
        }
    }

    #[test]
    fn one_success_closes_it() {
        let breaker = breaker();
        assert_eq!([1; 3].map(|now_ns| breaker.failed(now_ns)), [false, false, true]);
        assert!(breaker.admits(1 + PROBE_EVERY_NS));
        breaker.succeeded();
        assert_eq!(breaker.circuit(), Circuit::Closed);
        assert!((0..100).all(|_| breaker.admits(2 + PROBE_EVERY_NS)));
        // The count starts again.
        breaker.failed(3 + PROBE_EVERY_NS);
        assert_eq!(breaker.circuit(), Circuit::Closed);
    }

    #[test]
    fn one_of_many_simultaneous_requests_is_the_probe() {
        let (breaker, admitted) = (breaker(), AtomicUsize::new(0));
        breaker.open(1);
        for turn in 1..=100 {
            let now_ns = 1 + turn * PROBE_EVERY_NS;
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| admitted.fetch_add(usize::from(breaker.admits(now_ns)), Ordering::Relaxed));
                }
            });
        }
        assert_eq!(admitted.into_inner(), 100);
    }

    #[test]
    fn waits_differ() {
        let (one, other) = (Jitter::new(), Jitter::new());
        let waits = |jitter: &Jitter| -> Vec<Duration> { (0..8).map(|_| jitter.of(Duration::from_secs(1))).collect() };
        assert_ne!(waits(&one), waits(&other));
        assert_ne!(waits(&one), waits(&one));
    }
}
