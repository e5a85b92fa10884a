//! One node: sends commands to a single Redis server, within deadlines and behind a circuit breaker.
//!
//! A cluster has many nodes. Every other store has one node.
//!
//! A command passes through the circuit breaker, waits for a connection, and waits for its reply. These are the
//! possible outcomes:
//!
//! | outcome | error | effect on the breaker |
//! |---|---|---|
//! | the breaker is open | `CircuitOpen` | none |
//! | no connection before the deadline | `NotSent`, or the last error | a failure if the wait took about the whole timeout |
//! | no time left to write | `NotSent` | none |
//! | no reply before the deadline | `Timeout` | a failure if the wait took about the whole timeout |
//! | READONLY, LOADING, BUSY, CLUSTERDOWN, or another error of these kinds | the kind | opens it at once |
//! | the connection ended | `Disconnected` | none at first; opens it if the pool has no connection and cannot connect again |
//! | the connection waits for too many replies | `Overloaded` | none |
//! | NOAUTH: the connection is no longer logged in, and is made again | `NoPermission` | closes it |
//! | any other reply | none, or the kind if the reply is an error | closes it |
//!
//! While the breaker is open, the first request after the pause tries the node with a probe: a take that belongs to
//! nobody. Only after a reply to the probe, the request itself is sent.
//!
//! A probe that had too little time, or that fails as `Overloaded`, says nothing about the node. The breaker is then
//! open again, and the next request is the probe.

pub(crate) mod breaker;
pub(crate) mod jitter;
pub(crate) mod pool;
pub(crate) mod redirection;
pub(crate) mod send;
pub(crate) mod status;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use spillgate_core::{Anchor, Binding, Circuit, Hit, Op, Quota, StoreErrorKind};
use tokio::time::Instant;

use crate::command::{Command, Encoder};
use crate::connect::endpoint::{Endpoint, Location};
use crate::connect::url::address_text;
use crate::connection::Connection;
use crate::connection::reply::{Caller, ReplySlot};
use crate::deadline;
use crate::error::{self, Error};
use crate::node::pool::Pool;
use crate::node::send::{NodeReply, reply};
use crate::node::status::NodeStatus;
use crate::settings::Settings;

/// Decides requests whose states are all on one node.
pub(crate) struct Node {
    /// The tasks of the connections own the pool too. So the pool would outlive the node if `drop` did not end the
    /// pool.
    pool: Arc<Pool>,
    /// Encodes the probes.
    encoder: Encoder,
    probe: Quota,
}

/// Returns the quota of probes. Its state soon expires. Every store can serve it, also one without scripts.
pub(crate) fn probe_quota() -> Quota {
    let quota = Quota::fixed_window(1, Duration::from_millis(1)).anchor(Anchor::FirstHit).build();
    quota.expect("invariant: a millisecond is a valid window")
}

impl Node {
    /// Returns a node without connections. Requests and [`wait_connected`](Node::wait_connected) make the connections.
    pub(crate) fn new(endpoint: Endpoint, settings: &Settings) -> Node {
        let pool = Arc::new(Pool::new(endpoint, settings));
        Node { pool, encoder: Encoder::new(settings), probe: probe_quota() }
    }

    /// Sends the command and returns its reply, or an error if no reply comes before the deadline. The reply to a script
    /// comes through `slot`, so that its owner can learn of a reply that comes later.
    ///
    /// The command is written again in two cases: the script is missing, or the keys of one call are in several slots.
    /// In both cases the node has replied that it did nothing. `asking` is true if another node has redirected the
    /// command with ASK.
    pub(crate) fn send(
        &self,
        call: &Command<'_, '_, '_>,
        slot: &Arc<ReplySlot>,
        asking: bool,
        deadline: Instant,
    ) -> impl Future<Output = Result<NodeReply, Error>> + Send {
        self.send_or_probe(call, slot, (asking, false), deadline)
    }

