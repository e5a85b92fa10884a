//! `?wait=`: how long a request may wait for its turn in the queue of a leaky bucket.
//!
//! Without this parameter, a request that has to wait for its turn is refused, and the client has to ask again later.
//!
//! If the client hangs up while it waits, its units are given back. A queue takes back only its last turn, because clients
//! behind it already wait for exact times. So a turn that is not the last one is remembered: it is given back if the
//! turns behind it are given back too, before its time comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use spillgate::units::format_duration;
use spillgate::{Algorithm, Binding, Clock, Decision, Hit, MAX_HITS, Op, Quota, Receipt};
use spillgate_service::text::duration;
use spillgate_service::{Answer, Protocol};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::problem::Problem;
use super::{HttpContext, HttpState};

/// The most turns of clients that hung up which are remembered, about 200 bytes each. The turns of further clients pass
/// unused, unless they are the last ones of their queues.
const MAX_LEFT: usize = 4_096;
/// What these turns take together at most: an entry has 192 bytes, and half of the places of a `BTreeMap` can be empty.
pub const LEFT_TURNS_BYTES: usize = MAX_LEFT * 400;

/// Units that a request has taken.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    key: u128,
    quota: Quota,
    cost: u64,
    receipt: Receipt,
}

impl Taken {
    /// Returns the units of a hit, or `None` if it has taken none that can be given back.
    pub(super) fn of(hit: &Hit<'_>, decision: &Decision) -> Option<Taken> {
        let (Op::Take { cost, .. }, Some(receipt)) = (hit.op, decision.receipt) else { return None };
        Some(Taken { key: hit.key, quota: hit.quota.clone(), cost, receipt })
    }

    /// Adds the units of an answer. Descriptors with the same counter share a hit, which is added once.
    pub(super) fn add(answer: &Answer<'_>, taken: &mut Vec<Taken>) {
        let from = taken.len();
        for decided in (0..answer.statuses.len()).flat_map(|index| answer.limits(index)) {
            let Some(units) = Taken::of(decided.hit, decided.decision) else { continue };
            if !taken[from..]
                .iter()
                .any(|other| other.key == units.key && other.quota.identity() == units.quota.identity())
            {
                taken.push(units);
            }
        }
    }

    fn hit(&self) -> Hit<'_> {
        let op = Op::Refund { cost: self.cost, receipt: Some(self.receipt) };
        Hit::new(self.key, &self.quota, op, Binding::Shadow)
    }

    const fn is_turn(&self) -> bool {
        matches!(self.quota.algorithm(), Algorithm::LeakyBucket)
    }

    /// Returns when the turn begins, in nanoseconds since the epoch.
    const fn begins_at(&self) -> u64 {
        self.receipt.mark.saturating_sub(self.cost.saturating_mul(self.quota.interval_ns()))
    }
}

/// The turns of clients that hung up while other clients waited behind them, by key and by the end of the turn.
pub(super) type Left = Mutex<BTreeMap<(u128, u64), Taken>>;

/// Sleeps until the turn of an allowed request comes. If the client hangs up during the sleep, what the request has taken is
/// given back.
pub(super) async fn wait_for_turn<C: Clock + 'static>(state: &HttpState<C>, delay_ns: u64, taken: Vec<Taken>) {
    if delay_ns > 0 {
        let mut waiting = Waiting { context: Arc::clone(&state.0), taken };
        tokio::time::sleep(Duration::from_nanos(delay_ns)).await;
        waiting.taken.clear();
    }
}

/// A request that waits. If it is dropped before its turn, its client has hung up.
struct Waiting<C: Clock + 'static> {
    context: Arc<HttpContext<C>>,
    taken: Vec<Taken>,
}

impl<C: Clock + 'static> Drop for Waiting<C> {
    fn drop(&mut self) {
        let (context, taken) = (Arc::clone(&self.context), std::mem::take(&mut self.taken));
        if let (false, Ok(runtime)) = (taken.is_empty(), Handle::try_current()) {
            runtime.spawn(async move { context.give_back(taken).await });
        }
    }
}

impl<C: Clock> HttpContext<C> {
    /// Gives units back. If the store fails, they stay charged.
    async fn give_back(&self, taken: Vec<Taken>) {
        let (turns, others): (Vec<Taken>, Vec<Taken>) = taken.into_iter().partition(Taken::is_turn);
        for some in others.chunks(MAX_HITS) {
            let _ = self.refund(some).await;
        }
        if turns.is_empty() {
            return;
        }
        // One at a time: of two turns that are given back together, the later one has to be first.
        let mut left = self.left.lock().await;
        let now_ns = self.service.limiter().now().as_nanos();
        if left.len() + turns.len() > MAX_LEFT {
            left.retain(|_, turn| turn.begins_at() > now_ns);
        }
        for turn in turns {
            let key = turn.key;
            left.insert((key, turn.receipt.mark), turn);
            while let Some((&at, last)) = left.range((key, 0)..=(key, u64::MAX)).next_back() {
                let is_over = last.begins_at() <= now_ns;
                if !is_over && !self.take_back(last).await {
                    break;
                }
                left.remove(&at);
            }
            if left.len() > MAX_LEFT {
                left.pop_last();
            }
        }
    }

    /// Gives a turn back. Returns whether it was the last one of its queue.
    async fn take_back(&self, turn: &Taken) -> bool {
        let Some((now_ns, debt_ns)) = self.refund(std::slice::from_ref(turn)).await else { return false };
        now_ns.saturating_add(debt_ns) <= turn.begins_at()
    }

    /// Returns the time of the decision, and the time that the first counter needs until it is empty.
    async fn refund(&self, taken: &[Taken]) -> Option<(u64, u64)> {
        let hits: SmallVec<[Hit<'_>; 4]> = taken.iter().map(Taken::hit).collect();
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len()];
        let verdict = self.service.hit(Protocol::Http, None, &hits, &mut decisions).await.ok()?;
        Some((verdict.now.as_nanos(), decisions.first()?.reset_after_ns))
    }
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
