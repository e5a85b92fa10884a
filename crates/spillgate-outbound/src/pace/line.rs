//! The queues of a pacer, one for each key: the callers that wait, and the turns that the store has reserved for them.
//!
//! A turn is a stretch of time that belongs to this program: `units * T` from its begin, where `T` is the time between two
//! units of the leaky bucket. A call goes at the begin of a stretch that is long enough for all its units, and the next
//! call of the program goes at the end of it or later. Between two stretches, the time belongs to other programs, so no
//! call uses parts of two stretches. This keeps the bound: at most `c + s/T` units leave in any interval of length `s`.
//!
//! Each caller has asked for a stretch that is long enough for it, but the stretches are not tied to callers. The first
//! caller takes the first stretch that is long enough, then the second caller what comes after it, and so on. So a caller
//! goes at the time that was reserved for it, or earlier if callers before it have gone away.
//!
//! If turns are not reserved, `T` is 0: a turn is for now, and what nobody uses at once is lost.

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
    /// How many queues exist only because of [`Line::is_held`].
    held: usize,
    /// The time between two units of the leaky bucket, or 0 if turns are not reserved.
    interval_ns: u64,
}

/// How late a call can be without making the calls after it later. The timers of tokio, and the system's below them, are
/// up to a millisecond late each. If that added up, a queue of 100 calls in a second would be a tenth slower. A program
/// that stood still for longer than this sends no burst afterwards: its calls stay late.
const LATE: Duration = Duration::from_millis(2);

/// The queue of one key. It exists while callers wait.
#[derive(Default)]
struct Line {
    waiters: VecDeque<Waiter>,
    /// How many of `waiters` have gone away but are still in the list.
    gone: usize,
    /// The stretches of time that are reserved, in the order of time. Between two of them is time of other programs.
    turns: VecDeque<Turn>,
    /// How many of the first `waiters` have a place in `turns`. A caller that has gone away needs none.
    covered: usize,
    /// The last of the covered callers has its place in `turns[cursor]`, and the covered callers use `filled` units of it.
    cursor: usize,
    filled: u64,
    /// A covered caller has gone away, so that the callers after it can have earlier places.
    is_stale: bool,
    /// The end of the last call. `None` before the first call.
    gate: Option<Gate>,
    /// Nobody waits, but the last call was late, so that the store would let the next one go too early.
    is_held: bool,
    /// Wakes the task of this queue.
    changed: Arc<Notify>,
}

struct Waiter {
    id: u64,
    units: u64,
    deadline: Option<Instant>,
    reply: Reply,
}

/// The answer to a caller.
pub(super) type Answer = Result<Granted, PaceError>;

pub(super) type Reply = oneshot::Sender<Answer>;

/// When the next call can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate {
    /// The next call goes at this time or later.
    next: Instant,
    /// The same for the store, which does not know that the last call was late.
    due: Instant,
}

/// A turn that a caller got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    /// The level of a learned pace at which the turn was taken, or 0 if the pace is not learned.
    pub(super) level: u64,
    at: Instant,
    mark: u64,
    before: Option<Gate>,
    after: Option<Gate>,
}

struct Turn {
    at: Instant,
    units: u64,
    /// The end of the turn in the time of the store, or 0 if it is not known. See [`Receipt::mark`].
    ///
    /// [`Receipt::mark`]: spillgate_core::Receipt::mark
    mark: u64,
    level: u64,
}

impl Turn {
    /// Removes the units whose time is over, and returns how many they were.
    fn pass(&mut self, now: Instant, interval_ns: u64) -> u64 {
        let late_ns = now.saturating_duration_since(self.at).as_nanos();
        let over = match (late_ns, interval_ns) {
            (0, _) => 0,
            (_, 0) => self.units,
            _ => u64::try_from(late_ns.div_ceil(interval_ns.into())).map_or(self.units, |over| over.min(self.units)),
        };
        self.units -= over;
        self.at += time_of(interval_ns, over);
        over
    }

