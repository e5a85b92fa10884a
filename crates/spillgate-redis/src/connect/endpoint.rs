//! An endpoint: a server at a fixed address, or the primary that sentinels name.
//!
//! The pool connects again and again, and must follow the primary when it changes.

use std::sync::Arc;

use redis::{ConnectionAddr, Pipeline, Value};

use crate::command::script::Script;
use crate::connect::connector::{Connector, OpenConnection};
use crate::connect::sentinel::Sentinels;
use crate::connect::url::address_text;
use crate::error::{Error, ErrorKind};

/// A server and the way to find it.
pub(crate) struct Endpoint {
    pub(crate) connector: Arc<Connector>,
    pub(crate) location: Location,
}

pub(crate) enum Location {
    Address(ConnectionAddr),
    /// The primary that these sentinels name.
    Sentinels(Sentinels),
}

impl Endpoint {
    /// Finds the server, connects, logs in, and loads the scripts.
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

    /// Finds the server, connects and logs in.
    pub(crate) async fn reach(&self) -> Result<OpenConnection, Error> {
        match &self.location {
            Location::Address(address) => self.connector.open(address, &self.connector.user).await,
            Location::Sentinels(sentinels) => self.primary(sentinels).await,
        }
    }

    /// A connection to the primary, after ROLE has confirmed that it is one.
    async fn primary(&self, sentinels: &Sentinels) -> Result<OpenConnection, Error> {
        let connector = &self.connector;
        let address = sentinels.address(connector).await?;
        let mut primary = connector.open(&address, &connector.user).await?;
        let role = primary.query(&redis::cmd("ROLE")).await?;
        // A primary that was paused during a failover still believes that it is the primary. So the sentinels are asked
        // again.
        let is_still_there = sentinels.address(connector).await? == address;
        match role {
            Value::Array(role) if is_still_there && role.first().is_some_and(is_primary) => {
                sentinels.found(address);
                Ok(primary)
            }
            _ => Err(Error::new(ErrorKind::ReadOnly, format!("{} is no primary", address_text(&address)))),
        }
    }
}

fn is_primary(role: &Value) -> bool {
    matches!(role, Value::BulkString(role) if role == b"master")
}
