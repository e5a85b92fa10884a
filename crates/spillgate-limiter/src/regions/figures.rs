//! What an operator sees of another region: delays, results and failures.

use std::time::Duration;

use spillgate_core::{Charged, StoreError, StoreErrorKind};

use super::SECOND_NS;
use super::about::Differs;
use super::ledger::Counts;

/// How many delays are kept for the percentiles, and for how long they count.
const KEPT: usize = 1024;
const KEPT_NS: u64 = 60 * SECOND_NS;
/// The seconds over which the rate is an average.
const RATE_SECONDS: usize = 10;

/// Another region, as this server sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerStatus {
    /// The name of the region.
    pub name: String,
    /// Whether an operator has paused the region, so nothing is sent to it.
    pub is_paused: bool,
    /// For how long the region has been cut off: something was sent, and nothing was accepted. `None` if it is not.
    pub cut_off: Option<Duration>,
    /// Whether it has been compared with this region since the start or the last pause. Before that, nothing is sent.
    pub is_compared: bool,
    /// What it says otherwise than this region.
    pub differs: Differs,
    /// The delay of half of the last 1,024 entries of the last minute was at most this long: from the time when there was
    /// something to send until its acknowledgement. That units wait until they are a step is no part of it.
    pub delay_p50: Option<Duration>,
    /// The delay of 99 % of them.
    pub delay_p99: Option<Duration>,
    /// The entries that were answered in each of the last 10 full seconds, on average.
    pub entries_per_second: f64,
    /// The last call that failed, and how long ago that was.
    pub last_failure: Option<(StoreError, Duration)>,
    /// How many entries had each result, in the order of [`Charged::ALL`].
    pub results: [u64; Charged::ALL.len()],
    /// What became of the units.
    pub counts: Counts,
    /// The delays since the start, as a histogram: `delays[i]` counts those of at most
    /// [`DELAY_BOUNDS_MS[i]`](PeerStatus::DELAY_BOUNDS_MS) that are longer than the bound before it. The last number counts
    /// the longest.
    pub delays: [u64; PeerStatus::DELAY_BOUNDS_MS.len() + 1],
    /// All delays together, in nanoseconds.
    pub delay_sum_ns: u64,
}

impl PeerStatus {
    /// The upper bounds of [`delays`](PeerStatus::delays), in milliseconds.
    pub const DELAY_BOUNDS_MS: [u64; 14] =
        [10, 25, 50, 100, 150, 200, 300, 500, 750, 1_000, 2_000, 5_000, 10_000, 60_000];
}

/// The numbers behind a [`PeerStatus`].
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) results: [u64; Charged::ALL.len()],
    pub(super) delays: [u64; PeerStatus::DELAY_BOUNDS_MS.len() + 1],
    pub(super) delay_sum_ns: u64,
    /// When the last entries were acknowledged, and their delays, in nanoseconds. The next one comes at `next`.
    kept: Vec<(u64, u64)>,
    next: usize,
    /// The answered entries of this second and of those before it.
    answered: [u64; RATE_SECONDS + 1],
    second: u64,
    pub(super) failure: Option<(StoreError, u64)>,
}

impl Figures {
    pub(super) fn count(&mut self, results: &[Charged], delays: &[u64], now: u64) {
        self.go_on(now);
        self.answered[(self.second as usize) % (RATE_SECONDS + 1)] += results.len() as u64;
        for result in results {
            self.results[*result as usize] += 1;
        }
        for &delay in delays {
            let bounds = PeerStatus::DELAY_BOUNDS_MS.iter();
            let place = bounds.filter(|bound| **bound * 1_000_000 < delay).count();
            self.delays[place] += 1;
            self.delay_sum_ns = self.delay_sum_ns.saturating_add(delay);
            match self.kept.get_mut(self.next) {
                Some(kept) => *kept = (now, delay),
                None => self.kept.push((now, delay)),
            }
            self.next = (self.next + 1) % KEPT;
        }
    }

    /// Notes a call that failed. That a call was not even sent says less than why the one before it failed.
    pub(super) fn failed(&mut self, error: StoreError, now: u64) {
        if error.kind() == StoreErrorKind::CircuitOpen
            && let Some((_, at)) = &mut self.failure
        {
            *at = now;
            return;
        }
        self.failure = Some((error, now));
    }

    fn go_on(&mut self, now: u64) {
        let second = now / SECOND_NS;
        for new in (self.second + 1..=second).rev().take(RATE_SECONDS + 1) {
            self.answered[(new as usize) % (RATE_SECONDS + 1)] = 0;
        }
        self.second = self.second.max(second);
    }

    pub(super) fn entries_per_second(&mut self, now: u64) -> f64 {
        self.go_on(now);
        let this = self.answered[(self.second as usize) % (RATE_SECONDS + 1)];
        (self.answered.iter().sum::<u64>() - this) as f64 / RATE_SECONDS as f64
    }

    /// Returns the delays that 50 and 99 % of the last entries did not exceed.
    pub(super) fn percentiles(&self, now: u64) -> Option<(Duration, Duration)> {
        let recent = self.kept.iter().filter(|(at, _)| now.saturating_sub(*at) <= KEPT_NS);
        let mut sorted: Vec<u64> = recent.map(|(_, delay)| *delay).collect();
        sorted.sort_unstable();
        let at = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).checked_sub(1)?).copied();
        Some((Duration::from_nanos(at(50)?), Duration::from_nanos(at(99)?)))
    }
}
