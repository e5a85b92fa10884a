//! The log and the leases, which find their answers by search, against models that scan for them.
//!
//! Not one field of an answer may differ: over times that stand, step back and arrive out of
//! order, and over limits and lives that change from one request to the next.

mod support;

use std::time::Duration;

use proptest::prelude::*;
use spillgate_core::{Decision, Op, OpKind, Quota, Reason, Receipt, State, Time, Wait};
use support::{ask, cases};

/// What an algorithm has to answer, by scanning all that it remembers.
trait Scan: Default {
    /// Makes the state one of `now`; `false` = nothing of it counts any more.
    fn adopt(&mut self, quota: &Quota, now: u64) -> bool;
    fn used(&self, quota: &Quota, now: u64) -> u64;
    fn wait(&self, quota: &Quota, cost: u64, now: u64) -> Wait;
    fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt;
    fn force(&mut self, quota: &Quota, cost: u64, now: u64);
    /// `false` = nothing is left.
    fn refund(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool;
    /// `false` = there is no such lease.
    fn renew(&mut self, quota: &Quota, receipt: Receipt, now: u64) -> bool;
    /// When all is over.
    fn end(&self, quota: &Quota) -> u64;
}

fn refuse(answer: &mut Decision, reason: Reason, wait: Wait) {
    (answer.allowed, answer.reason, answer.retry_after) = (false, reason, wait);
}

/// One request with one hit, on a quota without penalty and charged refusals.
fn scan<S: Scan>(state: &mut S, quota: &Quota, op: Op, now: u64) -> Decision {
    if !state.adopt(quota, now) {
        *state = S::default();
    }
    let mut answer = Decision { limit: quota.capacity(), ..Decision::default() };
    match op {
        Op::Take { cost, .. } if cost > quota.hard_capacity() => {
            refuse(&mut answer, Reason::CostAboveCapacity, Wait::Never);
        }
        Op::Take { cost, .. } if state.used(quota, now) + cost > quota.hard_capacity() => {
            refuse(&mut answer, Reason::Exceeded, state.wait(quota, cost, now));
        }
        Op::Take { cost, .. } if cost > 0 => {
            answer.receipt = Some(state.charge(quota, cost, now));
            answer.soft_over = state.used(quota, now) > quota.capacity();
        }
        Op::Look if state.used(quota, now) > quota.hard_capacity() => {
            refuse(&mut answer, Reason::Exceeded, state.wait(quota, 0, now));
        }
        Op::Force { .. } if !quota.supports(OpKind::Force) => refuse(&mut answer, Reason::Unsupported, Wait::Never),
        Op::Force { cost } if cost > 0 => state.force(quota, cost, now),
        Op::Refund { cost, receipt } if cost > 0 => {
            if !state.refund(quota, cost, receipt, now) {
                *state = S::default();
            }
        }
        Op::Renew { .. } if !quota.supports(OpKind::Renew) => refuse(&mut answer, Reason::Unsupported, Wait::Never),
        Op::Renew { receipt } if !state.renew(quota, receipt, now) => {
            refuse(&mut answer, Reason::LeaseExpired, Wait::Never);
        }
        Op::Reset => *state = S::default(),
        _ => {}
    }
    answer.remaining = quota.capacity().saturating_sub(state.used(quota, now));
    answer.reset_after_ns = state.end(quota).saturating_sub(now);
    answer
}

/// When each unit was taken, oldest first.
#[derive(Default)]
struct Units(Vec<u64>);

impl Units {
    fn effective(&self, now: u64) -> u64 {
        self.0.last().map_or(now, |newest| now.max(*newest))
    }

    fn counting(&self, quota: &Quota, now: u64) -> Vec<u64> {
        let effective = self.effective(now);
        self.0.iter().copied().filter(|at| effective - at < quota.window_ns()).collect()
    }
}

impl Scan for Units {
    fn adopt(&mut self, quota: &Quota, now: u64) -> bool {
        self.0.last().is_some_and(|newest| *newest <= now + quota.window_ns())
    }

    fn used(&self, quota: &Quota, now: u64) -> u64 {
        self.counting(quota, now).len() as u64
    }

    fn wait(&self, quota: &Quota, cost: u64, now: u64) -> Wait {
        let over = (self.used(quota, now) + cost - quota.hard_capacity()) as usize;
        Wait::After(self.counting(quota, now)[over - 1] + quota.window_ns() - now)
    }

    fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt {
        let at = self.effective(now);
        self.0 = self.counting(quota, now);
        self.0.extend((0..cost).map(|_| at));
        Receipt { at: Time::from_nanos(at), mark: 0 }
    }

