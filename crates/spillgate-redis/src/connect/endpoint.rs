//! Where a server is: at an address, or wherever sentinels say that the primary is.

use std::sync::Arc;

use redis::{ConnectionAddr, Pipeline, Value};

use crate::command::script::Script;
use crate::connect::connector::{Connector, OpenConnection};
use crate::connect::sentinel::Sentinels;
use crate::connect::url::address_text;
use crate::error::{Error, ErrorKind};

/// A server, and how it is found.
pub(crate) struct Endpoint {
    pub(crate) connector: Arc<Connector>,
    pub(crate) location: Location,
}

pub(crate) enum Location {
    Address(ConnectionAddr),
    /// At the primary that sentinels know.
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

    /// The same without the scripts.
    pub(crate) async fn reach(&self) -> Result<OpenConnection, Error> {
        match &self.location {
            Location::Address(address) => self.connector.open(address, &self.connector.user).await,
            Location::Sentinels(sentinels) => self.primary(sentinels).await,
        }
    }

    /// A connection to the primary.
    async fn primary(&self, sentinels: &Sentinels) -> Result<OpenConnection, Error> {
        let connector = &self.connector;
        let address = sentinels.address(connector).await?;
        let mut primary = connector.open(&address, &connector.user).await?;
        let role = primary.query(&redis::cmd("ROLE")).await?;
        // A primary that was frozen does not know what was done without it, and answers when it goes on.
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
