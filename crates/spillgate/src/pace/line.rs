//! The queues of a pacer, one for each key: the callers that wait, and the turns that are reserved for them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::PaceError;

/// All queues of a pacer.
#[derive(Default)]
pub(super) struct Lines {
    by_key: HashMap<u128, Line>,
    /// How many callers wait in all queues. Callers that have gone away do not count.
    waiting: usize,
    lost: u64,
    next_id: u64,
}

/// The queue of one key. It exists while callers wait.
#[derive(Default)]
struct Line {
    waiters: VecDeque<Waiter>,
    /// How many of `waiters` have gone away.
    gone: usize,
    /// The turns that are reserved, in the order of time. The first caller gets the first turn.
    turns: VecDeque<Turn>,
    /// Wakes the task of this queue.
    changed: Arc<Notify>,
}

struct Waiter {
    id: u64,
    units: u64,
    deadline: Option<Instant>,
    reply: Reply,
}

/// The answer to a caller. A granted turn has the level of a learned pace, otherwise 0.
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
    /// The id of the first of these callers.
    pub(super) first: u64,
    pub(super) callers: usize,
    /// How many units each of them takes.
    pub(super) units: u64,
    /// The turn must come before this time. A request with a deadline is for only one caller.
    pub(super) deadline: Option<Instant>,
}

impl Lines {
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn has(&self, key: u128) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Adds a caller. Returns whether the queue is new, so that it needs a task.
    pub(super) fn push(&mut self, key: u128, units: u64, deadline: Option<Instant>, reply: Reply) -> bool {
        let is_new = !self.has(key);
        let line = self.by_key.entry(key).or_default();
        line.waiters.push_back(Waiter { id: self.next_id, units, deadline, reply });
        line.changed.notify_one();
        self.next_id += 1;
        self.waiting += 1;
        is_new
    }

    /// A caller goes away before it is answered.
    pub(super) fn leave(&mut self, key: u128) {
        let Some(line) = self.by_key.get_mut(&key) else { return };
        line.gone += 1;
        self.waiting -= 1;
        // Callers that have gone away stay in the queue until they are more than half of it. On average, removing one
        // of them then costs little.
        if 2 * line.gone > line.waiters.len() {
            line.waiters.retain(|waiter| !waiter.reply.is_closed());
            line.gone = 0;
        }
        line.changed.notify_one();
    }

    /// A caller goes away after it was granted a turn. The next caller gets this turn.
    pub(super) fn give_back(&mut self, key: u128, units: u64, level: u64) {
        match self.by_key.get_mut(&key) {
            Some(line) => {
                line.turns.push_front(Turn { at: Instant::now(), units, level });
                line.changed.notify_one();
            }
            None => self.lost += 1,
        }
    }

    /// Grants all turns that have come, and returns what to do next. The store is not asked before `ask_at`. One call
    /// of the store reserves at most `batch` turns.
    pub(super) fn step(&mut self, key: u128, ask_at: Instant, batch: usize) -> Step {
        let Some(line) = self.by_key.get_mut(&key) else { return Step::End };
        let now = Instant::now();
        while let Some(turn) = line.turns.pop_front() {
            if turn.at > now {
                line.turns.push_front(turn);
                break;
            }
            match line.grant(&turn) {
                true => self.waiting -= 1,
                false => self.lost += 1,
            }
        }
        if line.waiters.len() == line.gone {
            self.lost += line.turns.len() as u64;
            self.by_key.remove(&key);
            return Step::End;
        }
        let turn = line.turns.front().map(|turn| turn.at);
        match line.ask(batch) {
            Some(ask) if ask_at <= now => Step::Ask(ask),
            Some(_) => Step::Sleep(turn.map_or(ask_at, |turn| turn.min(ask_at)), Arc::clone(&line.changed)),
            None => Step::Sleep(turn.unwrap_or(now), Arc::clone(&line.changed)),
        }
    }

    /// Adds the turns that the store has reserved for `ask`. The first one is at `first`, but not before the last turn
    /// of the queue. Each further one comes `interval` later.
    pub(super) fn reserved(&mut self, key: u128, ask: &Ask, (first, interval): (Instant, Duration), level: u64) {
        let Some(line) = self.by_key.get_mut(&key) else {
            self.lost += ask.callers as u64;
            return;
        };
        let mut at = line.turns.back().map_or(first, |last| last.at.max(first));
        for _ in 0..ask.callers {
            line.turns.push_back(Turn { at, units: ask.units, level });
            at += interval;
        }
    }

    /// If the first caller of `ask` still waits, tells it that it gets no turn.
    pub(super) fn refuse(&mut self, key: u128, ask: &Ask, error: PaceError) {
        let Some(line) = self.by_key.get_mut(&key) else { return };
        let Ok(index) = line.waiters.binary_search_by_key(&ask.first, |waiter| waiter.id) else { return };
        if let Some(waiter) = line.waiters.remove(index) {
            match waiter.reply.send(Err(error)) {
                Ok(()) => self.waiting -= 1,
                Err(_) => line.gone -= 1,
            }
        }
    }

    /// Removes a queue whose task ended while callers wait. The senders of these callers are dropped, so they get an
    /// error.
    pub(super) fn abandon(&mut self, key: u128) {
        if let Some(line) = self.by_key.remove(&key) {
            self.waiting -= line.waiters.len() - line.gone;
            self.lost += line.turns.len() as u64;
        }
    }
}

impl Line {
    /// Gives a turn to the first caller. Returns false if the turn is lost: no caller waits, or the first caller needs
    /// more units.
    fn grant(&mut self, turn: &Turn) -> bool {
        while let Some(waiter) = self.waiters.pop_front() {
            if !waiter.reply.is_closed() && waiter.units > turn.units {
                self.waiters.push_front(waiter);
                return false;
            }
            if waiter.reply.send(Ok(turn.level)).is_ok() {
                return true;
            }
            self.gone -= 1;
        }
        false
    }

    /// Returns what to ask the store, if callers without a turn wait.
    fn ask(&self, batch: usize) -> Option<Ask> {
        let reserved = self.turns.len();
        // Usually no caller has gone away, and then the callers with a turn need not be counted.
        let skipped = if self.gone == 0 { reserved.min(self.waiters.len()) } else { 0 };
        let waiting = self.waiters.range(skipped..).filter(|waiter| !waiter.reply.is_closed());
        let mut waiting = waiting.skip(reserved - skipped);
        let first = waiting.next()?;
        let ask = Ask { first: first.id, callers: 1, units: first.units, deadline: first.deadline };
        if first.deadline.is_some() {
            return Some(ask);
        }
        let alike =
            waiting.take(batch - 1).take_while(|waiter| waiter.deadline.is_none() && waiter.units == first.units);
        Some(Ask { callers: 1 + alike.count(), ..ask })
    }
}
