//! One connection: whatever is asked between two turns of its driver goes out together, and answers come back in order.

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

/// What asks; its [`Driver`] has to be polled as long as answers are wanted.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Queue>);

impl Connection {
    /// On a stream that nobody has written to, for at most so many answers at once.
    pub(crate) fn new<S>(stream: S, waiting_max: usize) -> (Connection, Driver<S>) {
        let shared = Arc::new(Queue::new(waiting_max));
        (Connection(Arc::clone(&shared)), Driver::new(stream, shared))
    }

    /// The answer to one command, which is done also if nobody waits for that.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let asked = self.0.put(1, |state| state.push_commands(|out| command.write_packed_command(out), 1))?;
        let mut values = self.0.answers(asked).await?;
        values.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// The answer to one take, which goes out with all others of this turn.
    pub(crate) async fn send_take(&self, take: &EncodedTake<'_>) -> RedisResult<Value> {
        let asked = self.0.put(1, |state| state.push_take(take))?;
        self.0.answer(asked).await?.extract_error()
    }
}

/// For commands with answers of other types, and for pipelines.
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
            let answers = offset + count;
            let write = |out: &mut Vec<u8>| out.extend(commands.get_packed_pipeline());
            let asked = self.0.put(answers, |state| state.push_commands(write, answers))?;
            let mut values = self.0.answers(asked).await?;
            Ok(values.drain(offset..).collect())
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[cfg(test)]
mod tests;
