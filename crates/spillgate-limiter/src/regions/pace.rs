//! How much a server sends to one region. A slow region gets less, so that it is not pushed under.
//!
//! If acknowledgements take twice the fastest of the last minute, half as much is sent. Each second without that, a tenth
//! more. So nobody has to guess a number. Near by, an answer to many entries takes a multiple of an answer to one, and that
//! says nothing: so it has to take some milliseconds more, too. Times are nanoseconds of the process.

use spillgate_core::MAX_CHARGES;

use super::SECOND_NS;

/// Fewer answers in a second say more about this process than about the region.
const ENOUGH: u32 = 8;

/// Below this difference, an answer is not slow. A call with many entries, or a busy process, takes it without a queue at
/// the region.
const SLOWER_BY_NS: u64 = 10_000_000;

#[derive(Debug)]
pub(super) struct Pace {
    /// The entries that may be sent at a time.
    may: usize,
    bound: usize,
    /// The most entries that were sent at a time in this second.
    sent: usize,
    /// The fastest answer of each of the last 60 seconds, in nanoseconds.
    fastest: [u64; 60],
    /// The number of this second.
    second: u64,
    answers: u32,
    failures: u32,
    /// The calls that are under way, and those that were when this second began.
    under_way: u32,
    waited: u32,
}

impl Pace {
    /// Makes a pace of at most `bound` entries at a time. It begins there.
    pub(super) fn new(bound: usize, now: u64) -> Pace {
        let second = now / SECOND_NS;
        let fastest = [u64::MAX; 60];
        Pace { may: bound, bound, sent: 0, fastest, second, answers: 0, failures: 0, under_way: 0, waited: 0 }
    }

    /// Returns how many entries may be sent at a time.
    pub(super) fn may_send(&mut self, now: u64) -> usize {
        self.go_on(now);
        self.may
    }

    /// Notes that a call begins.
    pub(super) fn called(&mut self, now: u64) {
        self.go_on(now);
        self.under_way = self.under_way.saturating_add(1);
    }

    /// Notes how many entries were sent at a time.
    pub(super) fn sent(&mut self, entries: usize) {
        self.sent = self.sent.max(entries);
    }

    /// Notes that a call was answered after `took` nanoseconds, or that it failed.
    pub(super) fn answered(&mut self, took: Option<u64>, now: u64) {
        self.go_on(now);
        self.under_way = self.under_way.saturating_sub(1);
        match took {
            Some(took) => {
                let fastest = &mut self.fastest[(self.second % 60) as usize];
                (*fastest, self.answers) = ((*fastest).min(took), self.answers.saturating_add(1));
            }
            None => self.failures = self.failures.saturating_add(1),
        }
    }

    fn go_on(&mut self, now: u64) {
        // After an hour without a call, a minute of seconds is enough.
        let now = now / SECOND_NS;
        self.second = self.second.max(now.saturating_sub(120));
        while self.second < now {
            let this = self.fastest[(self.second % 60) as usize];
            let fastest = self.fastest.iter().copied().min().unwrap_or(u64::MAX);
            let slow = fastest.saturating_mul(2).max(fastest.saturating_add(SLOWER_BY_NS));
            let is_slow = match self.answers {
                // Calls that began before this second have no answer yet.
                0 => self.failures > 0 || self.waited > 0 && slow <= SECOND_NS,
                answers => answers >= ENOUGH && this >= slow,
            };
            if is_slow {
                self.may = (self.may.min(self.sent) / 2).max(MAX_CHARGES);
            } else {
                self.may = (self.may + (self.may / 10).max(1)).min(self.bound);
            }
            self.second += 1;
            (self.sent, self.answers, self.failures, self.waited) = (0, 0, 0, self.under_way);
            self.fastest[(self.second % 60) as usize] = u64::MAX;
        }
    }
}
