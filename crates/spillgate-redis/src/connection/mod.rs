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
mod resp;

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, RedisResult, Value};

use crate::command::request::EncodedTake;
use crate::connection::driver::Driver;
use crate::connection::queue::Queue;

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
        let receivers = self.0.put(1, |state| state.push_commands(|out| command.write_packed_command(out), 1))?;
        let mut values = self.0.replies(receivers).await?;
        values.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// Sends one take and returns its reply. The take may share a call with other takes. A call is not written if the
    /// callers of all its takes have stopped waiting.
    ///
    /// # Errors
    /// The same errors as [`send`](Connection::send) returns.
    pub(crate) async fn send_take(&self, take: &EncodedTake<'_>) -> RedisResult<Value> {
        let receiver = self.0.put(1, |state| state.push_take(take))?;
        self.0.reply(receiver).await?.extract_error()
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
            let replies = offset + count;
            let write = |out: &mut Vec<u8>| out.extend(commands.get_packed_pipeline());
            let receivers = self.0.put(replies, |state| state.push_commands(write, replies))?;
            let mut values = self.0.replies(receivers).await?;
            Ok(values.drain(offset..).collect())
        })
    }

    /// Returns 0, so that the library selects no database. The login has done so.
    fn get_db(&self) -> i64 {
        0
    }
}

#[cfg(test)]
mod tests;
