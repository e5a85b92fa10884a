//! The turns of clients that hung up while other clients waited behind them.

use std::collections::{BTreeMap, BTreeSet};

use spillgate_service::metrics::{HangupMetrics, LostCharge};
use tokio::time::Instant;

use super::{MAX_LEFT, Place, Queue, ROUND, Refunded, Taken};

/// The turns that were not the last ones of their queues. A turn that is being given back is not among them, so it is
/// forgotten if nobody gets the answer of the store.
#[derive(Debug, Default)]
pub(super) struct Left {
    turns: BTreeMap<Place, Taken>,
    /// The queues whose last turn can be given back now.
    due: BTreeSet<Queue>,
}

impl Left {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn charges(&self) -> u64 {
        self.turns.values().map(|turn| turn.charges).sum()
    }

    fn last_of(&mut self, queue: Queue) -> Option<&mut Taken> {
        self.turns.range_mut((queue, 0)..=(queue, u64::MAX)).next_back().map(|(_, turn)| turn)
    }

    /// Moves the last turns of queues that are due to the round.
    pub(super) fn take_due(&mut self, round: &mut Vec<Taken>) {
        while round.len() < 2 * ROUND
            && let Some(queue) = self.due.pop_first()
        {
            let last = self.last_of(queue).map(|turn| turn.ends_at);
            round.extend(last.and_then(|ends_at| self.turns.remove(&(queue, ends_at))));
        }
    }

    /// Remembers a turn, and tries to give its queue's last turn back soon.
    pub(super) fn add(&mut self, turn: Taken, hangups: &HangupMetrics) {
        self.due.insert(turn.queue());
        self.insert(turn, hangups);
    }

    /// Remembers a turn. Turns that touch become one.
    fn insert(&mut self, mut turn: Taken, hangups: &HangupMetrics) {
        let queue = turn.queue();
        let before = (queue, turn.begins_at);
        if self.turns.get(&before).is_some_and(|before| before.fits_with(&turn))
            && let Some(before) = self.turns.remove(&before)
        {
            turn.add_before(&before);
        }
        let after = self.turns.range_mut((queue, turn.ends_at.saturating_add(1))..=(queue, u64::MAX)).next();
        if let Some((_, after)) = after
            && after.begins_at == turn.ends_at
            && after.fits_with(&turn)
        {
            after.add_before(&turn);
            return;
        }
        // Two turns end at the same time only if the counter was reset between them.
        if let Some(older) = self.turns.insert((queue, turn.ends_at), turn) {
            hangups.lost(LostCharge::Passed).inc_by(older.charges);
        }
    }

    /// Uses the answer to the refund of the last turn of a queue.
    pub(super) fn answered(&mut self, mut turn: Taken, refunded: Refunded, hangups: &HangupMetrics) {
        let (queue, tried) = (turn.queue(), turn.ends_at);
        let (debt_ns, now_ns) = match refunded {
            Refunded::Answered { debt_ns, now_ns } => (debt_ns, now_ns),
            Refunded::NotApplied => {
                turn.has_failed = true;
                self.turns.insert((queue, tried), turn);
                return;
            }
            Refunded::Unknown => {
                // If this turn was given back, another client may have it now: with the same mark, which a second refund
                // would match.
                hangups.lost(LostCharge::Store).inc_by(turn.charges);
                // No refund of the turn before it was ever applied, so it can be tried.
                if let Some(before) = self.last_of(queue) {
                    before.has_failed = true;
                }
                return;
            }
        };
        self.turns.insert((queue, tried), turn);
        // The queue ends here. If it is empty, nobody waits, so each remembered turn is free.
        let end = if debt_ns == 0 { 0 } else { now_ns.saturating_add(debt_ns) };
        while let Some(last) = self.last_of(queue) {
            let place = (queue, last.ends_at);
            if last.begins_at < end {
                // Another turn, for example of another server's client, was given back since.
                if last.ends_at == end && last.ends_at != tried {
                    self.due.insert(queue);
                }
                return;
            }
            let passed = last.passed(now_ns);
            hangups.lost(LostCharge::Passed).inc_by(passed);
            hangups.given_back.inc_by(last.charges - passed);
            self.turns.remove(&place);
        }
    }

