//! The verdict: the answer to all hits of one request.
//!
//! Some stores decide the hits of one request in several parts, for example in several hash slots of a Redis Cluster.
//! They combine the decisions with this code too, so all stores follow the same rule.

use crate::{Binding, Decision, Hit, Time, Wait};

/// Which part of the system made a verdict; [`Verdict::with_source`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Source {
    /// The store decided.
    #[default]
    Store,
    /// The deny cache decided, and the store was not asked. The cache keeps the states with which the store refused
    /// earlier requests, and one of these states still refuses this request.
    DenyCache,
    /// The store failed, and a local store decided instead.
    Local,
    /// The store failed, and the [policy](crate::OnStoreFailure) of the quota gave the answer.
    Policy,
}

impl Source {
    /// Returns the name of the source in answers and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Store => "store",
            Source::DenyCache => "deny_cache",
            Source::Local => "local",
            Source::Policy => "policy",
        }
    }
}

/// Whether a request may pass, and which of its hits determines that.
///
/// ```
/// use spillgate_core::{Time, Verdict};
///
/// let verdict = Verdict::unlimited(Time::EPOCH);
/// assert!(verdict.allowed && verdict.binding.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether the request may pass.
    pub allowed: bool,
    /// The index of the hit that determines the answer. `None` if the request has no hits, or only hits with
    /// [`Binding::Shadow`].
    ///
    /// In a refused request, this is the refusing hit with the longest wait. Hits with [`Binding::Quota`] refuse the
    /// request only if all of them are refused. Then only the one with the shortest wait is compared with the other
    /// refusing hits. In an allowed request, this is the hit under which the fewest further requests of its cost fit.
    pub binding: Option<usize>,
    /// How long to wait before the next attempt; [`Wait::NONE`] if the request is allowed.
    pub retry_after: Wait,
    /// How many nanoseconds an allowed request has to wait for its turn in a queue. This is the longest delay of its
    /// hits, without those with [`Binding::Shadow`].
    pub delay_ns: u64,
    /// The time of the decision. If the store has a clock of its own, this is the time of that clock.
    pub now: Time,
    /// What decided. [`of`](Verdict::of) always writes [`Source::Store`].
    pub source: Source,
}

impl Verdict {
    /// Returns the verdict on a request to which no limit applies: the request is allowed.
    ///
    /// This verdict equals the verdict [of](Verdict::of) an empty list of hits, but it is faster to make.
    ///
    /// ```
    /// use spillgate_core::{Time, Verdict};
    /// assert_eq!(Verdict::unlimited(Time::EPOCH), Verdict::of(&[], &[], Time::EPOCH));
    /// ```
    #[must_use]
    #[inline]
    pub const fn unlimited(now: Time) -> Verdict {
        Verdict { allowed: true, binding: None, retry_after: Wait::NONE, delay_ns: 0, now, source: Source::Store }
    }

    /// Combines `decisions` into a verdict. `decisions[i]` is the answer to `hits[i]`.
    ///
    /// [`decide`](crate::decide) calls this function at its end. Call it only for hits that were decided in several
    /// parts.
    #[must_use]
    #[inline]
    pub fn of(hits: &[Hit<'_>], decisions: &[Decision], now: Time) -> Verdict {
        match (hits, decisions) {
            ([hit], [decision]) => Verdict::of_one(hit, decision, now),
            _ => Verdict::of_several(hits, decisions, now),
        }
    }

    /// Returns the verdict on one hit. The result equals that of [`of_several`](Verdict::of_several), but this function
    /// is much faster.
    #[inline]
    fn of_one(hit: &Hit<'_>, decision: &Decision, now: Time) -> Verdict {
        let shadow = hit.binding == Binding::Shadow;
        let allowed = shadow || decision.allowed;
        Verdict {
            allowed,
            binding: if shadow { None } else { Some(0) },
            retry_after: if allowed { Wait::NONE } else { decision.retry_after },
            delay_ns: if allowed && !shadow { decision.delay_ns } else { 0 },
            now,
            source: Source::Store,
        }
    }

    /// Returns the verdict on any number of hits. The function is not inlined, to keep the path of one hit short.
    #[inline(never)]
    fn of_several(hits: &[Hit<'_>], decisions: &[Decision], now: Time) -> Verdict {
        let allowed = is_allowed(hits, decisions);
        let binding = if allowed { fewest_left(hits, decisions) } else { longest_wait(hits, decisions) };
        let enforced = hits.iter().zip(decisions).filter(|(hit, _)| hit.binding != Binding::Shadow);
        Verdict {
            allowed,
            binding,
            retry_after: binding.filter(|_| !allowed).map_or(Wait::NONE, |i| decisions[i].retry_after),
            delay_ns: if allowed { enforced.fold(0, |most, (_, decision)| decision.delay_ns.max(most)) } else { 0 },
            now,
            source: Source::Store,
        }
    }

    /// Returns the same verdict with another source.
    ///
    /// ```
    /// use spillgate_core::{Source, Time, Verdict};
    /// let verdict = Verdict::unlimited(Time::EPOCH).with_source(Source::Policy);
    /// assert_eq!(verdict.source.as_str(), "policy");
    /// ```
    #[must_use]
    #[inline]
    pub const fn with_source(self, source: Source) -> Verdict {
        Verdict { source, ..self }
    }
}

/// A request is refused if a hit with [`Binding::Enforce`] is refused, or if it has hits with [`Binding::Quota`] and
/// all of these hits are refused.
#[inline]
pub(crate) fn is_allowed(hits: &[Hit<'_>], decisions: &[Decision]) -> bool {
    let (mut quota_refused, mut quota_allowed) = (false, false);
    for (hit, decision) in hits.iter().zip(decisions) {
        match (hit.binding, decision.allowed) {
            (Binding::Enforce, false) => return false,
            (Binding::Quota, false) => quota_refused = true,
            (Binding::Quota, true) => quota_allowed = true,
            (Binding::Enforce, true) | (Binding::Shadow, _) => {}
        }
    }
    quota_allowed || !quota_refused
}

#[inline]
fn quota_passes(hits: &[Hit<'_>], decisions: &[Decision]) -> bool {
    hits.iter().zip(decisions).any(|(hit, decision)| hit.binding == Binding::Quota && decision.allowed)
}

/// Returns the hit that determines the answer to an allowed request: the first one under which the fewest further requests
/// of its cost fit.
#[inline]
fn fewest_left(hits: &[Hit<'_>], decisions: &[Decision]) -> Option<usize> {
    let counted = (0..hits.len()).filter(|&i| hits[i].binding != Binding::Shadow);
    counted.min_by(|&a, &b| decisions[a].cmp_left(hits[a].op.cost(), &decisions[b], hits[b].op.cost()))
}

/// Returns the hit that determines the answer to a refused request: the hit with the longest wait. If several hits have
/// the longest wait, the first of them is returned.
///
/// All refused hits with [`Binding::Enforce`] are candidates. If all hits with [`Binding::Quota`] are refused, the hit
/// with the shortest wait among them is a candidate too.
fn longest_wait(hits: &[Hit<'_>], decisions: &[Decision]) -> Option<usize> {
    let wait = |i: usize| decisions[i].retry_after;
    let refusing = |binding| (0..hits.len()).filter(move |&i| hits[i].binding == binding && !decisions[i].allowed);
    let quota = if quota_passes(hits, decisions) { None } else { refusing(Binding::Quota).min_by_key(|&i| wait(i)) };
    let enforcing = refusing(Binding::Enforce);
    enforcing.chain(quota).min_by(|&a, &b| wait(b).cmp(&wait(a)).then(a.cmp(&b)))
}