    /// Whether no time of another program is between this turn and one that ends at `mark` after `units` units.
    fn is_followed_by(&self, units: u64, mark: u64, interval_ns: u64) -> bool {
        let begin = mark.checked_sub(interval_ns.saturating_mul(units));
        interval_ns > 0 && self.mark > 0 && begin == Some(self.mark)
    }
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
    /// How many units each of these callers needs.
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
        Lines { by_key: HashMap::new(), waiting: 0, lost: 0, next_id: 0, held: 0, interval_ns }
    }

    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns how much of the bound on waiters is used. A queue that is held counts as a waiter, so that the bound holds
    /// for queues too.
    pub(super) const fn used(&self) -> usize {
        self.waiting + self.held
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
        line.is_stale |= index < line.covered;
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

    /// Takes back the turn of a caller that goes away after the turn was granted. The next callers get what time has left
    /// of it, unless one of them already went after it.
    pub(super) fn give_back(&mut self, key: u128, units: u64, granted: &Granted) {
        let line = self.by_key.get_mut(&key).filter(|line| line.gate == granted.after);
        let Some(line) = line else { return self.lose(units) };
        line.gate = granted.before;
        let mut turn = Turn { at: granted.at, units, mark: granted.mark, level: granted.level };
        let over = turn.pass(Instant::now(), self.interval_ns);
        if turn.units > 0 {
            match line.turns.front_mut().filter(|next| turn.is_followed_by(next.units, next.mark, self.interval_ns)) {
                Some(next) => (next.at, next.units) = (turn.at, next.units.saturating_add(turn.units)),
                None => line.turns.push_front(turn),
            }
            line.is_stale = true;
        }
        line.changed.notify_one();
        self.lose(over);
    }

    /// Grants all turns whose time has come. Returns when the next one comes, if it is reserved.
    pub(super) fn grant(&mut self, key: u128, now: Instant) -> Option<Instant> {
        let line = self.by_key.get_mut(&key)?;
        while line.grant(now, self.interval_ns, &mut self.lost) {
            self.waiting -= 1;
        }
        line.next_grant()
    }

    /// Grants all turns whose time has come, and returns what to do next. The store is not asked before `ask_at`. One
    /// call of the store reserves the turns of at most `batch` callers.
    pub(super) fn step(&mut self, key: u128, ask_at: Instant, batch: usize) -> Step {
        let now = Instant::now();
        let turn = self.grant(key, now);
        let Some(line) = self.by_key.get_mut(&key) else { return Step::End };
        if line.waiters.is_empty() {
            let units = line.reserved_units();
            (line.turns, line.cursor, line.filled) = (VecDeque::new(), 0, 0);
            self.lost = self.lost.saturating_add(units);
            let held_until = line.gate.filter(|gate| gate.next > gate.due.max(now)).map(|gate| gate.next);
            self.held = self.held + usize::from(held_until.is_some()) - usize::from(line.is_held);
            line.is_held = held_until.is_some();
            return match held_until {
                Some(next) => Step::Sleep(next, Arc::clone(&line.changed)),
                None => {
                    self.by_key.remove(&key);
                    Step::End
                }
            };
        }
        self.held -= usize::from(line.is_held);
        line.is_held = false;
        match line.ask(batch) {
            Some(ask) if ask_at <= now => Step::Ask(ask),
            Some(_) => Step::Sleep(turn.map_or(ask_at, |turn| turn.min(ask_at)), Arc::clone(&line.changed)),
            None => Step::Sleep(turn.unwrap_or(now), Arc::clone(&line.changed)),
        }
    }

    /// Adds the turns that the store has reserved for `ask`. They begin at `first`, or at the end of the last turn in the
    /// queue if that is later. In the time of the store, they end at `mark`.
    pub(super) fn reserved(&mut self, key: u128, ask: &Ask, first: Instant, mark: u64, level: u64) {
        let Some(line) = self.by_key.get_mut(&key) else {
            self.lose(ask.cost());
            return;
        };
        line.forget_gone();
        line.cover();
        line.pass(Instant::now(), self.interval_ns, &mut self.lost);
        match line.turns.back_mut() {
            Some(last) if last.is_followed_by(ask.cost(), mark, self.interval_ns) => {
                (last.units, last.mark) = (last.units.saturating_add(ask.cost()), mark);
            }
            last => {
                let at = last.map_or(first, |last| first.max(last.at + time_of(self.interval_ns, last.units)));
                line.turns.push_back(Turn { at, units: ask.cost(), mark, level });
            }
        }
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
            self.held -= usize::from(line.is_held);
            self.lose(line.reserved_units());
        }
    }
}

impl Line {
    fn reserved_units(&self) -> u64 {
        self.turns.iter().fold(0, |sum, turn| sum.saturating_add(turn.units))
    }

    /// Grants a turn to the first caller, if its time has come. Returns whether a caller went.
    fn grant(&mut self, now: Instant, interval_ns: u64, lost: &mut u64) -> bool {
        self.forget_gone();
        self.cover();
        self.pass(now, interval_ns, lost);
        let Some(units) = self.waiters.front().map(|waiter| waiter.units) else { return false };
        let Some(granted) = self.use_turn(units, now, interval_ns, lost) else { return false };
        self.covered = self.covered.saturating_sub(1);
        if self.waiters.pop_front().is_some_and(|waiter| waiter.reply.send(Ok(granted)).is_ok()) {
            return true;
        }
        self.gone -= 1;
        false
    }

