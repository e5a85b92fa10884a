//! Tries every short trace (a sequence of operations) with every small quota, and compares the answers of the kernel
//! with a model and with the bounds.
//!
//! Random tests can miss a case, but a small domain can be tried completely.
//!
//! `f(s)` is the bound of an algorithm: the maximum number of units that it admits in an interval of length `s`.

use std::time::Duration;

use crate::support::model::Model;
use crate::support::{ask, within_bound};
use spillgate_core::{Algorithm, Anchor, Decision, Denied, Op, Quota, QuotaBuilder, Receipt, State};

/// A node in the tree of all traces, with everything that happened in its trace.
#[derive(Clone, Default)]
struct Node {
    state: State,
    model: Model,
    now: u64,
    receipt: Option<Receipt>,
    /// For each event: the time, the units that were admitted, and the units that were given back.
    events: Vec<(u64, u64, u64)>,
}

/// One letter of a trace: an operation without its time.
#[derive(Clone, Copy, Debug)]
enum Letter {
    Take(u64),
    /// A take by a caller that does not wait in a queue.
    TakeNow(u64),
    Peek,
    Force(u64),
    RefundLast(u64),
    RefundAny(u64),
    RenewLast,
    /// A settlement that gives back one unit.
    SettleLast,
}

impl Letter {
    fn op(self, receipt: Option<Receipt>) -> Op {
        match (self, receipt) {
            (Letter::Take(cost), _) => crate::support::take(cost),
            (Letter::TakeNow(cost), _) => Op::take(cost),
            (Letter::Force(cost), _) => Op::Force { cost },
            (Letter::RefundLast(cost), Some(_)) => Op::Refund { cost, receipt },
            (Letter::RefundAny(cost), _) => Op::Refund { cost, receipt: None },
            (Letter::RenewLast, Some(receipt)) => Op::Renew { receipt },
            (Letter::SettleLast, Some(receipt)) => Op::settle(1, 0, receipt),
            (Letter::Peek | Letter::RefundLast(_) | Letter::RenewLast | Letter::SettleLast, _) => Op::Peek,
        }
    }
}

impl Node {
    /// Asks the kernel and the model, and checks that both give the same answer. Returns the next node.
    fn follow(&self, quota: &Quota, letter: Letter, gap_ns: i64) -> Node {
        let mut next = self.clone();
        next.now = self.now.saturating_add_signed(gap_ns);
        let op = letter.op(self.receipt);
        let answer = ask(&mut next.state, quota, op, next.now);
        let expected = next.model.ask(quota, op, next.now);
        assert_eq!(answer, expected, "{op:?} at {} after {:?} under {quota:?}", next.now, self.events);
        next.receipt = answer.receipt.or(self.receipt);
        self.assert_free(&next, quota, &answer);
        match op {
            Op::Take { cost, .. } if answer.allowed => next.events.push((next.now, cost, 0)),
            Op::Refund { cost, .. } => next.events.push((next.now, 0, cost)),
            _ => {}
        }
        next
    }

    /// Checks that a free refusal that starts no penalty leaves the state as a peek would leave it.
    fn assert_free(&self, next: &Node, quota: &Quota, answer: &Decision) {
        if !answer.allowed && quota.refusal_is_free() {
            let mut peeked = self.state.clone();
            ask(&mut peeked, quota, Op::Peek, next.now);
            assert_eq!(peeked, next.state);
        }
    }

    /// Checks the bound from each event to the newest event. At most `f(s)` units may be admitted, where `s` is the
    /// time between the two events. Units that were given back do not count as admitted.
    fn assert_bound(&self, quota: &Quota) {
        let (mut admitted, mut refunded) = (0u128, 0u128);
        for (at, taken, given_back) in self.events.iter().rev() {
            admitted += u128::from(*taken);
            refunded += u128::from(*given_back);
            let sum = admitted.saturating_sub(refunded);
            assert!(
                within_bound(quota, self.now - at, sum),
                "more than f(s) units by {:?} under {quota:?}",
                self.events
            );
        }
    }
}

/// Visits all traces that continue the trace of `node` by `length` letters. Returns the number of answers that were
/// compared.
fn explore(node: &Node, quota: &Quota, letters: &[Letter], gaps: &[i64], length: u32) -> u64 {
    let monotonic = gaps.iter().all(|gap| *gap >= 0);
    let mut answers = 0;
    for &gap_ns in gaps {
        for &letter in letters {
            let next = node.follow(quota, letter, gap_ns);
            if monotonic && quota.algorithm() != Algorithm::Concurrency {
                next.assert_bound(quota);
            }
            answers += 1 + if length > 1 { explore(&next, quota, letters, gaps, length - 1) } else { 0 };
        }
    }
    answers
}

