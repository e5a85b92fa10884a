//! The answer to all hits of one request, from the answers to each.

use core::cmp::Ordering;

use crate::{Binding, Decision, Hit, Source, Time, Verdict, Wait};

impl Verdict {
    /// The verdict over `decisions`, each the answer to the hit at the same place.
    ///
    /// [`decide`](crate::decide) ends with it; a caller needs it only for hits that were decided
    /// one by one.
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
}

impl Decision {
    /// Orders by the share of the limit that is left, remaining/limit, without dividing.
    #[must_use]
    pub fn cmp_share_left(&self, other: &Decision) -> Ordering {
        let left = u128::from(self.remaining) * u128::from(other.limit.max(1));
        left.cmp(&(u128::from(other.remaining) * u128::from(self.limit.max(1))))
    }
}

/// Refused if an enforcing hit refuses, or if there are quota hits and all of them refuse.
#[inline]
pub(crate) fn is_allowed(hits: &[Hit<'_>], decisions: &[Decision]) -> bool {
    let refused = |binding| hits.iter().zip(decisions).any(move |(h, d)| h.binding == binding && !d.allowed);
    !refused(Binding::Enforce) && (quota_passes(hits, decisions) || !refused(Binding::Quota))
}

#[inline]
fn quota_passes(hits: &[Hit<'_>], decisions: &[Decision]) -> bool {
    hits.iter().zip(decisions).any(|(hit, decision)| hit.binding == Binding::Quota && decision.allowed)
}

/// What binds an allowed request: the first hit with the least share left.
#[inline]
fn least_share(hits: &[Hit<'_>], decisions: &[Decision]) -> Option<usize> {
    let counted = (0..hits.len()).filter(|&i| hits[i].binding != Binding::Shadow);
    counted.min_by(|&a, &b| decisions[a].cmp_share_left(&decisions[b]))
}

/// What binds a refused request: the longest wait among the enforcing hits that refuse and, if
/// all quota hits refuse, the shortest of those; ties by order.
fn longest_wait(hits: &[Hit<'_>], decisions: &[Decision]) -> Option<usize> {
    let wait = |i: usize| decisions[i].retry_after;
    let refusing = |binding| (0..hits.len()).filter(move |&i| hits[i].binding == binding && !decisions[i].allowed);
    let quota = if quota_passes(hits, decisions) { None } else { refusing(Binding::Quota).min_by_key(|&i| wait(i)) };
    let enforcing = refusing(Binding::Enforce);
    enforcing.chain(quota).min_by(|&a, &b| wait(b).cmp(&wait(a)).then(a.cmp(&b)))
}
