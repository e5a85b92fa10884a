//! The counters of each limit of a rule.
//!
//! A rule can have several limits, and the counters of the rule do not say which of them refused.
//!
//! Threads count in separate copies of the counters (see `sharded.rs`), and each copy of a limit's counters fits into
//! one cache line. The counters of the limits are in the order of the rule, so that a request does not search for them.

use spillgate::rules::Rule;
use spillgate::{Binding, Decision, Hit, MAX_UNITS, Op, Reason};

use super::registry::labels;
use super::sharded::{Sharded, ThreadCopy, ThreadNumber};

/// The label `limit` shows at most this many bytes of the name of a limit.
const NAME_BYTES: usize = 128;

/// The outcomes of hits, in the order of their counters.
pub(super) const HITS: [&str; 4] = ["allowed", "refused", "shadow_refused", "soft_over"];
/// The index of `allowed` in [`HITS`] and in [`UNITS`]. The following indexes are named in the same way.
const ALLOWED: usize = 0;
const REFUSED: usize = 1;
const SHADOW_REFUSED: usize = 2;
const SOFT_OVER: usize = 3;
/// The index of the counter of hits near the limit. It comes after the counters of [`HITS`].
pub(super) const NEAR: usize = HITS.len();
/// The index of the first counter of units.
pub(super) const FIRST_UNITS: usize = NEAR + 1;
/// The outcomes of units, in the order of their counters.
pub(super) const UNITS: [&str; 3] = ["allowed", "refused", "shadow_refused"];

const COUNTERS: usize = FIRST_UNITS + UNITS.len();

/// The hits on a limit by outcome: since the server started, or between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitHits {
    /// Hits that the limit allowed, without those of `soft_over`.
    pub allowed: u64,
    /// Hits that the limit refused.
    pub refused: u64,
    /// Hits that were allowed only because of shadow mode.
    pub shadow_refused: u64,
    /// Hits above the limit that its option `soft` allowed.
    pub soft_over: u64,
    /// Allowed hits after which more than 80 % of the limit was used.
    pub near: u64,
}

impl LimitHits {
    /// Returns the hits after `before`, which is an earlier reading.
    #[must_use]
    pub const fn since(&self, before: &LimitHits) -> LimitHits {
        LimitHits {
            allowed: self.allowed.wrapping_sub(before.allowed),
            refused: self.refused.wrapping_sub(before.refused),
            shadow_refused: self.shadow_refused.wrapping_sub(before.shadow_refused),
            soft_over: self.soft_over.wrapping_sub(before.soft_over),
            near: self.near.wrapping_sub(before.near),
        }
    }
}

/// The counters of one limit: the hits with each outcome, the hits near the limit, and the units with each outcome.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitCounters(Sharded<COUNTERS>);

impl LimitCounters {
    /// Counts one hit on the limit. A hit counts as at most 2^53 - 1 units, so that no client can make a counter wrap
    /// around. `is_taken` is false if another limit has refused the request, so that this limit took no units.
    #[inline]
    pub(crate) fn count(&self, thread: ThreadNumber, hit: &Hit<'_>, decision: &Decision, is_taken: bool) {
        let Some(counters) = self.0.of(thread) else { return };
        // Most hits are takes that are allowed and taken. They need few instructions here.
        match hit.op {
            Op::Take { cost: units @ 1.., .. }
                if decision.allowed && is_taken && decision.reason == Reason::Fits && !decision.soft_over =>
            {
                counters.add(ALLOWED, 1);
                counters.add(FIRST_UNITS + ALLOWED, units.min(MAX_UNITS));
                if is_near(decision) {
                    counters.add(NEAR, 1);
                }
            }
            _ => count_other(counters, hit, decision, is_taken),
        }
    }

    /// Returns the hits since the server started.
    pub(crate) fn hits(&self) -> LimitHits {
        let sums = self.0.sums();
        let [allowed, refused, shadow_refused] = [ALLOWED, REFUSED, SHADOW_REFUSED].map(|index| sums[index]);
        LimitHits { allowed, refused, shadow_refused, soft_over: sums[SOFT_OVER], near: sums[NEAR] }
    }

