//! An endpoint: a Redis server at a fixed address, or the primary that sentinels name.
//!
//! If there are sentinels, the endpoint asks them again for each new connection. So after a failover the pool connects
//! to the new primary.
//!
//! A primary that sentinels name is checked before it is used, because a failover may have happened since the sentinels
//! replied:
//!
//! ```text
//! sentinels: which address is the primary "main"?   10.0.0.7:6379
//! 10.0.0.7:6379 > ROLE
//! 10.0.0.7:6379 < "master" ..
//! sentinels: which address now?                     10.0.0.7:6379, so the connection is used
//! ```

use std::sync::Arc;

use redis::{ConnectionAddr, Pipeline, Value};
use spillgate_core::StoreErrorKind;

use crate::command::script::Script;
use crate::connect::connector::{Connector, OpenConnection};
use crate::connect::sentinel::Sentinels;
use crate::connect::url::address_text;
use crate::error::Error;

pub(crate) struct Endpoint {
    /// Makes the connections, and has the users that log in.
    pub(crate) connector: Arc<Connector>,
    pub(crate) location: Location,
}

/// Where a Redis server is.
pub(crate) enum Location {
    /// The Redis server at this address, whatever its role is.
    Address(ConnectionAddr),
    /// The primary that these sentinels name.
    Sentinels(Sentinels),
}

impl Endpoint {
    /// Finds the Redis server, connects and logs in. Also loads the scripts, if the settings use scripts: without
    /// loaded scripts, the first request would get NOSCRIPT.
    ///
    /// # Errors
    /// The same errors as [`reach`](Endpoint::reach) returns, and those of SCRIPT LOAD.
    pub(crate) async fn connect(&self) -> Result<OpenConnection, Error> {
        let mut connected = self.reach().await?;
        if self.connector.scripts {
            let mut all = Pipeline::new();
            for script in Script::ALL {
                all.cmd("SCRIPT").arg("LOAD").arg(script.source).ignore();
            }
            connected.query_all::<()>(&all).await?;
        }
        Ok(connected)
    }

    /// Reads the logins and certificates again, finds the Redis server, connects and logs in. The scripts are not loaded. The
    /// [doctor](crate::doctor) calls this function, and loads the scripts by itself.
    ///
    /// # Errors
    /// An error if Redis or the sentinels cannot be reached, or if the login fails.
    /// [`ReadOnly`](StoreErrorKind::ReadOnly) if the sentinels name a Redis server that is not a primary, name another
    /// server when they are asked again, or missed a failover.
    pub(crate) async fn reach(&self) -> Result<OpenConnection, Error> {
        self.connector.secrets.reread().await;
        match &self.location {
            Location::Address(address) => self.connector.open(address).await,
            Location::Sentinels(sentinels) => self.primary(sentinels).await,
        }
    }

    /// Returns the address of the primary that the sentinels named last. `None` if the URL names no sentinels, or if no
    /// sentinel has named a primary yet.
    pub(crate) fn primary_address(&self) -> Option<String> {
        match &self.location {
            Location::Address(_) => None,
            Location::Sentinels(sentinels) => sentinels.named().map(|address| address_text(&address)),
        }
    }

    /// Adds to an error of the primary its address, because the URL has only the addresses of the sentinels.
    pub(crate) fn named(&self, error: Error) -> Error {
        match self.primary_address() {
            Some(address) => error.at(&format!("the primary {address}")),
            None => error,
        }
    }

    /// Returns a connection to the primary, after ROLE and a second reply of the sentinels have confirmed the primary.
    async fn primary(&self, sentinels: &Sentinels) -> Result<OpenConnection, Error> {
        let connector = &self.connector;
        let address = sentinels.address(connector).await?;
        let mut primary = connector.open(&address).await.map_err(|error| self.named(error))?;
        let role = primary.query(&redis::cmd("ROLE")).await.map_err(|error| self.named(error))?;
        // A primary that was paused during a failover still replies that it is the primary. So the sentinels are asked
        // again.
        let is_still_there = sentinels.address(connector).await? == address;
        match role {
            Value::Array(role) if is_still_there && role.first().is_some_and(is_primary) => {
                sentinels.found(address);
                Ok(primary)
            }
            _ => Err(Error::new(StoreErrorKind::ReadOnly, format!("{} is no primary", address_text(&address)))),
        }
    }
}

/// Returns whether this is the role of a primary. `role` is the first element of the reply to ROLE.
fn is_primary(role: &Value) -> bool {
    matches!(role, Value::BulkString(role) if role == b"master")
}
