//! Sends any requests at any times to the kernel and to the memory store. Neither of them may panic, and both must give
//! the same answers. If one limit refuses a request, the answer says how long to wait. After this wait, the same
//! request must be allowed.
//!
//! The store has a fast path, and it removes expired states. If this code has a mistake, the store decides differently
//! from the kernel. Random requests find such mistakes.

#![no_main]

use std::collections::HashMap;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use spillgate::{
    Algorithm, Anchor, Binding, Decision, Denied, Hit, MemoryOptions, MemoryStore, OnFull, Op, OpKind, Quota,
    QuotaBuilder, Receipt, State, Time, Verdict, Wait, decide,
};

#[derive(Arbitrary, Debug)]
struct Scenario {
    quotas: [QuotaPlan; 3],
    requests: Vec<RequestPlan>,
}

#[derive(Arbitrary, Debug)]
struct QuotaPlan {
    algorithm: u8,
    segments: u8,
    limit: u16,
    wide_limit: Option<u64>,
    window_ns: u64,
    burst: Option<u16>,
    penalty_ns: Option<u64>,
    soft_ppm: u32,
    charged: bool,
}

#[derive(Arbitrary, Debug)]
struct RequestPlan {
    /// The time by which the clock moves forward.
    step_ns: u32,
    /// If there is a value, the clock jumps to this time, and `step_ns` is not used.
    jump: Option<u64>,
    hits: Vec<HitPlan>,
}

#[derive(Arbitrary, Debug)]
struct HitPlan {
    key: u8,
    quota: u8,
    binding: u8,
    op: OpPlan,
}

#[derive(Arbitrary, Debug)]
enum OpPlan {
    Take { cost: u16, max_wait_ns: u64 },
    TakeAny { cost: u64 },
    Peek,
    Force { cost: u64 },
    Refund { cost: u64, receipt: Option<u8> },
    RefundAny { cost: u64, at: u64, mark: u64 },
    Renew { receipt: u8 },
    Settle { change: i64, receipt: u8 },
    Reset,
}

impl QuotaPlan {
    /// Builds the quota, or returns `None` if the builder refuses it. The builder must not panic.
    fn build(&self) -> Option<Quota> {
        let algorithm = match self.algorithm % 7 {
            0 => Algorithm::TokenBucket,
            1 => Algorithm::FixedWindow(Anchor::Epoch),
            2 => Algorithm::FixedWindow(Anchor::FirstHit),
            3 => Algorithm::SlidingWindowLog,
            4 => Algorithm::SlidingWindowCounter { segments: self.segments },
            5 => Algorithm::LeakyBucket,
            _ => Algorithm::Concurrency,
        };
        let window = Duration::from_nanos(self.window_ns);
        let limit = self.wide_limit.unwrap_or(u64::from(self.limit));
        let mut quota = QuotaBuilder::new(algorithm, limit, window).soft_ppm(self.soft_ppm % 2_000_000);
        if self.charged {
            quota = quota.denied(Denied::Charged);
        }
        if let Some(ns) = self.penalty_ns {
            quota = quota.penalty(Duration::from_nanos(ns));
        }
        match (algorithm, self.burst) {
            (Algorithm::TokenBucket, Some(burst)) => quota = quota.burst(u64::from(burst)),
            (Algorithm::LeakyBucket, Some(queue)) => quota = quota.queue(u64::from(queue)),
            (Algorithm::Concurrency, _) => quota = quota.lease(window),
            _ => {}
        }
        quota.build().ok()
    }
}

impl OpPlan {
    fn op(&self, receipts: &[Receipt]) -> Option<Op> {
        let known = |index: u8| receipts.get(usize::from(index) % receipts.len().max(1)).copied();
        Some(match *self {
            OpPlan::Take { cost, max_wait_ns } => Op::Take { cost: u64::from(cost), max_wait_ns },
            OpPlan::TakeAny { cost } => Op::take(cost),
            OpPlan::Peek => Op::Peek,
            OpPlan::Force { cost } => Op::Force { cost },
            OpPlan::Refund { cost, receipt } => Op::Refund { cost, receipt: receipt.and_then(known) },
            OpPlan::RefundAny { cost, at, mark } => {
                Op::Refund { cost, receipt: Some(Receipt::new(Time::from_nanos(at), mark)) }
            }
            OpPlan::Renew { receipt } => Op::Renew { receipt: known(receipt)? },
            OpPlan::Settle { change, receipt } => Op::Settle { change, receipt: known(receipt)? },
            OpPlan::Reset => Op::Reset,
        })
    }
}

/// Returns the hits of a request. Every caller of a store must merge hits that differ only in their cost, so this
/// function merges them too.
fn hits<'q>(plan: &RequestPlan, quotas: &'q [Quota], receipts: &[Receipt]) -> Vec<Hit<'q>> {
    let mut hits: Vec<Hit<'q>> = Vec::new();
    for hit in plan.hits.iter().take(8) {
        let quota = &quotas[usize::from(hit.quota) % quotas.len()];
        let binding = [Binding::Enforce, Binding::Shadow, Binding::Quota][usize::from(hit.binding) % 3];
        let Some(op) = hit.op.op(receipts) else { continue };
        let hit = Hit::new(u128::from(hit.key % 3), quota, op, binding);
        match hits.iter_mut().find_map(|other| other.merged(&hit).map(|merged| (other, merged))) {
            Some((other, merged)) => *other = merged,
            None => hits.push(hit),
        }
    }
    hits
}

