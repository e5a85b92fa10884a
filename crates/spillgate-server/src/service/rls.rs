//! What RLS v3 means, on whatever wire it comes.

use spillgate::rules::{Action, Limit, Unit};
use spillgate::{Algorithm, Anchor, Decision, OnStoreFailure, Time, Wait};

use super::{ServiceError, Status};

/// What is told of the limit that binds a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'p> {
    /// Else neither name nor numbers are shown, only the wait.
    pub exposed: bool,
    /// Empty if it has none.
    pub name: &'p str,
    /// Saturating.
    pub requests_per_unit: u32,
    /// `None` for a window that is no unit of RLS.
    pub unit: Option<Unit>,
    /// Saturating; 0 if the status says that the limit is exceeded. Units may be left, fewer than the request wanted,
    /// but a client reads them beside a 429 as leave to ask again.
    pub remaining: u32,
    /// Whole seconds until all is free again or, if refused, until it fits: Envoy cuts fractions
    /// off, so they are rounded up. Where no wait makes it fit, until all is free again: Envoy would write 0 for a
    /// duration that is missing. `None` where it is not known.
    pub until_reset_secs: Option<u64>,
}

impl<'p> Shown<'p> {
    /// Of a descriptor that something limits; `now` is the time of the decision.
    #[must_use]
    pub fn of(status: &Status<'p>, now: Time) -> Option<Shown<'p>> {
        let (limit, decision) = (status.limit?, &status.decision);
        let until = match decision.retry_after {
            _ if decision.allowed => Wait::After(decision.reset_after_ns),
            Wait::Never => Wait::After(until_unused_ns(limit, decision, now)),
            wait => wait,
        };
        Some(Shown {
            exposed: limit.exposed,
            name: limit.name.as_deref().unwrap_or_default(),
            requests_per_unit: saturated(limit.requests_per_unit),
            unit: limit.unit,
            remaining: if status.enforced_over { 0 } else { saturated(decision.remaining) },
            until_reset_secs: until.secs_ceil(),
        })
    }
}

/// How long until nothing of what was used counts any more, never 0: where nothing is used, the time to the end of the
/// window that began by the clock, else a whole window (of a concurrency limit, a lease).
#[cold]
fn until_unused_ns(limit: &Limit, decision: &Decision, now: Time) -> u64 {
    let (quota, window_ns) = (&limit.quota, limit.quota.window_ns());
    if decision.reset_after_ns > 0 {
        return decision.reset_after_ns;
    }
    match quota.algorithm() {
        Algorithm::FixedWindow(Anchor::Epoch) => window_ns - now.as_nanos() % window_ns,
        Algorithm::Concurrency => quota.lease_ns(),
        Algorithm::FixedWindow(Anchor::FirstHit)
        | Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::SlidingWindowLog
        | Algorithm::SlidingWindowCounter { .. } => window_ns,
    }
}

/// The descriptor's own number of hits goes before the request's, where 0 means one.
#[must_use]
pub fn action(own: Option<u64>, of_request: u64, negative: bool) -> Action {
    let hits = own.unwrap_or(of_request.max(1));
    if negative { Action::Refund(hits) } else { Action::Take(hits) }
}

/// The limit that a descriptor brings along; `unit` is its number in `envoy.type.v3.RateLimitUnit`. While a shared store
/// fails it is answered by `policy`.
///
/// # Errors
/// There is no such unit.
pub fn overriding(requests_per_unit: u32, unit: i32, policy: OnStoreFailure) -> Result<Limit, ServiceError> {
    let unit = match unit {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        0 => {
            let text = "a descriptor's limit has no unit: give it SECOND, MINUTE, HOUR, DAY, MONTH or YEAR";
            return Err(ServiceError::BadRequest(text.into()));
        }
        other => {
            return Err(ServiceError::BadRequest(format!("a descriptor's limit has the unknown unit {other}")));
        }
    };
    Ok(Limit::overriding(unit, requests_per_unit).on_store_failure(policy))
}

fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_follow_the_descriptor_then_the_request_then_one() {
        assert_eq!(action(None, 0, false), Action::Take(1));
        assert_eq!(action(None, 3, false), Action::Take(3));
        assert_eq!(action(Some(0), 3, false), Action::Take(0), "a descriptor's own 0 is a look");
        assert_eq!(action(Some(5), 3, true), Action::Refund(5));
    }

    #[test]
    fn units_have_the_numbers_of_the_wire() {
        let unit = |number| overriding(7, number, OnStoreFailure::Deny).ok().and_then(|limit| limit.unit);
        let units = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Month, Unit::Year];
        assert_eq!((1..=6).filter_map(unit).collect::<Vec<_>>(), units);
        assert_eq!([unit(0), unit(7), unit(-1)], [None; 3]);
    }
}
