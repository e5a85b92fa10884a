//! Asks the Redis servers how full they are, and whether they evict keys.
//!
//! An evicted key is a count that begins again, and nothing else shows that: the request is decided, and no error comes.

use std::time::Duration;

use futures_util::future::join_all;
use redis::{cmd, from_redis_value};
use spillgate_core::{NodeMemory, StoreErrorKind};
use tokio::time::timeout;

use crate::connection::Connection;
use crate::doctor::field;
use crate::error::Error;
use crate::store::RedisStore;

impl RedisStore {
    /// Returns the memory of the Redis servers to which the store has a connection now, and which answer within this time.
    /// The user needs the right to call INFO. Call this function from time to time, not for each request.
    ///
    /// # Errors
    /// If no server answers, the reason why one of them did not: [`NoPermission`](StoreErrorKind::NoPermission) without
    /// this right.
    pub async fn memory(&self, within: Duration) -> Result<Vec<NodeMemory>, Error> {
        let connections = self.connections();
        let asked = connections.iter().map(async |(address, connection)| {
            let late = |_| Err(Error::new(StoreErrorKind::Timeout, "no answer to INFO before the deadline"));
            timeout(within, info(address, connection)).await.unwrap_or_else(late)
        });
        // A node of a cluster that is slow or down must not hide the memory of the others.
        let (nodes, failed): (Vec<_>, Vec<_>) = join_all(asked).await.into_iter().partition(Result::is_ok);
        match failed.into_iter().next() {
            Some(Err(error)) if nodes.is_empty() => Err(error),
            _ => Ok(nodes.into_iter().flatten().collect()),
        }
    }
}

async fn info(address: &str, connection: &Connection) -> Result<NodeMemory, Error> {
    let reply = connection.send(cmd("INFO").arg("memory").arg("stats")).await.map_err(Error::of_redis)?;
    let broken = |error: redis::ParsingError| Error::new(StoreErrorKind::Garbled, error.to_string());
    let text: String = from_redis_value(reply).map_err(broken)?;
    let number = |name| field(&text, name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let mut node = NodeMemory::new(address);
    node.used_bytes = number("used_memory");
    node.max_bytes = number("maxmemory");
    node.evicted_keys = number("evicted_keys");
    Ok(node)
}
