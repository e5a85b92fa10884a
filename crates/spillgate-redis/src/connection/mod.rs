//! One connection that many requests share. A task polls its driver, which writes all queued commands together. The
//! replies come back in the order of the commands.
//!
//! If each command had a write of its own, the system call and the wakeup of Redis would cost more than the command
//! itself.
//!
//! A command goes through these steps:
//!
//! 1. [`Connection::send`] or [`Connection::send_take`] adds the command to the [`queue`] and wakes the driver.
//! 2. The [`driver`] writes everything in the queue at once. Takes that can share a call become one command
//!    ([`batch`]).
//! 3. The driver reads bytes, [`resp`] splits them into replies, and the queue delivers each reply to its caller.
//!
//! In this example a GET and two takes were queued before the driver ran, so they are sent in one write. Their replies
//! come in the same order:
//!
//! ```text
//! > *2 $3 GET .. *7 $7 EVALSHA .. $1 2 .. (two takes in one call)
//! < $-1
//! < *2 $9 .. $28 ..
//! ```

mod batch;
mod calls;
mod driver;
mod queue;
pub(crate) mod reply;
mod resp;

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, RedisResult, Value};

use crate::command::request::EncodedTake;
use crate::connection::driver::Driver;
use crate::connection::queue::Queue;
use crate::connection::reply::{Caller, Heir, ReplySlot};

pub(crate) use calls::CallCounters;

/// Sends commands. The [`Driver`] must be polled for as long as replies are needed.
///
/// A clone is another handle of the same connection. When the driver has ended, every method that sends a command
/// returns the reason of the end as an error.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Queue>);

impl Connection {
    /// Returns a connection on a new stream, and its driver. The connection may wait for at most `waiting_max` replies
    /// at the same time.
    pub(crate) fn new<S>(stream: S, waiting_max: usize) -> (Connection, Driver<S>) {
        let shared = Arc::new(Queue::new(waiting_max));
        (Connection(Arc::clone(&shared)), Driver::new(stream, shared))
    }

    /// Counts all further calls in `counters`. Call this once, after the login and before the connection is used.
    pub(crate) fn count_calls(&self, counters: &Arc<CallCounters>) {
        self.0.count_calls(counters);
    }

    /// Sends one command and returns its reply. The command is written even if the caller no longer waits.
    ///
    /// # Errors
    /// The error of Redis, or the reason why the connection has ended. If the connection already waits for too many
    /// replies, nothing is sent, and the error has the kind `Client`.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.send_in(&Caller::default().0, command).await
    }

    /// Sends one command, like [`send`](Connection::send). The reply comes through `slot`, whose owner can leave an
    /// heir.
    pub(crate) async fn send_in(&self, slot: &Arc<ReplySlot>, command: &Cmd) -> RedisResult<Value> {
        self.0.put(1, |state| state.push_commands(|out| command.write_packed_command(out), [slot.open()]))?;
        self.0.reply(slot).await?.extract_error()
    }

    /// Sends one take and returns its reply, which comes through `slot`. The take may share a call with other takes. A
    /// call is not written if the callers of all its takes have stopped waiting.
    ///
    /// # Errors
    /// The same errors as [`send`](Connection::send) returns.
    pub(crate) async fn send_take(&self, slot: &Arc<ReplySlot>, take: &EncodedTake<'_>) -> RedisResult<Value> {
        self.0.put(1, |state| state.push_take(take, slot.open()))?;
        self.0.reply(slot).await?.extract_error()
    }

    /// Sends several commands, and returns the reply to the last one, which comes through `slot`.
    ///
    /// # Errors
    /// The first error among the replies, or the same errors as [`send`](Connection::send) returns.
    pub(crate) async fn send_last(&self, slot: &Arc<ReplySlot>, commands: &Pipeline) -> RedisResult<Value> {
        let first: Vec<Caller> = (1..commands.len()).map(|_| Caller::default()).collect();
        let write = |out: &mut Vec<u8>| out.extend(commands.get_packed_pipeline());
        let senders = || first.iter().map(|caller| caller.0.open()).chain([slot.open()]);
        self.0.put(commands.len(), |state| state.push_commands(write, senders()))?;
        for caller in &first {
            self.0.reply(&caller.0).await?.extract_error()?;
        }
        self.0.reply(slot).await?.extract_error()
    }

    /// Sends one command whose reply goes to the heir. If it cannot be sent, the heir gets no reply.
    pub(crate) fn post(&self, command: &Cmd, heir: Box<dyn Heir>) {
        let sender = ReplySlot::inherited(heir);
        // If the queue refuses the command, the sender is dropped, and the heir is told.
        let _ = self.0.put(1, |state| state.push_commands(|out| command.write_packed_command(out), [sender]));
    }
}

/// Lets the client library send pipelines, and convert replies to other types.
impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.send(command))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let callers: Vec<Caller> = (0..offset + count).map(|_| Caller::default()).collect();
            let write = |out: &mut Vec<u8>| out.extend(commands.get_packed_pipeline());
            let senders = || callers.iter().map(|caller| caller.0.open());
            self.0.put(callers.len(), |state| state.push_commands(write, senders()))?;
            let mut values = Vec::with_capacity(callers.len());
            for caller in &callers {
                values.push(self.0.reply(&caller.0).await?);
            }
            Ok(values.split_off(offset))
        })
    }

    /// Returns 0, so that the library selects no database. The login has done so.
    fn get_db(&self) -> i64 {
        0
    }
}

#[cfg(test)]
mod tests;
