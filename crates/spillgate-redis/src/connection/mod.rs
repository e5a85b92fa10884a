//! One connection that many requests share. Commands that are sent between two turns of its driver leave in one write,
//! and replies come back in order.
//!
//! A write for each command would cost more than the command itself: the system call and the server's wakeup.
//!
//! A command takes this way:
//!
//! 1. [`Connection::send`] or [`Connection::send_take`] adds the command to the [`queue`] and wakes the driver.
//! 2. The [`driver`] writes everything in the queue at once. Takes that can share a call become one command ([`batch`]).
//! 3. The driver reads bytes, [`resp`] splits them into replies, and the queue delivers each reply to its caller.
//!
//! A GET and two takes that were queued between two turns of the driver leave in one write. Their replies come in the
//! same order:
//!
//! ```text
//! > *3 $3 GET .. *7 $7 EVALSHA .. $1 2 .. (two takes in one call)
//! < $-1
//! < *2 $9 .. $28 ..
//! ```

mod batch;
mod driver;
mod queue;
mod resp;

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, RedisResult, Value};

use crate::command::request::EncodedTake;
use crate::connection::driver::Driver;
use crate::connection::queue::Queue;

/// Sends commands. The [`Driver`] must be polled for as long as replies are needed.
///
/// A clone is another handle of the same connection. When the driver has ended, every method returns the reason.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Queue>);

impl Connection {
    /// A connection on a stream that no one has written to, which may wait for `waiting_max` replies at the same time.
    pub(crate) fn new<S>(stream: S, waiting_max: usize) -> (Connection, Driver<S>) {
        let shared = Arc::new(Queue::new(waiting_max));
        (Connection(Arc::clone(&shared)), Driver::new(stream, shared))
    }

    /// The reply to one command. The command is executed even if the caller no longer waits.
    ///
    /// # Errors
    /// The server's error; an error of kind `Client` if the connection waits for too many replies, so that nothing was
    /// sent; or the reason why the connection ended.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let receivers = self.0.put(1, |state| state.push_commands(|out| command.write_packed_command(out), 1))?;
        let mut values = self.0.replies(receivers).await?;
        values.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// The reply to one take, which leaves together with the other takes of this turn. A call is not written if the
    /// callers of all its takes have stopped waiting.
    ///
    /// # Errors
    /// The same errors as [`send`](Connection::send) returns.
    pub(crate) async fn send_take(&self, take: &EncodedTake<'_>) -> RedisResult<Value> {
        let receiver = self.0.put(1, |state| state.push_take(take))?;
        self.0.reply(receiver).await?.extract_error()
    }
}

/// For pipelines, and for commands whose replies have other types.
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

    /// No database is selected by this connection itself. The login has done that.
    fn get_db(&self) -> i64 {
        0
    }
}

#[cfg(test)]
mod tests;