    /// Returns a number by which clones of the same counters are recognized. No other counters that exist at the same
    /// time have this number.
    pub(crate) fn identity(&self) -> usize {
        self.0.identity()
    }

    /// Returns the sum of each counter over all copies.
    pub(super) fn sums(&self) -> [u64; COUNTERS] {
        self.0.sums()
    }
}

/// Counts a hit of any kind. [`LimitCounters::count`] itself counts the most frequent kind, because that is faster.
#[inline(never)]
fn count_other(counters: ThreadCopy<'_, COUNTERS>, hit: &Hit<'_>, decision: &Decision, is_taken: bool) {
    let Some(units) = judged_units(hit.op, decision).map(|units| units.min(MAX_UNITS)) else { return };
    if decision.allowed {
        counters.add(if decision.soft_over { SOFT_OVER } else { ALLOWED }, 1);
        counters.add(NEAR, u64::from(is_near(decision)));
        counters.add(FIRST_UNITS + ALLOWED, if is_taken { units } else { 0 });
    } else {
        let outcome = if hit.binding == Binding::Shadow { SHADOW_REFUSED } else { REFUSED };
        counters.add(outcome, 1);
        counters.add(FIRST_UNITS + outcome, units);
    }
}

/// Returns the units of a hit, or `None` if the hit is not counted. Allowed peeks are not counted, because they take
/// nothing. Decisions such as those of a full store are not counted, because they say nothing about the limit.
#[inline]
pub fn judged_units(op: Op, decision: &Decision) -> Option<u64> {
    let units = match op {
        Op::Take { cost, .. } | Op::Force { cost } => cost,
        _ => 0,
    };
    (is_of_limit(decision.reason) && !(decision.allowed && units == 0)).then_some(units)
}

/// Returns whether the limit itself has decided, and not, for example, a full store.
#[inline]
const fn is_of_limit(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Fits | Reason::Exceeded | Reason::CostAboveCapacity | Reason::Penalty | Reason::WaitTooLong
    )
}

/// Returns whether more than 80 % of the limit is used, and the hit is not above the limit.
#[inline]
const fn is_near(decision: &Decision) -> bool {
    decision.remaining.saturating_mul(5) < decision.limit && !decision.soft_over
}

/// Returns the labels of each limit of `rule`, as the page of metrics shows them between braces.
///
/// The label `limit` is the name of the limit. A limit without a name gets its size as its name, such as `5 per
/// minute`. If an earlier limit of the rule has the same name, the position in the rule is added, such as `5 per minute
/// #2`.
pub(super) fn labels_of(rule: &Rule) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (index, limit) in rule.limits.iter().enumerate() {
        let mut name = match &limit.name {
            Some(name) => name[..name.floor_char_boundary(NAME_BYTES)].to_owned(),
            None => limit.size(),
        };
        while names.contains(&name) {
            name = format!("{name} #{}", index + 1);
        }
        names.push(name);
    }
    let label = |name: &String| labels(&[("domain", &rule.domain), ("rule", &rule.path), ("limit", name)]);
    names.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use spillgate::{Quota, Wait};

    use super::*;

    #[test]
    fn no_cost_makes_a_counter_of_units_fall() {
        const LIMIT: Quota = Quota::per_minute(3).constant();
        let refused = Decision::refuse(3, Reason::CostAboveCapacity, Wait::Never);
        let counters = LimitCounters::default();
        let mut before = counters.sums();
        for (cost, binding) in [(u64::MAX, Binding::Enforce), (1 << 53, Binding::Enforce), (u64::MAX, Binding::Shadow)]
        {
            for (op, decision) in [
                (Op::take(cost), &refused),
                (Op::take(cost), &Decision::allow(3, 0)),
                (Op::Force { cost }, &Decision::allow(3, 0)),
            ] {
                let hit = Hit::new(7, &LIMIT, op, binding);
                (0..3).for_each(|_| counters.count(ThreadNumber::current(), &hit, decision, true));
                let after = counters.sums();
                let added: u64 = (FIRST_UNITS..COUNTERS).map(|index| after[index].wrapping_sub(before[index])).sum();
                assert_eq!(added, 3 * MAX_UNITS, "{cost} {op:?}");
                before = after;
            }
        }
    }
}
