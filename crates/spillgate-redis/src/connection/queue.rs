//! The queue of a connection: the commands that have no reply yet. The connection fills this queue, and the driver of
//! the connection empties it.
//!
//! Replies have no numbers: the first reply belongs to the first command, the second reply to the second command, and
//! so on. So the queue keeps the callers in the order in which their commands are written. A caller that no longer
//! waits keeps its position, because its reply comes nevertheless.
//!
//! ```text
//! put (not written) -> swap_commands (written) -> deliver (the caller has its reply)
//!          \________________________\______________ end (the caller has an error)
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::task::AtomicWaker;
use redis::{ErrorKind as RedisErrorKind, RedisError, RedisResult, Value};
use tokio::time::Instant;

use crate::command::request::EncodedTake;
use crate::connection::batch::{Awaited, Batches};
use crate::connection::calls::{CallCounters, Unanswered};
use crate::connection::reply::{ReplySender, ReplySlot};

/// What a connection and its driver share.
pub(crate) struct Queue {
    /// Locked only briefly: no socket is read or written under this lock.
    queue: Mutex<QueueState>,
    /// Wakes the driver when the queue is no longer empty.
    pub(crate) driver: AtomicWaker,
    /// Empty until the connection has logged in, because the calls of a login are not counted.
    counters: OnceLock<Arc<CallCounters>>,
}

pub(crate) struct QueueState {
    /// Commands that are not written yet. They are written before the takes in `batches`.
    commands: Vec<u8>,
    /// Takes that are not written yet. Until a take is written, more takes may share its call.
    batches: Batches,
    /// For each command in `commands` and each written command that has no reply yet, the callers that get its reply.
    /// The reply for a caller that no longer waits goes to its heir.
    awaited: VecDeque<Awaited>,
    /// The calls that were written and have no reply yet, if calls are counted.
    unanswered: Unanswered,
    /// The number of callers whose reply has not come yet. A caller that no longer waits is counted until its reply
    /// comes or its call is skipped.
    waiting: usize,
    /// The maximum of `waiting`. A command that would exceed it is refused before it is added to the queue.
    waiting_max: usize,
    /// Why the connection has ended. Only the first reason is stored.
    ended: Option<RedisError>,
}

impl QueueState {
    /// Adds commands. `callers` get their replies, one each. `write` appends the bytes of the commands.
    pub(crate) fn push_commands(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>),
        callers: impl IntoIterator<Item = ReplySender>,
    ) {
        write(&mut self.commands);
        self.awaited.extend(callers.into_iter().map(Awaited::One));
    }

    /// Adds a take. If its call has several takes, the reply to the take is one element of the reply to the call.
    pub(crate) fn push_take(&mut self, take: &EncodedTake<'_>, caller: ReplySender) {
        self.batches.push(take, caller);
    }

    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.batches.is_empty()
    }
}

impl Queue {
    /// Returns an empty queue, for at most this many callers.
    pub(crate) fn new(waiting_max: usize) -> Queue {
        let queue = QueueState {
            commands: Vec::new(),
            batches: Batches::default(),
            awaited: VecDeque::new(),
            unanswered: Unanswered::default(),
            waiting: 0,
            waiting_max,
            ended: None,
        };
        Queue { queue: Mutex::new(queue), driver: AtomicWaker::new(), counters: OnceLock::new() }
    }

    fn queue(&self) -> MutexGuard<'_, QueueState> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts all further calls in `counters`. Call this method only while no call waits for its reply.
    pub(crate) fn count_calls(&self, counters: &Arc<CallCounters>) {
        let _ = self.counters.set(Arc::clone(counters));
    }

    /// Adds commands or a take with this many replies. The closure `put` adds them under the lock.
    ///
    /// # Errors
    /// The connection has ended, or too many callers wait. Nothing was added.
    pub(crate) fn put(&self, replies: usize, put: impl FnOnce(&mut QueueState)) -> RedisResult<()> {
        let mut queue = self.queue();
        if let Some(why) = &queue.ended {
            return Err(why.clone());
        }
        if queue.waiting + replies > queue.waiting_max {
            return Err((RedisErrorKind::Client, "the connection waits for too many replies").into());
        }
        let is_first = queue.is_empty();
        queue.waiting += replies;
        put(&mut queue);
        drop(queue);
        // If the queue was not empty, the driver has already been woken.
        if is_first {
            self.driver.wake();
        }
        Ok(())
    }

    /// Waits for one reply.
    ///
    /// # Errors
    /// The reason why the connection ended before the reply came. An error that Redis sent is returned as a value.
    pub(crate) async fn reply(&self, slot: &ReplySlot) -> RedisResult<Value> {
        slot.wait().await.ok_or_else(|| self.queue().ended.clone().unwrap_or_else(|| hung_up().into()))
    }

    /// Clears `written`, and fills it with the bytes that the driver must write next.
    pub(crate) fn swap_commands(&self, written: &mut Vec<u8>) {
        written.clear();
        let QueueState { commands, batches, awaited, unanswered, waiting, .. } = &mut *self.queue();
        *waiting -= batches.write(commands, awaited);
        std::mem::swap(written, commands);
        if let Some(counters) = self.counters.get() {
            let new = awaited.iter().skip(unanswered.calls());
            let (calls, requests) =
                new.fold((0, 0), |(calls, requests), awaited| (calls + 1, requests + awaited.len()));
            unanswered.write(counters, calls, requests);
        }
    }

    /// Delivers the reply to the callers that wait for the next reply.
    ///
    /// # Errors
    /// No command waits for a reply, or the reply does not fit the command.
    pub(crate) fn deliver(&self, value: Value) -> io::Result<()> {
        let mut queue = self.queue();
        let awaited =
            queue.awaited.pop_front().ok_or_else(|| io::Error::other("the server sent a reply to no command"))?;
        queue.waiting -= awaited.len();
        drop(queue);
        let callers = match awaited {
            Awaited::One(sender) => {
                sender.send(value);
                return Ok(());
            }
            Awaited::Each(callers) => callers,
        };
        let values = match value {
            Value::Array(values) if values.len() == callers.len() => values,
            error @ Value::ServerError(_) => vec![error; callers.len()],
            _ => {
                let why = || io::Error::other("the reply does not fit the command");
                // The reason must be set before the callers are woken.
                self.end(why());
                return Err(why());
            }
        };
        for (caller, value) in callers.into_iter().zip(values) {
            caller.send(value);
        }
        Ok(())
    }

    /// Counts the replies to the first `replies` calls, which have just come.
    pub(crate) fn count_replies(&self, replies: usize) {
        if let Some(counters) = self.counters.get().filter(|_| replies > 0) {
            self.queue().unanswered.answer(counters, replies, Instant::now());
        }
    }

    /// Ends the queue, because the connection has ended and no further replies come. All callers that wait get the
    /// reason `why`. If the queue had already ended, they get the first reason.
    pub(crate) fn end(&self, why: io::Error) {
        let mut queue = self.queue();
        queue.ended.get_or_insert_with(|| why.into());
        queue.commands = Vec::new();
        // The callers are woken without the lock, because they lock the queue to read the reason.
        let waiting = (std::mem::take(&mut queue.awaited), std::mem::take(&mut queue.batches));
        drop(queue);
        drop(waiting);
    }
}

/// Returns the error for a connection that Redis closed without an error.
pub(crate) fn hung_up() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server hung up")
}