    fn force(&mut self, quota: &Quota, cost: u64, now: u64) {
        let most = quota.hard_capacity() + 1;
        self.charge(quota, cost.min(most), now);
        self.0.drain(..self.0.len().saturating_sub(most as usize));
    }

    fn refund(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        if receipt.is_none() {
            self.0 = self.counting(quota, now);
        }
        for _ in 0..cost.min(self.0.len() as u64) {
            let at = receipt.map_or(self.0.first().copied(), |r| Some(r.at.as_nanos()));
            let Some(unit) = self.0.iter().position(|unit| Some(*unit) == at) else { break };
            self.0.remove(unit);
        }
        !self.0.is_empty()
    }

    fn renew(&mut self, _: &Quota, _: Receipt, _: u64) -> bool {
        false
    }

    fn end(&self, quota: &Quota) -> u64 {
        self.0.last().map_or(0, |newest| newest + quota.window_ns())
    }
}

#[derive(Clone, Debug)]
struct Lease {
    id: u64,
    places: u64,
    expires_at: u64,
    life_ns: u64,
}

/// The leases in the order in which they were given, and the newest id.
#[derive(Default)]
struct Holders {
    leases: Vec<Lease>,
    last_id: u64,
}

impl Scan for Holders {
    fn adopt(&mut self, _: &Quota, now: u64) -> bool {
        for lease in &mut self.leases {
            lease.expires_at = lease.expires_at.min(now + lease.life_ns);
        }
        now <= self.last_id || self.leases.iter().any(|lease| lease.expires_at > now)
    }

    fn used(&self, _: &Quota, now: u64) -> u64 {
        self.leases.iter().filter(|lease| lease.expires_at > now).map(|lease| lease.places).sum()
    }

    fn wait(&self, _: &Quota, _: u64, _: u64) -> Wait {
        Wait::Unknown
    }

    fn charge(&mut self, quota: &Quota, places: u64, now: u64) -> Receipt {
        self.leases.retain(|lease| lease.expires_at > now);
        self.last_id = now.max(self.last_id + 1);
        let (id, life_ns) = (self.last_id, quota.lease_ns());
        self.leases.push(Lease { id, places, expires_at: now + life_ns, life_ns });
        Receipt { at: Time::from_nanos(now), mark: id }
    }

    fn force(&mut self, _: &Quota, _: u64, _: u64) {}

    fn refund(&mut self, _: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        for lease in self.leases.iter_mut().filter(|lease| receipt.is_some_and(|r| r.mark == lease.id)) {
            lease.places = lease.places.saturating_sub(cost);
        }
        self.leases.retain(|lease| lease.places > 0);
        now <= self.last_id || !self.leases.is_empty()
    }

    fn renew(&mut self, quota: &Quota, receipt: Receipt, now: u64) -> bool {
        let alive = |lease: &&mut Lease| lease.id == receipt.mark && lease.expires_at > now;
        let Some(lease) = self.leases.iter_mut().find(alive) else { return false };
        lease.life_ns = lease.life_ns.max(quota.lease_ns());
        lease.expires_at = lease.expires_at.max(now + quota.lease_ns());
        true
    }

    fn end(&self, _: &Quota) -> u64 {
        self.leases.iter().map(|lease| lease.expires_at).max().unwrap_or(0)
    }
}

/// An operation: what is asked, how much, and which of the receipts so far it is about.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Which of the quotas.
    quota: usize,
    /// From the time of the step before.
    gap_ns: i64,
    kind: OpKind,
    cost: u64,
    receipt: Option<usize>,
}

fn steps(reach_ns: i64) -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![
        4 => Just(0),
        8 => 0..=reach_ns / 8,
        2 => -3..=3i64,
        1 => -reach_ns..=0,
        1 => 0..=2 * reach_ns,
    ];
    let kind = prop_oneof![
        8 => Just(OpKind::Take),
        3 => Just(OpKind::Refund),
        2 => Just(OpKind::Renew),
        1 => Just(OpKind::Look),
        1 => Just(OpKind::Force),
    ];
    let step =
        (0..3usize, gap, kind, prop_oneof![6 => 1..=3u64, 1 => 0..=12u64], prop::option::weighted(0.9, 0..8usize));
    let step = step.prop_map(|(quota, gap_ns, kind, cost, receipt)| Step { quota, gap_ns, kind, cost, receipt });
    prop::collection::vec(step, 1..120)
}

