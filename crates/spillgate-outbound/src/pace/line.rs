//! The queues of a pacer, one for each key: the callers that wait, and the turns that the store has reserved for them.
//!
//! Turns are not tied to callers. The first caller goes as soon as the turns whose time has come have enough units. So
//! if a caller goes away, its turn serves the next callers, even if they need more or fewer units.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::PaceError;

/// All queues of a pacer.
pub(super) struct Lines {
    by_key: HashMap<u128, Line>,
    /// How many callers wait in all queues, without those that have gone away.
    waiting: usize,
    /// The units of all turns that no caller got.
    lost: u64,
    next_id: u64,
    /// The time between two units of the leaky bucket, or 0 if the pacer has no leaky bucket.
    interval_ns: u64,
}

/// The queue of one key. It exists while callers wait.
#[derive(Default)]
struct Line {
    waiters: VecDeque<Waiter>,
    /// How many of `waiters` have gone away but are still in the list.
    gone: usize,
    /// The turns that are reserved, in the order of time.
    turns: VecDeque<Turn>,
    /// For how many of the first `waiters` the units of `turns` suffice. A caller that has gone away needs no units.
    covered: usize,
    /// The units of `turns` that these `covered` callers do not need.
    spare: u64,
    /// Wakes the task of this queue.
    changed: Arc<Notify>,
}

struct Waiter {
    id: u64,
    units: u64,
    deadline: Option<Instant>,
    reply: Reply,
}

/// The answer to a caller. `Ok` contains the level of a learned pace at which the turn was taken, or 0 if the pace is
/// not learned.
pub(super) type Answer = Result<u64, PaceError>;

pub(super) type Reply = oneshot::Sender<Answer>;

struct Turn {
    at: Instant,
    units: u64,
    level: u64,
}

/// What the task of a queue does next.
pub(super) enum Step {
    Ask(Ask),
    /// Waits until a time, or until the queue changes.
    Sleep(Instant, Arc<Notify>),
    /// Ends, because no caller waits.
    End,
}

/// A request to the store for the turns of some callers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// The ids of the first and the last caller of this request.
    first: u64,
    last: u64,
    pub(super) callers: usize,
    /// How many units each of these callers needs in addition to the turns that are already reserved.
    pub(super) units: u64,
    /// The turn must come before this time. A request with a deadline is for only one caller.
    pub(super) deadline: Option<Instant>,
}

impl Ask {
    /// Returns the units that the request takes.
    pub(super) const fn cost(&self) -> u64 {
        self.units.saturating_mul(self.callers as u64)
    }
}

impl Lines {
    pub(super) fn new(interval_ns: u64) -> Lines {
        Lines { by_key: HashMap::new(), waiting: 0, lost: 0, next_id: 0, interval_ns }
    }

    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Counts units of turns that no caller gets.
    pub(super) const fn lose(&mut self, units: u64) {
        self.lost = self.lost.saturating_add(units);
    }

    pub(super) fn has(&self, key: u128) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Adds a caller. Returns its id, and whether the queue is new, so that it needs a task.
    pub(super) fn push(&mut self, key: u128, units: u64, deadline: Option<Instant>, reply: Reply) -> (u64, bool) {
        let (id, is_new) = (self.next_id, !self.has(key));
        let line = self.by_key.entry(key).or_default();
        line.waiters.push_back(Waiter { id, units, deadline, reply });
        line.changed.notify_one();
        self.next_id += 1;
        self.waiting += 1;
        (id, is_new)
    }

    /// Notes that a caller goes away before its turn was granted.
    pub(super) fn leave(&mut self, key: u128, id: u64) {
        let Some(line) = self.by_key.get_mut(&key) else { return };
        let Ok(index) = line.waiters.binary_search_by_key(&id, |waiter| waiter.id) else { return };
        if index < line.covered {
            line.spare = line.spare.saturating_add(line.waiters[index].units);
        }
        line.gone += 1;
        self.waiting -= 1;
        // Callers that have gone away are removed together, when they are more than half of the queue. So removing one
        // of them costs little on average.
        if 2 * line.gone > line.waiters.len() {
            line.covered = line.waiters.range(..line.covered).filter(|waiter| !waiter.reply.is_closed()).count();
            line.waiters.retain(|waiter| !waiter.reply.is_closed());
            line.gone = 0;
        }
        line.changed.notify_one();
    }

    /// Takes back the turn of a caller that goes away after the turn was granted. The next callers get this turn.
    pub(super) fn give_back(&mut self, key: u128, units: u64, level: u64) {
        match self.by_key.get_mut(&key) {
            Some(line) => {
                line.turns.push_front(Turn { at: Instant::now(), units, level });
                line.spare = line.spare.saturating_add(units);
                line.changed.notify_one();
            }
            None => self.lose(units),
        }
    }

    /// Grants all turns whose time has come, and returns what to do next. The store is not asked before `ask_at`. One
    /// call of the store reserves the turns of at most `batch` callers.
    pub(super) fn step(&mut self, key: u128, ask_at: Instant, batch: usize) -> Step {
        let Some(line) = self.by_key.get_mut(&key) else { return Step::End };
        let now = Instant::now();
        while line.grant(now, self.interval_ns) {
            self.waiting -= 1;
        }
        if line.waiters.len() == line.gone {
            let units = line.reserved_units();
            self.by_key.remove(&key);
            self.lose(units);
            return Step::End;
        }
        // A turn whose time has come is still in the list only if it is too small for the first caller. So there is no
        // reason to wake for this turn.
        let turn = line.turns.front().map(|turn| turn.at).filter(|at| *at > now);
        match line.ask(batch) {
            Some(ask) if ask_at <= now => Step::Ask(ask),
            Some(_) => Step::Sleep(turn.map_or(ask_at, |turn| turn.min(ask_at)), Arc::clone(&line.changed)),
            None => Step::Sleep(turn.unwrap_or(now), Arc::clone(&line.changed)),
        }
    }