/// Returns all quotas with small numbers. With `extras`, some of them also have penalties, soft limits and charged
/// refusals.
fn small_quotas(algorithm: Algorithm, windows: &[u64], extras: bool) -> Vec<Quota> {
    let mut quotas = Vec::new();
    let depths = match algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => 1..=3,
        _ => 0..=0,
    };
    let penalties = if extras { [0, 3] } else { [0, 0] };
    let soft_ppm = if extras { [0, 1_000_000] } else { [0, 0] };
    let charged = if extras && algorithm != Algorithm::Concurrency { Denied::Charged } else { Denied::Free };
    for &window in windows {
        for (limit, depth) in (1..=3).flat_map(|l| depths.clone().map(move |d| (l, d))) {
            for (penalty, soft) in penalties.into_iter().flat_map(|p| soft_ppm.map(|s| (p, s))) {
                for denied in [Denied::Free, charged] {
                    let builder = QuotaBuilder::new(algorithm, limit, Duration::from_nanos(window));
                    let builder = match algorithm {
                        Algorithm::TokenBucket => builder.burst(depth),
                        Algorithm::LeakyBucket => builder.queue(depth - 1),
                        Algorithm::Concurrency => builder.lease(Duration::from_nanos(window)),
                        _ => builder,
                    };
                    let builder = builder.penalty(Duration::from_nanos(penalty)).soft_ppm(soft).denied(denied);
                    quotas.extend(builder.build().ok().filter(|quota| !quotas.contains(quota)));
                }
            }
        }
    }
    quotas
}

/// Visits two sets of traces, and returns the number of answers that were compared.
///
/// The first set has all traces of three operations, under all quotas with and without extras. In these traces, the
/// time can step back. The second set has all traces of five takes, under the quotas without extras. In these traces,
/// the time never steps back.
fn explore_all(algorithm: Algorithm, windows: &[u64]) -> u64 {
    let mut answers = 0;
    let letters = [Letter::Take(1), Letter::Take(2), Letter::Force(2), Letter::RefundLast(1), Letter::RefundAny(1)];
    // This time is inside a window, not at its start (except for windows of 1 ns).
    let start = Node { now: 121, ..Node::default() };
    for quota in small_quotas(algorithm, windows, true) {
        let window = quota.window_ns() as i64;
        answers += explore(&start, &quota, &letters, &[0, 1, window, -1, -window - 1], 3);
    }
    let letters = [Letter::Take(1), Letter::Take(2), Letter::TakeNow(1)];
    let letters = if algorithm == Algorithm::LeakyBucket { &letters[..] } else { &letters[..2] };
    for quota in small_quotas(algorithm, windows, false) {
        answers += explore(&Node::default(), &quota, letters, &[0, 1, quota.interval_ns() as i64], 5);
    }
    answers
}

#[test]
fn every_small_trace_of_a_token_bucket() {
    assert_eq!(explore_all(Algorithm::TokenBucket, &[2, 5]), 1_255_770);
}

#[test]
fn every_small_trace_of_a_leaky_bucket() {
    assert_eq!(explore_all(Algorithm::LeakyBucket, &[5]), 589_887);
}

#[test]
fn every_small_trace_of_a_fixed_window() {
    assert_eq!(explore_all(Algorithm::FixedWindow(Anchor::Epoch), &[1, 5]), 837_180);
}

#[test]
fn every_small_trace_of_a_first_hit_window() {
    assert_eq!(explore_all(Algorithm::FixedWindow(Anchor::FirstHit), &[1, 5]), 837_180);
}

#[test]
fn every_small_trace_of_a_log() {
    assert_eq!(explore_all(Algorithm::SlidingWindowLog, &[1, 5]), 837_180);
}

#[test]
fn every_small_trace_of_a_counter() {
    assert_eq!(explore_all(Algorithm::SlidingWindowCounter { segments: 1 }, &[1, 5]), 837_180);
}

#[test]
fn every_small_trace_of_segments() {
    let two = explore_all(Algorithm::SlidingWindowCounter { segments: 2 }, &[6]);
    let three = explore_all(Algorithm::SlidingWindowCounter { segments: 3 }, &[6]);
    assert_eq!((two, three), (418_590, 418_590));
}

#[test]
fn every_small_trace_of_leases() {
    let letters =
        [Letter::Take(1), Letter::Take(2), Letter::Peek, Letter::RefundLast(1), Letter::RenewLast, Letter::SettleLast];
    let start = Node { now: 121, ..Node::default() };
    let explore_one = |quota: Quota| {
        let lease = quota.lease_ns() as i64;
        explore(&start, &quota, &letters, &[0, 1, lease, -1, -lease - 1], 3)
    };
    let answers = small_quotas(Algorithm::Concurrency, &[1, 5], true).into_iter().map(explore_one);
    assert_eq!(answers.sum::<u64>(), 670_320);
}