    /// Tries a node whose breaker is open, if its time has come, with a take from a key that no request uses. A take of
    /// the request would stay taken if the node were still too slow.
    ///
    /// # Errors
    /// The breaker is open, or the node still does not serve.
    fn try_again<'a>(
        &'a self,
        call: &'a Command<'_, '_, '_>,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>> {
        // Few requests get here, so the box keeps the future of all others small.
        Box::pin(async move {
            if !self.pool.breaker.admits(self.pool.at_ns(Instant::now())) {
                return Err(Error::new(
                    StoreErrorKind::CircuitOpen,
                    "the circuit is open, so the request was not sent",
                ));
            }
            let Some(key) = call.probe_key() else { return Ok(()) };
            let hits = [Hit::new(key, &self.probe, Op::take(1), Binding::Enforce)];
            let probe = self.encoder.encode(None, &hits)?;
            self.send_or_probe(&probe, &Caller::default().0, (false, true), deadline).await.map(drop)
        })
    }

    /// Sends a command as [`send`](Node::send) does. A command that is itself a probe is sent while the breaker is open.
    async fn send_or_probe(
        &self,
        call: &Command<'_, '_, '_>,
        slot: &Arc<ReplySlot>,
        (asking, is_probe): (bool, bool),
        deadline: Instant,
    ) -> Result<NodeReply, Error> {
        if self.circuit() != Circuit::Closed && !is_probe {
            self.try_again(call, deadline).await?;
        }
        let live = self.pool.live(deadline).await?;
        let sent_at = Instant::now();
        // A command that is written is executed even if no caller waits for the reply. So the command is not written
        // after the deadline.
        if sent_at >= deadline {
            self.pool.breaker.inconclusive();
            return Err(Error::new(StoreErrorKind::NotSent, "no time was left to send the request"));
        }
        let Some(reply) = deadline::wait_until(deadline, pin!(reply(&live, call, slot, asking))).await else {
            live.suspect();
            self.pool.no_reply(sent_at);
            return Err(Error::new(StoreErrorKind::Timeout, "no answer before the deadline"));
        };
        match &reply {
            Err(error) if error::means_node_is_down(error.kind) => {
                self.pool.is_down(error);
                if error.kind == StoreErrorKind::ReadOnly {
                    live.abandon();
                }
            }
            // The task of the connection notices by itself that the connection has ended.
            Err(error) if error.kind == StoreErrorKind::Disconnected => {}
            // The connection has too many commands without a reply.
            Err(error) if error.kind == StoreErrorKind::Overloaded => {
                live.suspect();
                self.pool.breaker.inconclusive();
            }
            // The login of this connection is no longer valid. A new connection logs in with the current password.
            Err(error) if error.asks_for_login() => {
                self.pool.replied();
                live.abandon();
            }
            _ => self.pool.replied(),
        }
        reply
    }

    /// Returns a connection that is ready, if there is one.
    pub(crate) fn connection(&self) -> Option<Connection> {
        self.pool.any_live().map(|live| live.connection.clone())
    }

    /// Returns the address of the node and a connection that is ready, if there is one.
    pub(crate) fn with_address(&self) -> Option<(String, Connection)> {
        self.pool.any_live().map(|live| (address_text(&live.address), live.connection.clone()))
    }

    /// Waits for a connection until the deadline.
    ///
    /// # Errors
    /// There is no connection at the deadline. The error is the [last error](Node::last_error), if there is one.
    pub(crate) async fn wait_connected(&self, deadline: Instant) -> Result<(), Error> {
        let connected = self.pool.wait_connected(deadline).await;
        connected.map_err(|error| self.last_error().unwrap_or_else(|| self.named(error)))
    }

    /// See [`Endpoint::named`].
    pub(crate) fn named(&self, error: Error) -> Error {
        self.pool.endpoint.named(error)
    }

    /// See [`Endpoint::primary_address`].
    pub(crate) fn primary_address(&self) -> Option<String> {
        self.pool.endpoint.primary_address()
    }

    /// See [`Pool::last_error`].
    pub(crate) fn last_error(&self) -> Option<Error> {
        self.pool.last_error()
    }

    pub(crate) fn circuit(&self) -> Circuit {
        self.pool.breaker.circuit()
    }

    /// Returns the last known address of the node, or the name of a primary that was never found. Also returns whether
    /// there is a connection.
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
