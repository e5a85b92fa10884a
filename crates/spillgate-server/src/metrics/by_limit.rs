//! The counters of each limit of a rule.
//!
//! A rule can have several limits, and the counters of the rule do not say which of them refused. The counters of a limit
//! are in one cache line for each shard, and their position follows from the position of the limit in its rule. So no
//! request searches for them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use spillgate::rules::{Limit, Rule};
use spillgate::units::format_duration;
use spillgate::{Binding, Decision, Hit, Op, Reason};

use super::registry::labels;
use super::sharded::{Sharded, ThreadNumber};

/// A label shows at most this many bytes of the name of a limit.
const NAME_BYTES: usize = 128;

/// What a limit decided for a hit. The values are the positions of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitOutcome {
    Allowed = 0,
    Refused = 1,
    ShadowRefused = 2,
    SoftOver = 3,
}

/// The outcomes of hits, in the order of their counters.
pub(super) const HITS: [&str; 4] = ["allowed", "refused", "shadow_refused", "soft_over"];
/// The position of the counter of hits near the limit.
pub(super) const NEAR: usize = HITS.len();
/// The position of the first counter of units.
pub(super) const FIRST_UNITS: usize = NEAR + 1;
/// The outcomes of units, in the order of their counters.
pub(super) const UNITS: [&str; 3] = ["allowed", "refused", "shadow_refused"];

/// The counters of one limit: the hits with each outcome, the hits near the limit, and the units with each outcome.
pub(super) type LimitCounters = Sharded<{ FIRST_UNITS + UNITS.len() }>;

/// Counts one hit on a limit. `is_taken` says whether the units that the limit allowed were taken, and not given up
/// because another limit refused.
#[inline]
pub(super) fn count(
    counters: &LimitCounters,
    thread: ThreadNumber,
    hit: &Hit<'_>,
    decision: &Decision,
    is_taken: bool,
) {
    let units = match hit.op {
        Op::Take { cost, .. } | Op::Force { cost } => cost,
        _ => 0,
    };
    // A peek that is allowed takes nothing. For any other reason, the limit itself did not decide.
    let is_decided = matches!(decision.reason, Reason::Fits | Reason::Exceeded | Reason::CostAboveCapacity)
        || matches!(decision.reason, Reason::Penalty | Reason::WaitTooLong);
    let Some(counters) = counters.of(thread).filter(|_| is_decided && (units > 0 || !decision.allowed)) else {
        return;
    };
    let add = |index: usize, count: u64| counters[index].fetch_add(count, Ordering::Relaxed);
    if decision.allowed {
        let outcome = if decision.soft_over { LimitOutcome::SoftOver } else { LimitOutcome::Allowed };
        add(outcome as usize, 1);
        if is_near(decision) {
            add(NEAR, 1);
        }
        if is_taken {
            add(FIRST_UNITS, units);
        }
    } else {
        let outcome = if hit.binding == Binding::Shadow { LimitOutcome::ShadowRefused } else { LimitOutcome::Refused };
        add(outcome as usize, 1);
        add(FIRST_UNITS + outcome as usize, units);
    }
}

/// Returns whether more than 80 % of the limit is used, but not more than the limit.
#[inline]
const fn is_near(decision: &Decision) -> bool {
    decision.remaining.saturating_mul(5) < decision.limit && !decision.soft_over
}

/// Returns the position of `limit` in its rule. `None` if it is a limit of another rule.
///
/// The limits of a rule are a slice, so the address of a limit says its position.
#[inline]
pub(super) fn position(rule: &Rule, limit: &Limit) -> Option<usize> {
    let bytes = std::ptr::from_ref(limit).addr().checked_sub(rule.limits.as_ptr().addr())?;
    Some(bytes / size_of::<Limit>()).filter(|position| *position < rule.limits.len())
}

/// Returns the text of the labels of each limit of `rule`, as on the page of metrics.
///
/// The label `limit` is the name of the limit. A limit without a name is called by its size, such as `5/minute`. If an
/// earlier limit of the rule is called the same, the position in the rule is added, such as `5/minute #2`.
pub(super) fn labels_of(rule: &Rule) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (index, limit) in rule.limits.iter().enumerate() {
        let mut name = match &limit.name {
            Some(name) => name[..name.floor_char_boundary(NAME_BYTES)].to_owned(),
            None => described(limit),
        };
        while names.contains(&name) {
            name = format!("{name} #{}", index + 1);
        }
        names.push(name);
    }
    let label = |name: &String| labels(&[("domain", &rule.domain), ("rule", &rule.path), ("limit", name)]);
    names.iter().map(label).collect()
}

/// Returns the size of a limit as text: `5/minute`, `150/2m`, or `3 permits` for a concurrency limit.
fn described(limit: &Limit) -> String {
    let (size, window_ns) = (limit.requests_per_unit, limit.quota.window_ns());
    match limit.unit {
        Some(unit) => format!("{size}/{}", unit.as_str()),
        None if window_ns == 0 => format!("{size} permits"),
        None => format!("{size}/{}", format_duration(Duration::from_nanos(window_ns))),
    }
}
