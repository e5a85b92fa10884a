//! Counts the calls that all connections of a store send, and how long they take.
//!
//! To read the clock less often, calls that are written together get the same start time, and replies that come
//! together get the same end time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use spillgate_core::StoreCalls;
use tokio::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    sent: AtomicU64,
    requests: AtomicU64,
    /// One counter for each bound of [`StoreCalls`], and one for longer calls.
    durations: [AtomicU64; StoreCalls::BOUNDS_NS.len() + 1],
    duration_sum_ns: AtomicU64,
}

impl CallCounters {
    pub(crate) fn read(&self) -> StoreCalls {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut calls = StoreCalls::default();
        (calls.sent, calls.requests) = (read(&self.sent), read(&self.requests));
        calls.durations = self.durations.each_ref().map(read);
        calls.duration_sum_ns = read(&self.duration_sum_ns);
        calls
    }

    fn count_sent(&self, calls: usize, requests: usize) {
        self.sent.fetch_add(calls as u64, Ordering::Relaxed);
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
    }

    fn count_answered(&self, calls: usize, ns: u64) {
        let bucket = StoreCalls::BOUNDS_NS.partition_point(|bound_ns| *bound_ns < ns);
        self.durations[bucket].fetch_add(calls as u64, Ordering::Relaxed);
        self.duration_sum_ns.fetch_add(ns.saturating_mul(calls as u64), Ordering::Relaxed);
    }
}

/// The calls of one connection that have no reply yet, by the time when they were written.
#[derive(Default)]
pub(crate) struct Unanswered {
    /// The time of each write, with the number of its calls that have no reply yet.
    writes: VecDeque<(Instant, usize)>,
    /// The sum of the numbers in `writes`.
    calls: usize,
}

impl Unanswered {
    pub(crate) const fn calls(&self) -> usize {
        self.calls
    }

    /// Counts calls that are written now, with `requests` requests in all of them together.
    pub(crate) fn write(&mut self, counters: &CallCounters, calls: usize, requests: usize) {
        if calls > 0 {
            counters.count_sent(calls, requests);
            self.writes.push_back((Instant::now(), calls));
            self.calls += calls;
        }
    }

    /// Counts the replies to the first `replies` calls, which came at `now`.
    pub(crate) fn answer(&mut self, counters: &CallCounters, mut replies: usize, now: Instant) {
        while let Some((written, calls)) = self.writes.front_mut().filter(|_| replies > 0) {
            let answered = replies.min(*calls);
            let ns = u64::try_from(now.saturating_duration_since(*written).as_nanos()).unwrap_or(u64::MAX);
            counters.count_answered(answered, ns);
            (replies, *calls, self.calls) = (replies - answered, *calls - answered, self.calls - answered);
            if *calls == 0 {
                self.writes.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn replies_count_the_time_since_their_own_write() {
        let (counters, mut unanswered) = (CallCounters::default(), Unanswered::default());
        unanswered.write(&counters, 3, 40);
        unanswered.write(&counters, 1, 1);
        unanswered.write(&counters, 0, 0);
        let (first, second) = (unanswered.writes[0].0, unanswered.writes[1].0);
        unanswered.answer(&counters, 2, first + Duration::from_nanos(250));
        assert_eq!((unanswered.calls(), unanswered.writes.len()), (2, 2));
        unanswered.answer(&counters, 2, second + Duration::from_secs(2));
        assert_eq!((unanswered.calls(), unanswered.writes.len()), (0, 0));
        let read = counters.read();
        assert_eq!((read.sent, read.requests), (4, 41));
        assert_eq!((read.durations[0], read.durations.iter().sum::<u64>()), (2, 4));
        assert_eq!(read.durations.last(), Some(&2));
        let between = u64::try_from((second - first).as_nanos()).unwrap();
        assert_eq!(read.duration_sum_ns, 2 * 250 + 4_000_000_000 + between);
    }

    #[test]
    fn more_replies_than_calls_count_nothing_more() {
        let (counters, mut unanswered) = (CallCounters::default(), Unanswered::default());
        unanswered.write(&counters, 1, 1);
        unanswered.answer(&counters, 9, Instant::now());
        unanswered.answer(&counters, 9, Instant::now());
        assert_eq!(counters.read().durations.iter().sum::<u64>(), 1);
    }
}
