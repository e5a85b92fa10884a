//! The answer to all hits of one request.
//!
//! Stores that decide hits one by one form the verdict here, so that all stores combine decisions by the same rule.

use crate::{Binding, Decision, Hit, Time, Wait};

/// Which part of the system made a verdict; [`Verdict::with_source`] has an example.
///
/// Exhaustive on purpose: verdicts are counted by source, and the compiler shows each place that counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Source {
    /// The store decided.
    #[default]
    Store,
    /// The store was not asked: a state that it returned earlier still refuses.
    DenyCache,
    /// The store failed, and a local store decided instead.
    Local,
    /// The store failed, and the policy of the quota answered.
    Policy,
}

impl Source {
    /// The name of the source in answers and metrics.
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

/// The answer to all hits of one request.
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
    /// The index of the hit that determines the answer; `None` without hits.
    ///
    /// In a refused request it is the refusing hit with the longest wait. In an allowed one it is the hit with the
    /// smallest share of its limit left.
    pub binding: Option<usize>,
    /// How long to wait before the next attempt; [`Wait::NONE`] if the request is allowed.
    pub retry_after: Wait,
    /// Nanoseconds until the turn of an allowed request comes: the longest delay of its hits.
    pub delay_ns: u64,
    /// The time of the decision, by the clock that this store decides with.
    pub now: Time,
    /// Which part of the system decided.
    pub source: Source,
}

impl Verdict {
    /// The verdict on a request that no limit applies to: it is allowed.
    ///
    /// It equals the verdict [of](Verdict::of) no hits, and costs less.
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
    /// [`decide`](crate::decide) calls this at its end. A caller needs it only for hits that were decided one by one.
    #[must_use]
    #[inline]
    pub fn of(hits: &[Hit<'_>], decisions: &[Decision], now: Time) -> Verdict {
        let allowed = is_allowed(hits, decisions);
        let binding = if allowed { least_share(hits, decisions) } else { longest_wait(hits, decisions) };
        let enforced = hits.iter().zip(decisions).filter(|(hit, _)| hit.binding != Binding::Shadow);
        Verdict {
            allowed,
            binding,
            retry_after: binding.filter(|_| !allowed).map_or(Wait::NONE, |i| decisions[i].retry_after),
            delay_ns: enforced.filter(|_| allowed).map(|(_, decision)| decision.delay_ns).max().unwrap_or(0),
            now,
            source: Source::Store,
        }
    }

    /// The same verdict from another source.
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

/// A request is refused if an enforcing hit is refused, or if it has quota hits and all of them are refused.
#[inline]
pub(crate) fn is_allowed(hits: &[Hit<'_>], decisions: &[Decision]) -> bool {
    let refused = |binding| hits.iter().zip(decisions).any(move |(h, d)| h.binding == binding && !d.allowed);
    !refused(Binding::Enforce) && (quota_passes(hits, decisions) || !refused(Binding::Quota))
}

#[inline]
fn quota_passes(hits: &[Hit<'_>], decisions: &[Decision]) -> bool {
    hits.iter().zip(decisions).any(|(hit, decision)| hit.binding == Binding::Quota && decision.allowed)
}

/// The binding hit of an allowed request: the first one with the smallest share left.
#[inline]
fn least_share(hits: &[Hit<'_>], decisions: &[Decision]) -> Option<usize> {
    let counted = (0..hits.len()).filter(|&i| hits[i].binding != Binding::Shadow);
    counted.min_by(|&a, &b| decisions[a].cmp_share_left(&decisions[b]))
}

/// The binding hit of a refused request: the one with the longest wait.
///
/// Candidates are the enforcing hits that are refused. If all quota hits are refused, the one of them with the shortest
/// wait is a candidate too. Among equal waits the first hit binds.
fn longest_wait(hits: &[Hit<'_>], decisions: &[Decision]) -> Option<usize> {
    let wait = |i: usize| decisions[i].retry_after;
    let refusing = |binding| (0..hits.len()).filter(move |&i| hits[i].binding == binding && !decisions[i].allowed);
    let quota = if quota_passes(hits, decisions) { None } else { refusing(Binding::Quota).min_by_key(|&i| wait(i)) };
    let enforcing = refusing(Binding::Enforce);
    enforcing.chain(quota).min_by(|&a, &b| wait(b).cmp(&wait(a)).then(a.cmp(&b)))
}