/// Decides with the kernel, on states in a plain map.
fn decide_in(map: &mut HashMap<u128, State>, hits: &[Hit<'_>], now: Time, out: &mut [Decision]) -> Verdict {
    let mut keys: Vec<u128> = Vec::new();
    let mut state_of = Vec::new();
    for hit in hits {
        let key = hit.state_key();
        let known = keys.iter().position(|other| *other == key);
        state_of.push(known.unwrap_or(keys.len()));
        if known.is_none() {
            keys.push(key);
        }
    }
    let mut states: Vec<State> = keys.iter().map(|key| map.get(key).cloned().unwrap_or_default()).collect();
    let verdict = decide(&mut states, &state_of, hits, now, out);
    map.extend(keys.into_iter().zip(states));
    verdict
}

fn answers_are_true(hits: &[Hit<'_>], decisions: &[Decision], verdict: &Verdict) {
    for (hit, decision) in hits.iter().zip(decisions) {
        assert_eq!(decision.limit, hit.quota.capacity());
        assert!(decision.remaining <= decision.limit, "{hit:?} {decision:?}");
        assert_eq!(decision.allowed, decision.retry_after == Wait::NONE, "{hit:?} {decision:?}");
        let take = matches!(hit.op, Op::Take { cost: 1.., .. });
        assert_eq!(decision.receipt.is_some(), take && decision.allowed && verdict.allowed, "{hit:?} {decision:?}");
        if let Op::Take { max_wait_ns, .. } = hit.op {
            assert!(decision.delay_ns <= max_wait_ns, "{hit:?} {decision:?}");
        }
    }
    let refused = |binding| hits.iter().zip(decisions).any(|(h, d)| h.binding == binding && !d.allowed);
    let passes = hits.iter().zip(decisions).any(|(h, d)| h.binding == Binding::Quota && d.allowed);
    assert_eq!(verdict.allowed, !refused(Binding::Enforce) && (passes || !refused(Binding::Quota)));
    assert_eq!(verdict.allowed, verdict.retry_after == Wait::NONE);
}

/// Checks that a refused take is allowed if it comes again after the wait that its answer reported. No other request
/// comes during this wait.
fn waiting_helps(map: &HashMap<u128, State>, hit: &Hit<'_>, decision: &Decision, now: Time) {
    let Wait::After(ns) = decision.retry_after else { return };
    let free = hit.quota.denied() == Denied::Free && hit.op.kind() == OpKind::Take;
    let later = now.after(Duration::from_nanos(ns));
    if decision.allowed || !free || later == Time::MAX {
        return;
    }
    let mut out = [Decision::default()];
    decide_in(&mut map.clone(), std::slice::from_ref(hit), later, &mut out);
    assert!(out[0].allowed, "{hit:?} at {now:?}: {decision:?}, but then {:?}", out[0]);
}

fuzz_target!(|scenario: Scenario| {
    let quotas: Vec<Quota> = scenario.quotas.iter().filter_map(QuotaPlan::build).collect();
    if quotas.is_empty() {
        return;
    }
    let store = MemoryStore::new(MemoryOptions { max_keys: 1024, on_full: OnFull::Deny, ..MemoryOptions::default() });
    let mut map = HashMap::new();
    let mut receipts = Vec::new();
    let mut now = Time::from_nanos(1_700_000_000_000_000_000);
    // `alike` is true until the clock is set back. Until then, the store and the kernel must give the same answers.
    // When the clock is set back, expired states count again. The map still has these states, but the store can have
    // removed them. So the answers can differ.
    let mut alike = true;
    for plan in scenario.requests.iter().take(64) {
        let next = plan.jump.map_or(now.after(Duration::from_nanos(u64::from(plan.step_ns))), Time::from_nanos);
        alike &= next >= now;
        now = next;
        let hits = hits(plan, &quotas, &receipts);
        let mut expected = vec![Decision::default(); hits.len()];
        let mut decisions = expected.clone();
        let verdict = decide_in(&mut map, &hits, now, &mut expected);
        let stored = store.decide_now(now, &hits, &mut decisions).expect("the store accepts the request");
        assert!(
            !alike || (&expected, verdict) == (&decisions, stored),
            "{hits:?}: kernel {expected:?}, store {decisions:?}"
        );
        answers_are_true(&hits, &expected, &verdict);
        answers_are_true(&hits, &decisions, &stored);
        if let ([hit], [decision]) = (&hits[..], &expected[..]) {
            waiting_helps(&map, hit, decision, now);
        }
        receipts.extend(expected.iter().filter_map(|decision| decision.receipt));
    }
});
