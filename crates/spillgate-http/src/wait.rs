//! `?wait=`: how long a request may wait for its turn in the queue of a leaky bucket.
//!
//! Without this parameter, a request that has to wait for its turn is refused, and the client has to ask again later.
//! If the client hangs up while it waits, what its request has taken is [given back](super::give_back).

use std::time::Duration;

use spillgate::Clock;
use spillgate::units::format_duration;
use spillgate_service::text::duration;

use super::give_back::Pending;
use super::problem::Problem;

/// Sleeps until the turn of an allowed request comes. If the client hangs up during the sleep, what the request has taken is
/// given back.
pub(super) async fn wait_for_turn<C: Clock + 'static>(pending: Pending<'_, C>, delay_ns: u64) {
    if delay_ns > 0 {
        tokio::time::sleep(Duration::from_nanos(delay_ns)).await;
    }
    pending.keep();
}

/// Returns how long the client is ready to wait, in nanoseconds: 1,000,000,000 for `?wait=1s`, and 0 without the
/// parameter. A time above `max` is an error.
pub(super) fn max_wait_ns(query: Option<&str>, max: Duration) -> Result<u64, Problem> {
    let mut wait = None;
    for parameter in query.unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if name != "wait" {
            return Err(Problem::bad_request(
                format!("unknown query parameter `{name}`"),
                "the only parameter is `wait`, for example ?wait=1s",
            ));
        }
        let value = duration(value).map_err(|help| match help {
            help if help.starts_with("too long") => too_long(max),
            help => Problem::bad_request("`wait` is not a duration", help),
        })?;
        if wait.replace(value).is_some() {
            return Err(Problem::bad_request("duplicate query parameter `wait`", "write it once"));
        }
        if value > max {
            return Err(too_long(max));
        }
    }
    Ok(wait.map_or(0, |wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
}

fn too_long(max: Duration) -> Problem {
    let max = format_duration(max);
    let help = format!("try again after retry_after_ms instead, or wait at most {max}");
    Problem::bad_request(format!("`wait` is too long, at most {max}"), help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_one_bounded_duration() {
        let wait = |query| max_wait_ns(query, Duration::from_secs(60)).ok();
        assert_eq!(wait(None), Some(0));
        assert_eq!(wait(Some("")), Some(0));
        assert_eq!(wait(Some("wait=1s")), Some(1_000_000_000));
        assert_eq!(wait(Some("wait=60s")), Some(60_000_000_000));
        for bad in [
            "wait=61s",
            "wait=",
            "wait",
            "wait=1",
            "wait=-1s",
            "wait=1s&wait=1s",
            "wiat=1s",
            "wait=99999999999999999999s",
        ] {
            assert_eq!(wait(Some(bad)), None, "{bad}");
        }
    }
}
