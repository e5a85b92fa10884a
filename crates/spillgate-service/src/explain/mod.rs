//! Says why a request would be allowed or refused now, and takes nothing.
//!
//! The admin listener (`POST /explain`, `POST /peek`) and `spillgate check` share this code, so that they give the same
//! answers.

mod caller;
mod dry_run;
mod json;
mod unknown;

use std::collections::BTreeMap;
use std::time::Duration;

use spillgate::regions::region_tag;
use spillgate::rules::{Limit, Plan, Request};
use spillgate::sketch::Sketch;
use spillgate::{Binding, Clock, Decision, Hit, Op, Source, Span, StoreError, StoreErrorKind, Verdict};

use super::blocked::Blocked;
use super::{Grants, Loaded, Service, ServiceError};

pub use caller::{CallerCounter, CallerCounters, CallerValue, UnreadRule};
pub use json::Explanation;
pub use unknown::{KnownRules, UnknownName, unknown_keys, unknown_names};

/// What was decided on one request.
#[derive(Debug)]
pub struct Explained<'p> {
    /// The time of the request since the start of a virtual clock. It is 0 with a real clock.
    pub at: Duration,
    pub cost: u64,
    pub verdict: Verdict,
    /// Whether a block of an operator refuses the request. No limit is asked then.
    pub blocked: bool,
    pub limits: Vec<ExplainedLimit<'p>>,
}

/// The decision of one limit, and the state of the limit before and after the request.
#[derive(Debug)]
pub struct ExplainedLimit<'p> {
    /// The number of the limit's descriptor, from 0.
    pub descriptor: usize,
    /// The number of the limit in the descriptor's rule, from 0. `None` if no rule matches the descriptor: `limit` is
    /// then the limit of 0 by which the server refuses such descriptors.
    pub number: Option<usize>,
    pub limit: &'p Limit,
    pub binding: Binding,
    pub before: Decision,
    pub decision: Decision,
    pub after: After,
    /// `None` if no regions share the limit, or if the store did not say it.
    pub told: Option<Told>,
}

/// What servers of other regions have told of a limit in the span that runs now.
#[derive(Clone, Debug)]
pub struct Told {
    pub span: Span,
    /// The units of each region, by the [first bits](region_tag) of the ids of its servers.
    units: BTreeMap<u16, u64>,
}

impl Told {
    /// Returns the units of each of these regions that told some, and those of regions with other names.
    #[must_use]
    pub fn by_region<'r>(&self, regions: &'r [String]) -> (Vec<(&'r str, u64)>, u64) {
        let of = |name: &'r String| Some((name.as_str(), *self.units.get(&region_tag(name))?));
        let known: Vec<_> = regions.iter().filter_map(of).collect();
        let sum = |units: &mut dyn Iterator<Item = u64>| units.fold(0, u64::saturating_add);
        let all = sum(&mut self.units.values().copied());
        let others = all.saturating_sub(sum(&mut known.iter().map(|(_, units)| *units)));
        (known, others)
    }
}

/// The state of a limit after a request.
#[derive(Clone, Copy, Debug)]
pub struct After {
    pub remaining: u64,
    /// `None` if the request would take units, because the store was only read and does not say how long these units
    /// would stay in use.
    pub reset_after_ns: Option<u64>,
}

impl From<&Decision> for After {
    fn from(seen: &Decision) -> After {
        After { remaining: seen.remaining, reset_after_ns: Some(seen.reset_after_ns) }
    }
}

/// The descriptors of a request, each with its entries: pairs of a key and a value.
pub type Pairs<'c> = Vec<Vec<(&'c str, &'c str)>>;

impl<'p> ExplainedLimit<'p> {
    /// Returns the limits of a plan. The lists `before`, `decisions`, `after` and `told` have one item for each hit of the
    /// plan.
    pub fn of(
        plan: &Plan<'p>,
        before: &[Decision],
        decisions: &[Decision],
        after: &[After],
        told: &[Option<Told>],
    ) -> Vec<ExplainedLimit<'p>> {
        let mut limits = Vec::new();
        for (descriptor, planned) in plan.descriptors.iter().enumerate() {
            for (hit, limit) in &planned.hits {
                // The number is the index among all limits of the rule. Not every limit has a hit, because another rule
                // can replace a limit.
                let number = planned.rule.and_then(|rule| rule.limits.iter().position(|own| std::ptr::eq(own, *limit)));
                let (before, decision, after) = (before[*hit], decisions[*hit], after[*hit]);
                let binding = plan.hits[*hit].binding;
                let told = told[*hit].clone();
                limits.push(ExplainedLimit { descriptor, number, limit, binding, before, decision, after, told });
            }
        }
        limits
    }
}

