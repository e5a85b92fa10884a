//! Where a server is: at an address, or wherever sentinels say that the primary is.

use std::sync::Arc;

use redis::{ConnectionAddr, Pipeline, Value};

use crate::command::script::Script;
use crate::connect::connector::{Access, Connected};
use crate::connect::sentinel::Sentinels;
use crate::connect::url::shown;
use crate::error::{Failed, Failure};

/// A server, and how it is found.
pub(crate) struct Target {
    pub(crate) access: Arc<Access>,
    pub(crate) location: Location,
}

pub(crate) enum Location {
    At(ConnectionAddr),
    /// At the primary that sentinels know.
    ToldBy(Sentinels),
}

impl Target {
    /// Finds the server, connects, logs in, and loads the scripts.
    pub(crate) async fn connect(&self) -> Result<Connected, Failed> {
        let mut connected = self.reach().await?;
        if self.access.scripts {
            let mut all = Pipeline::new();
            for script in Script::ALL {
                all.cmd("SCRIPT").arg("LOAD").arg(script.source).ignore();
            }
            connected.ask_all::<()>(&all).await?;
        }
        Ok(connected)
    }

    /// The same without the scripts.
    pub(crate) async fn reach(&self) -> Result<Connected, Failed> {
        match &self.location {
            Location::At(address) => self.access.open(address, &self.access.user).await,
            Location::ToldBy(sentinels) => self.primary(sentinels).await,
        }
    }

    /// A connection to the primary.
    async fn primary(&self, sentinels: &Sentinels) -> Result<Connected, Failed> {
        let access = &self.access;
        let address = sentinels.address(access).await?;
        let mut primary = access.open(&address, &access.user).await?;
        let role = primary.ask(&redis::cmd("ROLE")).await?;
        // A primary that was frozen does not know what was done without it, and answers when it goes on.
        let is_still_there = sentinels.address(access).await? == address;
        match role {
            Value::Array(role) if is_still_there && role.first().is_some_and(is_primary) => {
                sentinels.found(address);
                Ok(primary)
            }
            _ => Err(Failed::new(Failure::Readonly, format!("{} is no primary", shown(&address)))),
        }
    }
}

fn is_primary(role: &Value) -> bool {
    matches!(role, Value::BulkString(role) if role == b"master")
}