    /// Adds the turns that the store has reserved for `ask`. The first one is at `first`, or at the time of the last
    /// turn in the queue if that is later.
    pub(super) fn reserved(&mut self, key: u128, ask: &Ask, first: Instant, level: u64) {
        let Some(line) = self.by_key.get_mut(&key) else {
            self.lose(ask.cost());
            return;
        };
        let mut at = line.turns.back().map_or(first, |last| last.at.max(first));
        for _ in 0..ask.callers {
            line.turns.push_back(Turn { at, units: ask.units, level });
            at += time_of(self.interval_ns, ask.units);
        }
        line.spare = line.spare.saturating_add(ask.cost());
    }

    /// Tells the callers of `ask` that they get no turn. Callers that have gone away are left out, and so are callers
    /// for whom other turns suffice by now.
    pub(super) fn refuse(&mut self, key: u128, ask: &Ask, error: &PaceError) {
        let Some(line) = self.by_key.get_mut(&key) else { return };
        line.cover();
        let first = line.waiters.partition_point(|waiter| waiter.id < ask.first).max(line.covered);
        let end = line.waiters.partition_point(|waiter| waiter.id <= ask.last).max(first);
        for waiter in line.waiters.drain(first..end) {
            match waiter.reply.send(Err(error.clone())) {
                Ok(()) => self.waiting -= 1,
                Err(_) => line.gone -= 1,
            }
        }
    }

    /// Removes a queue whose task ended while callers wait. The senders of their answers are dropped, so the callers
    /// get an error.
    pub(super) fn abandon(&mut self, key: u128) {
        if let Some(line) = self.by_key.remove(&key) {
            self.waiting -= line.waiters.len() - line.gone;
            self.lose(line.reserved_units());
        }
    }
}

impl Line {
    fn reserved_units(&self) -> u64 {
        self.turns.iter().fold(0, |sum, turn| sum.saturating_add(turn.units))
    }

    /// Grants a turn to the first caller, if the time of a large enough turn has come. Units that are left over become
    /// a turn of their own, as if they had been reserved separately. Returns whether a caller went.
    fn grant(&mut self, now: Instant, interval_ns: u64) -> bool {
        self.cover();
        while let Some(waiter) = self.waiters.front() {
            let level = if waiter.reply.is_closed() {
                0
            } else {
                let Some(level) = self.use_turn(waiter.units, now, interval_ns) else { return false };
                level
            };
            self.covered = self.covered.saturating_sub(1);
            if self.waiters.pop_front().is_some_and(|waiter| waiter.reply.send(Ok(level)).is_ok()) {
                return true;
            }
            self.gone -= 1;
        }
        false
    }

    /// Uses units of the first turns. Returns the level of the turn, or `None` if the turns that have come have too few
    /// units.
    fn use_turn(&mut self, units: u64, now: Instant, interval_ns: u64) -> Option<u64> {
        if units == 0 {
            return Some(self.turns.front().map_or(0, |turn| turn.level));
        }
        // A turn that is too small is merged into the next turn.
        while self.turns.len() > 1 && self.turns[0].units < units {
            let small = self.turns.pop_front().map_or(0, |turn| turn.units);
            self.turns[0].units = self.turns[0].units.saturating_add(small);
        }
        let turn = self.turns.front_mut().filter(|turn| turn.units >= units && turn.at <= now)?;
        let level = turn.level;
        turn.units -= units;
        turn.at += time_of(interval_ns, units);
        if turn.units == 0 {
            self.turns.pop_front();
        }
        Some(level)
    }

    /// Counts for how many callers the units of the turns suffice.
    fn cover(&mut self) {
        while let Some(waiter) = self.waiters.get(self.covered) {
            let units = if waiter.reply.is_closed() { 0 } else { waiter.units };
            let Some(spare) = self.spare.checked_sub(units) else { return };
            (self.covered, self.spare) = (self.covered + 1, spare);
        }
    }

    /// Returns what to ask the store. `None` if the units of the turns suffice for all callers.
    fn ask(&mut self, batch: usize) -> Option<Ask> {
        self.cover();
        let mut waiting = self.waiters.range(self.covered..).filter(|waiter| !waiter.reply.is_closed());
        let Waiter { id, units, deadline, .. } = *waiting.next()?;
        let mut ask = Ask { first: id, last: id, callers: 1, units: units - self.spare, deadline };
        if deadline.is_none() && self.spare == 0 {
            let alike = waiting.take(batch - 1).take_while(|waiter| waiter.deadline.is_none() && waiter.units == units);
            for waiter in alike {
                (ask.last, ask.callers) = (waiter.id, ask.callers + 1);
            }
        }
        Some(ask)
    }
}

/// Returns the time that a leaky bucket needs for some units.
const fn time_of(interval_ns: u64, units: u64) -> Duration {
    Duration::from_nanos(interval_ns.saturating_mul(units))
}