/// Returns whether a limit of another rule replaces this limit (`replaces`). The store is not asked about such a limit.
/// False if a block refuses the request: no limit is asked then, replaced or not.
pub fn is_left_out(explained: &[Explained<'_>], descriptor: usize, limit: &Limit) -> bool {
    let is_it = |own: &ExplainedLimit<'_>| own.descriptor == descriptor && std::ptr::eq(own.limit, limit);
    !explained.iter().any(|explained| explained.blocked || explained.limits.iter().any(is_it))
}

/// Fails if the decision came from the fallback, because an explanation needs the decision of the store itself. A
/// decision of the deny cache is accepted, because the cache only repeats refusals of the store.
pub fn decided(source: Source) -> Result<(), ServiceError> {
    match source {
        Source::Store | Source::DenyCache => Ok(()),
        _ => Err(StoreError::new(StoreErrorKind::Timeout, "it did not answer in time").into()),
    }
}

impl<C: Clock> Service<C> {
    /// Returns the decisions that the request would get now. `cost` is the cost of each of its descriptors. Nothing is
    /// taken or counted. If an operator has blocked the request, the result has no limits, because a block is decided
    /// without them.
    ///
    /// # Errors
    /// The errors of [`plan`](Service::plan), or the store failed. In a domain with `compat: envoy`, a request with
    /// several descriptors is an error too: there, each descriptor is charged before the next one is decided, and this
    /// cannot be shown without charging.
    pub async fn explain<'p, 'q: 'p>(
        &self,
        loaded: &'p Loaded,
        request: &Request<'q>,
        cost: u64,
    ) -> Result<Explained<'p>, ServiceError> {
        self.validate(request, Grants::default())?;
        let now = self.limiter.now();
        if let Some(Blocked { plan, decision, .. }) = self.blocked(now, loaded, request) {
            let verdict = Verdict::of(&plan.hits, &[decision], now);
            return Ok(Explained { at: Duration::ZERO, cost, verdict, blocked: true, limits: Vec::new() });
        }
        let plan = self.plan(loaded, request, Grants::default())?;
        if plan.separately && plan.descriptors.len() > 1 {
            return Err(ServiceError::BadRequest(format!(
                "the domain `{}` has compat: envoy: each descriptor is charged before the next one is asked. \
                 This cannot be shown without charging, so ask one descriptor at a time",
                request.domain
            )));
        }
        let (verdict, limits) = self.explain_plan(&plan, true).await?;
        Ok(Explained { at: Duration::ZERO, cost, verdict, blocked: false, limits })
    }

    /// Returns the decisions that the hits of this plan would get now. Blocks are not looked at.
    ///
    /// If `tells`, what other regions have told is read too, which costs a call of the store for each limit that regions share.
    async fn explain_plan<'p>(
        &self,
        plan: &Plan<'p>,
        tells: bool,
    ) -> Result<(Verdict, Vec<ExplainedLimit<'p>>), ServiceError> {
        let before = self.peek_at(plan).await?;
        let mut decisions = dry_run::decisions(self, plan, &before).await?;
        dry_run::ask_shares(self, &plan.hits, &mut decisions).await?;
        let verdict = Verdict::of(&plan.hits, &decisions, self.limiter.now());
        let after = dry_run::after(self, plan, &decisions, &before, verdict.allowed);
        let told = if tells { self.told_at(plan).await } else { vec![None; plan.hits.len()] };
        let limits = ExplainedLimit::of(plan, &before, &decisions, &after, &told);
        Ok((verdict, limits))
    }

    /// Reads what other regions have told of the limits of a plan. Returns one item for each hit.
    pub async fn told_at(&self, plan: &Plan<'_>) -> Vec<Option<Told>> {
        let mut all = Vec::with_capacity(plan.hits.len());
        for hit in &plan.hits {
            let shared = self.limiter.store().shared().filter(|_| hit.quota.is_shared());
            all.push(match shared {
                // A window that has just begun by the clock of the store is read a moment late. For an explanation, that is
                // good enough.
                Some(store) => {
                    let span = hit.quota.span(self.limiter.now());
                    let read = store.charged(hit, span, store.timeout()).await.ok();
                    read.map(|told| {
                        let mut units: BTreeMap<u16, u64> = BTreeMap::new();
                        for (id, total) in told {
                            // Whoever can write into the store can write any number.
                            let of_region = units.entry((id >> 48) as u16).or_default();
                            *of_region = of_region.saturating_add(total);
                        }
                        Told { span, units }
                    })
                }
                None => None,
            });
        }
        all
    }

    /// Peeks at the limits of a plan. Returns one decision for each hit.
    pub async fn peek_at(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, ServiceError> {
        let mut seen = Vec::with_capacity(plan.hits.len());
        for (hit, sketch) in plan.hits.iter().zip(sketches(plan)) {
            let peek = hit.with_op(Op::Peek);
            seen.push(match sketch {
                Some(sketch) => sketch.hit_now(self.limiter.now(), &peek),
                None => self.decide_alone(&peek).await?,
            });
        }
        Ok(seen)
    }

    /// Asks the store for the decision on `hit` in a request of its own, so that no other hit changes the decision.
    /// Fails if the fallback answered.
    pub async fn decide_alone(&self, hit: &Hit<'_>) -> Result<Decision, ServiceError> {
        let mut decision = [Decision::default()];
        let verdict = self.limiter.decide(std::slice::from_ref(hit), &mut decision).await?;
        decided(verdict.source)?;
        Ok(decision[0])
    }
}

/// Returns the sketch that decides each hit of the plan, or `None` for a hit that the store decides.
fn sketches<'p>(plan: &Plan<'p>) -> Vec<Option<&'p Sketch>> {
    if plan.sketched { plan.sketches().into_vec() } else { vec![None; plan.hits.len()] }
}