    /// Removes the callers at the front that have gone away.
    fn forget_gone(&mut self) {
        while self.waiters.front().is_some_and(|waiter| waiter.reply.is_closed()) {
            self.waiters.pop_front();
            self.covered = self.covered.saturating_sub(1);
            self.gone -= 1;
        }
    }

    /// Returns when the turn of the first caller comes. `None` if no turn is reserved for it.
    fn next_grant(&self) -> Option<Instant> {
        let turn = self.turns.front().filter(|_| self.covered > 0)?;
        Some(self.gate.map_or(turn.at, |gate| gate.next.max(turn.at)))
    }

    /// Uses units of the first turn that is long enough. Returns `None` if its time has not come, or if there is none.
    fn use_turn(&mut self, units: u64, now: Instant, interval_ns: u64, lost: &mut u64) -> Option<Granted> {
        let before = self.gate;
        if units == 0 {
            let (level, mark) = self.turns.front().map_or((0, 0), |turn| (turn.level, turn.mark));
            return Some(Granted { level, at: now, mark, before, after: before });
        }
        // Callers go in the order in which they came, so no other caller will use a turn that is too short for the first
        // one. Only the last turn can still become longer.
        while self.turns.len() > 1 && self.turns[0].units < units {
            *lost = lost.saturating_add(self.turns[0].units);
            self.remove_first_turn();
        }
        let next = self.next_grant().filter(|next| *next <= now)?;
        let turn = self.turns.front_mut().filter(|turn| turn.units >= units)?;
        let (at, time) = (turn.at, time_of(interval_ns, units));
        turn.units -= units;
        turn.at += time;
        let mark = turn.mark.saturating_sub(interval_ns.saturating_mul(turn.units));
        let level = turn.level;
        let is_used_up = turn.units == 0;
        let gate = Gate { next: next.max(now.checked_sub(LATE).unwrap_or(now)) + time, due: at + time };
        self.gate = Some(gate);
        if self.cursor == 0 {
            self.filled = self.filled.saturating_sub(units);
        }
        if is_used_up {
            self.remove_first_turn();
        }
        Some(Granted { level, at, mark, before, after: self.gate })
    }

    fn remove_first_turn(&mut self) {
        self.turns.pop_front();
        match self.cursor.checked_sub(1) {
            Some(cursor) => self.cursor = cursor,
            None => self.filled = 0,
        }
    }

    /// Removes the units whose time is over, if they are too few for the first caller. They are lost.
    fn pass(&mut self, now: Instant, interval_ns: u64, lost: &mut u64) {
        while self.covered == 0
            && let Some(turn) = self.turns.front_mut()
        {
            *lost = lost.saturating_add(turn.pass(now, interval_ns));
            if turn.units > 0 {
                return;
            }
            self.remove_first_turn();
        }
    }

    /// Gives places in the turns to as many callers as possible.
    ///
    /// After a caller has gone away, this looks at all callers again, but only if another one needs a place. If callers go
    /// away, no caller gets a later place than before.
    fn cover(&mut self) {
        if self.covered == self.waiters.len() {
            return;
        }
        if std::mem::take(&mut self.is_stale) {
            (self.covered, self.cursor, self.filled) = (0, 0, 0);
        }
        while let Some(waiter) = self.waiters.get(self.covered) {
            if !waiter.reply.is_closed() && !self.place(waiter.units) {
                return;
            }
            self.covered += 1;
        }
    }

    /// Finds a place after those of all covered callers. Returns whether there is one.
    fn place(&mut self, units: u64) -> bool {
        let mut filled = self.filled;
        for (index, turn) in self.turns.iter().enumerate().skip(self.cursor) {
            if turn.units - filled >= units {
                (self.cursor, self.filled) = (index, filled + units);
                return true;
            }
            filled = 0;
        }
        units == 0
    }

    /// Returns what to ask the store. `None` if the units of the turns suffice for all callers.
    fn ask(&mut self, batch: usize) -> Option<Ask> {
        self.cover();
        let mut waiting = self.waiters.range(self.covered..).filter(|waiter| !waiter.reply.is_closed());
        let Waiter { id, units, deadline, .. } = *waiting.next()?;
        let mut ask = Ask { first: id, last: id, callers: 1, units, deadline };
        if deadline.is_none() {
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
