//! The meaning of messages of RLS v3 (Envoy's rate limit service). gRPC and JSON share this code, so that the same
//! message means the same in both.

use spillgate::rules::{Action, Limit, Unit};
use spillgate::{Algorithm, Anchor, Decision, OnStoreFailure, Time, Wait};

use super::{ServiceError, Status};

/// The binding limit of a descriptor, as RLS reports it.
#[derive(Clone, Copy, Debug)]
pub struct ReportedLimit<'p> {
    /// Whether clients get `name`, `requests_per_unit` and `unit`. If not, they get only the wait, and `remaining`,
    /// which is 0 in this case.
    pub exposed: bool,
    /// The name of the limit, or an empty text if it has no name.
    pub name: &'p str,
    /// The units that the limit allows in a window, at most `u32::MAX`.
    pub requests_per_unit: u32,
    /// The window as a unit of RLS, or `None` if the window is not one second, minute, hour, day, week, month or year.
    pub unit: Option<Unit>,
    /// The units that are left, at most `u32::MAX`. After a refusal, the number is 0 even if some units are left, but
    /// too few for the request. Otherwise a client could read the number and try again at once. For a refusal by a rule
    /// in shadow mode, the number is not changed.
    pub remaining: u32,
    /// After an allowed request: whole seconds until the limit is unused again. After a refusal: whole seconds until
    /// the request fits. `None` if this time is unknown.
    ///
    /// Fractions are rounded up here, because Envoy would cut them off. If the request will never fit, this is the time
    /// until the limit is unused again: without a duration, Envoy would write 0.
    pub until_reset_secs: Option<u64>,
}

impl<'p> ReportedLimit<'p> {
    /// Returns the binding limit of a descriptor, if it has one. `now` is the time of the decision.
    #[inline]
    #[must_use]
    pub fn of(status: &Status<'p>, now: Time) -> Option<ReportedLimit<'p>> {
        let (limit, decision) = (status.limit?, &status.decision);
        let until = match decision.retry_after {
            _ if decision.allowed => Wait::After(decision.reset_after_ns),
            Wait::Never => Wait::After(until_unused_ns(limit, decision, now)),
            wait => wait,
        };
        Some(ReportedLimit {
            exposed: limit.exposed,
            name: limit.name.as_deref().unwrap_or_default(),
            requests_per_unit: saturated(limit.requests_per_unit),
            unit: limit.unit,
            remaining: if status.enforced_over { 0 } else { saturated(decision.remaining) },
            until_reset_secs: until.secs_ceil(),
        })
    }
}

/// Returns the time until the limit is unused. The result is never 0.
///
/// If the limit is unused already, the result is a whole window. There are two exceptions. For a fixed window that is
/// aligned to the clock, the result is the time to the end of the current window. For a concurrency limit, it is the
/// duration of a lease.
#[cold]
#[inline]
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

/// Returns the action of a descriptor. `own` is the descriptor's `hits_addend`, and `of_request` is that of the
/// request. If `own` is `None`, `of_request` is the number of units, and 0 means 1. If `negative` is true, the units
/// are refunded.
#[inline]
#[must_use]
pub fn action(own: Option<u64>, of_request: u64, negative: bool) -> Action {
    let hits = own.unwrap_or(of_request.max(1));
    if negative { Action::Refund(hits) } else { Action::Take(hits) }
}

/// Returns the limit that a descriptor brings. `unit` is a number of `envoy.type.v3.RateLimitUnit`. The limit follows
/// `policy` while the shared store fails.
///
/// # Errors
/// The unit is missing or unknown.
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
            let text =
                format!("a descriptor's limit has the unknown unit {other}: use a number from 1 (SECOND) to 6 (YEAR)");
            return Err(ServiceError::BadRequest(text));
        }
    };
    Ok(Limit::overriding(unit, requests_per_unit).on_store_failure(policy))
}

#[inline]
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
        assert_eq!(action(Some(0), 3, false), Action::Take(0), "a descriptor's own 0 is a peek");
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