    /// Forgets the turns that are over. Those for which the store has failed are due again.
    pub(super) fn sweep(&mut self, now: Instant, hangups: &HangupMetrics) {
        self.turns.retain(|_, turn| {
            let is_over = turn.is_over_at <= now;
            if is_over {
                let reason = if turn.has_failed { LostCharge::Store } else { LostCharge::Passed };
                hangups.lost(reason).inc_by(turn.charges);
            }
            !is_over
        });
        let failed = self.turns.values_mut().filter(|turn| turn.has_failed);
        self.due.extend(failed.map(|turn| {
            turn.has_failed = false;
            turn.queue()
        }));
    }

    /// Forgets turns beyond the bound: those that are over first, because they are worth least. So a client with many
    /// queues does not always displace the turns of the same others.
    pub(super) fn shrink(&mut self, hangups: &HangupMetrics) {
        let mut beyond = self.turns.len().saturating_sub(MAX_LEFT);
        if beyond == 0 {
            return;
        }
        let mut over_at: Vec<Instant> = self.turns.values().map(|turn| turn.is_over_at).collect();
        let (_, &mut latest, _) = over_at.select_nth_unstable(beyond - 1);
        self.turns.retain(|_, turn| {
            let is_kept = beyond == 0 || turn.is_over_at > latest;
            if !is_kept {
                beyond -= 1;
                hangups.lost(LostCharge::Full).inc_by(turn.charges);
            }
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use spillgate::{Quota, Receipt, Time};
    use spillgate_service::metrics::Metrics;

    use super::*;

    fn turn(key: u128, now: Instant, secs: u64) -> Taken {
        let quota = Quota::leaky_bucket(1, Duration::from_secs(1)).queue(100).build().expect("the quota is valid");
        let (receipt, is_over_at) = (Receipt::new(Time::EPOCH, secs), now + Duration::from_secs(secs));
        Taken {
            key,
            quota,
            cost: 1,
            receipt,
            charges: 1,
            begins_at: secs - 1,
            ends_at: secs,
            is_over_at,
            has_failed: false,
        }
    }

    #[test]
    fn turns_beyond_the_bound_are_those_that_are_over_first() {
        let (metrics, now, mut left) = (Metrics::new(), Instant::now(), Left::default());
        // A client with many queues, whose turns are over first, and another client with the largest key.
        for key in 0..MAX_LEFT as u128 {
            left.insert(turn(key, now, 5 + key as u64 % 2), &metrics.hangups);
        }
        left.insert(turn(u128::MAX, now, 9), &metrics.hangups);
        left.insert(turn(u128::MAX - 1, now, 7), &metrics.hangups);
        left.shrink(&metrics.hangups);
        assert_eq!((left.turns.len(), metrics.hangups.lost(LostCharge::Full).get()), (MAX_LEFT, 2));
        assert_eq!(left.turns.values().filter(|turn| turn.ends_at == 5).count(), MAX_LEFT / 2 - 2);
    }

    #[test]
    fn the_turn_before_one_that_may_have_been_given_back_is_tried_at_the_next_sweep() {
        let (metrics, now, mut left, mut round) = (Metrics::new(), Instant::now(), Left::default(), Vec::new());
        left.add(turn(7, now, 5), &metrics.hangups);
        left.add(turn(7, now, 9), &metrics.hangups);
        left.take_due(&mut round);
        assert_eq!(round.iter().map(|turn| turn.ends_at).collect::<Vec<_>>(), [9], "the last one comes first");
        left.answered(round.remove(0), Refunded::Unknown, &metrics.hangups);
        assert_eq!(metrics.hangups.lost(LostCharge::Store).get(), 1);
        left.sweep(now, &metrics.hangups);
        left.take_due(&mut round);
        assert_eq!(round.iter().map(|turn| turn.ends_at).collect::<Vec<_>>(), [5]);
    }
}