fn assert_same<S: Scan>(quotas: &[Quota], start: u64, steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut state, mut model, mut now) = (State::default(), S::default(), start);
    let mut receipts: Vec<Receipt> = Vec::new();
    for step in steps {
        now = now.saturating_add_signed(step.gap_ns);
        // Receipts are counted from the newest.
        let receipt = step.receipt.and_then(|back| receipts.iter().rev().nth(back).copied());
        let quota = &quotas[step.quota % quotas.len()];
        let op = match (step.kind, receipt) {
            (OpKind::Refund, receipt) => Op::Refund { cost: step.cost, receipt },
            (OpKind::Renew, Some(receipt)) => Op::Renew { receipt },
            (OpKind::Force, _) => Op::Force { cost: step.cost },
            (OpKind::Look, _) => Op::Look,
            _ => Op::take(step.cost),
        };
        let answer = ask(&mut state, quota, op, now);
        // A look of 0 units is a look.
        let op = if op == Op::take(0) { Op::Look } else { op };
        prop_assert_eq!(answer, scan(&mut model, quota, op, now), "{:?} at {}", op, now);
        receipts.extend(answer.receipt);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn the_log_answers_as_one_that_scans(
        limits in prop::collection::vec((1..=9u64, prop_oneof![2 => Just(0u32), 1 => Just(500_000)]), 1..=3),
        window_ns in 1..=60u64,
        start in prop_oneof![Just(0), Just(1_000_000)],
        steps in steps(60),
    ) {
        let quota = |(limit, soft_ppm)| {
            Quota::sliding_window_log(limit, Duration::from_nanos(window_ns)).soft_ppm(soft_ppm).build().expect("a log")
        };
        let quotas: Vec<Quota> = limits.into_iter().map(quota).collect();
        assert_same::<Units>(&quotas, start, &steps)?;
    }

    #[test]
    fn leases_answer_as_ones_that_scan(
        limits in prop::collection::vec((1..=9u64, 1..=60u64), 1..=3),
        start in prop_oneof![Just(0), Just(1_000_000)],
        steps in steps(60),
    ) {
        let quota = |(places, lease)| {
            Quota::concurrency(places).lease(Duration::from_nanos(lease)).build().expect("places")
        };
        let quotas: Vec<Quota> = limits.into_iter().map(quota).collect();
        assert_same::<Holders>(&quotas, start, &steps)?;
    }
}

/// The largest log: every answer at its edges, and a refund from its middle.
#[test]
fn a_full_log_frees_its_entries_one_by_one() {
    const LIMIT: u64 = 65_536;
    let quota = Quota::sliding_window_log(LIMIT, Duration::from_secs(1)).build().expect("a log");
    let (mut state, window_ns) = (State::default(), quota.window_ns());
    let mut receipts = Vec::new();
    for at in 0..LIMIT {
        receipts.extend(ask(&mut state, &quota, Op::take(1), at * 10).receipt);
    }
    let now = LIMIT * 10;
    for cost in [1, 2, 77, LIMIT - 1, LIMIT] {
        let wait_ns = (cost - 1) * 10 + window_ns - now;
        assert_eq!(ask(&mut state, &quota, Op::take(cost), now).retry_after, Wait::After(wait_ns));
    }
    let refund = Op::Refund { cost: 1, receipt: Some(receipts[30_000]) };
    assert_eq!(ask(&mut state, &quota, refund, now).remaining, 1);
    assert_eq!(ask(&mut state, &quota, Op::take(30_002), now).retry_after, Wait::After(30_001 * 10 + window_ns - now));
    assert!(state.heap_bytes() <= 2 * 16 * LIMIT as usize);
}

/// The largest number of leases: held, run out, renewed and given back.
#[test]
fn a_full_house_of_leases_is_counted_right() {
    const PLACES: u64 = 65_536;
    let quota = Quota::concurrency(PLACES).lease(Duration::from_secs(1)).build().expect("places");
    let mut state = State::default();
    let receipts: Vec<Receipt> =
        (0..PLACES).filter_map(|at| ask(&mut state, &quota, Op::take(1), at * 10).receipt).collect();
    let now = PLACES * 10;
    assert_eq!(receipts.len() as u64, PLACES);
    assert_eq!(ask(&mut state, &quota, Op::take(1), now).retry_after, Wait::Unknown);
    assert!(ask(&mut state, &quota, Op::Renew { receipt: receipts[0] }, now).allowed);
    let refund = Op::Refund { cost: 1, receipt: Some(receipts[9]) };
    assert_eq!(ask(&mut state, &quota, refund, now).remaining, 1);
    // Of the first hundred one was renewed and one was given back.
    assert_eq!(ask(&mut state, &quota, Op::Look, quota.lease_ns() + 990).remaining, 99);
    assert_eq!(ask(&mut state, &quota, Op::Look, quota.lease_ns() + now - 1).remaining, PLACES - 1);
    assert_eq!(
        ask(&mut state, &quota, Op::Look, quota.lease_ns() + now),
        Decision { limit: PLACES, remaining: PLACES, ..Decision::default() }
    );
}
