//! Tests of the circuit breaker. Its functions get the time as an argument, so the tests need no clock.

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
fn a_server_that_says_it_is_down_opens_it_at_once() {
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
        assert!(breaker.admits(opened_ns), "the first request after the wait is the probe");
        assert_eq!(breaker.circuit(), Circuit::HalfOpen);
        assert!(!breaker.admits(opened_ns), "no second request passes during the probe");
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
fn a_probe_without_a_result_is_followed_at_once() {
    let breaker = breaker();
    breaker.inconclusive();
    assert_eq!(breaker.circuit(), Circuit::Closed);
    breaker.open(1);
    breaker.inconclusive();
    assert!(!breaker.admits(2), "a request that is not the probe and has no result changes nothing");
    for _ in 0..3 {
        assert!(breaker.admits(1 + PROBE_EVERY_NS));
        assert!(!breaker.admits(1 + PROBE_EVERY_NS), "only one probe passes at a time");
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
    // The success set the count of failures to zero, so one more failure does not open the breaker.
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
