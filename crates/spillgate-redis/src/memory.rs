//! Asks the Redis servers how full they are, and whether they evict keys.
//!
//! An evicted key is a count that begins again, and nothing else shows that: the request is decided, and no error comes.

use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{cmd, from_redis_value};
use spillgate_core::{StoreErrorKind, StoreMemory};
use tokio::time::timeout;

use crate::connection::Connection;
use crate::doctor::field;
use crate::error::Error;
use crate::store::RedisStore;

impl RedisStore {
    /// Returns the memory of the Redis servers to which the store has a connection now. The user needs the right to call
    /// INFO. Call this function from time to time, not for each request.
    ///
    /// # Errors
    /// [`NoPermission`](StoreErrorKind::NoPermission) without this right, or the reason why a server did not answer.
    pub async fn memory(&self, within: Duration) -> Result<StoreMemory, Error> {
        let connections = self.connections();
        if connections.is_empty() {
            return Err(Error::new(StoreErrorKind::NotSent, "no connection"));
        }
        let asked = try_join_all(connections.iter().map(info));
        let late = || Error::new(StoreErrorKind::Timeout, "no answer to INFO before the deadline");
        let infos = timeout(within, asked).await.map_err(|_| late())??;
        let mut all = StoreMemory::default();
        for text in infos {
            let number = |name| field(&text, name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            let (used, max) = (number("used_memory"), number("maxmemory"));
            // A server without a limit is never full.
            let is_fuller = match (max, all.max_bytes) {
                (0, 0) => used > all.used_bytes,
                (0, _) => false,
                (_, 0) => true,
                (max, other) => u128::from(used) * u128::from(other) > u128::from(all.used_bytes) * u128::from(max),
            };
            if is_fuller {
                (all.used_bytes, all.max_bytes) = (used, max);
            }
            all.evicted_keys += number("evicted_keys");
        }
        Ok(all)
    }
}

async fn info(connection: &Connection) -> Result<String, Error> {
    let reply = connection.send(cmd("INFO").arg("memory").arg("stats")).await.map_err(Error::of_redis)?;
    from_redis_value(reply).map_err(|error| Error::new(StoreErrorKind::Garbled, error.to_string()))
}
