//! One node: sends commands to a single server, within deadlines and behind a circuit breaker.
//!
//! A cluster is many of these, every other store is one.
//!
//! A command passes through the breaker, waits for a connection, and waits for its reply. Each outcome says something
//! about the server:
//!
//! | outcome | error | effect on the breaker |
//! |---|---|---|
//! | the breaker is open | `CircuitOpen` | none |
//! | no connection before the deadline | `NotSent`, or the last error | a failure, if the command had about the whole timeout |
//! | no time left to write | `NotSent` | none |
//! | no reply before the deadline | `Timeout` | a failure, if the command had about the whole timeout |
//! | READONLY, LOADING, BUSY, CLUSTERDOWN and others of their kinds | that kind | opens it at once |
//! | the connection ended | `Disconnected` | none; the pool opens it if it cannot connect again and has no other connection |
//! | the connection waits for too many replies | `Overloaded` | none |
//! | any other reply, also an error | none, or the kind of the reply | closes it |

pub(crate) mod breaker;
pub(crate) mod jitter;
mod pool;
pub(crate) mod redirection;
pub(crate) mod send;
pub(crate) mod status;

use std::sync::Arc;

use spillgate_core::Circuit;
use tokio::time::Instant;

use crate::command::Command;
use crate::connect::endpoint::{Endpoint, Location};
use crate::connect::url::address_text;
use crate::deadline;
use crate::error::{self, Error, ErrorKind};
use crate::node::pool::Pool;
use crate::node::send::{NodeReply, reply};
use crate::node::status::NodeStatus;
use crate::settings::Settings;

/// Decides requests whose states are all on one server.
pub(crate) struct Node {
    /// The tasks of the connections hold the pool too, so dropping the node ends the pool explicitly.
    pool: Arc<Pool>,
}

impl Node {
    /// A node without connections. They are made when it is first used.
    pub(crate) fn new(endpoint: Endpoint, settings: &Settings) -> Node {
        Node { pool: Arc::new(Pool::new(endpoint, settings)) }
    }

    /// The reply to the command before the deadline, or an error.
    ///
    /// The command is written once. There are two exceptions, in which the server itself says that it did nothing: it
    /// lacks the script, or some of the slots. `asking` says that another node has redirected the command.
    pub(crate) async fn send(
        &self,
        call: &Command<'_, '_, '_>,
        asking: bool,
        deadline: Instant,
    ) -> Result<NodeReply, Error> {
        if !self.admits() {
            return Err(Error::new(ErrorKind::CircuitOpen, "the circuit is open, so the request was not sent"));
        }
        let live = self.pool.live(deadline).await?;
        let sent_at = Instant::now();
        // A command that is written is executed even if no caller waits for the reply. So it is not written without
        // time left.
        if sent_at >= deadline {
            self.pool.breaker.inconclusive();
            return Err(Error::new(ErrorKind::NotSent, "no time was left to send the request"));
        }
        let Some(reply) = deadline::wait_until(deadline, reply(&live, call, asking)).await else {
            live.suspect();
            self.pool.no_reply(sent_at);
            return Err(Error::new(ErrorKind::Timeout, "no answer before the deadline"));
        };
        match &reply {
            Err(error) if error::means_node_is_down(error.kind) => {
                self.pool.is_down(error);
                if error.kind == ErrorKind::ReadOnly {
                    live.abandon();
                }
            }
            // The pool notices this by itself.
            Err(error) if error.kind == ErrorKind::Disconnected => {}
            // The connection has too many commands without a reply.
            Err(error) if error.kind == ErrorKind::Overloaded => {
                live.suspect();
                self.pool.breaker.inconclusive();
            }
            _ => self.pool.replied(),
        }
        reply
    }

    /// Whether the breaker lets a request pass. The clock is not read while the breaker is closed.
    fn admits(&self) -> bool {
        let breaker = &self.pool.breaker;
        breaker.circuit() == Circuit::Closed || breaker.admits(self.pool.at_ns(Instant::now()))
    }

    /// Waits for a connection until the deadline.
    ///
    /// # Errors
    /// Why there is no connection: the error of the last attempt if there was one.
    pub(crate) async fn wait_connected(&self, deadline: Instant) -> Result<(), Error> {
        self.pool.wait_connected(deadline).await.map_err(|error| self.last_error().unwrap_or(error))
    }

    /// Why the server is down, if it is: the error of the last attempt to connect, or the error that opened the circuit.
    pub(crate) fn last_error(&self) -> Option<Error> {
        self.pool.last_error()
    }

    /// The state of the breaker.
    pub(crate) fn circuit(&self) -> Circuit {
        self.pool.breaker.circuit()
    }

    /// Where the server was found last, and whether there is a connection.
    pub(crate) fn node(&self) -> NodeStatus {
        let address = match &self.pool.endpoint.location {
            Location::Address(address) => address_text(address),
            Location::Sentinels(sentinels) => {
                self.pool.found().map_or_else(|| sentinels.name.clone(), |address| address_text(&address))
            }
        };
        NodeStatus { address, is_connected: self.pool.is_live() }
    }
}

/// Ends all connections of the node, and the tasks that would make them again.
impl Drop for Node {
    fn drop(&mut self) {
        self.pool.end();
    }
}

#[cfg(test)]
mod tests;
