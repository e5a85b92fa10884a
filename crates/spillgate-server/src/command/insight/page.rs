//! What a server says about its limits: the answer of `GET /insight?readings=true`.
//!
//! An answer came over the network, so it can have any text and any number. Its texts are cleaned before they are
//! printed.

use serde::{Deserialize, Serialize};
use spillgate::insight::{Reading, TopCallers};
use spillgate::rules::{LimitDescription, QuotaOptions};

use crate::command::admin::client::Admin;
use crate::command::terminal::Problem;

/// The most characters of an error about an answer. Such an error can repeat text of the answer.
const ERROR_CHARS: usize = 200;

#[derive(Deserialize)]
pub(super) struct Page {
    pub(super) server: Server,
    pub(super) limits: Vec<Limit>,
}

#[derive(Deserialize)]
pub(super) struct Server {
    /// A random number, different for each server process.
    pub(super) id: String,
    /// A text that is the same on all servers that give the same hash to a caller.
    pub(super) key_check: String,
    pub(super) unwatched_limits: u64,
}

/// A limit of one server, or of several.
#[derive(Deserialize)]
pub(super) struct Limit {
    #[serde(flatten)]
    pub(super) name: LimitDescription,
    pub(super) suggested_rules: Option<String>,
    pub(super) reading: Reading,
    /// Whether all requests of the rule share one counter.
    #[serde(default)]
    pub(super) shared: bool,
    /// The values of another entry, which the rule names with `insight_by`.
    #[serde(default)]
    pub(super) by: Option<By>,
}

/// The values of an entry with the most units.
#[derive(Deserialize, Serialize)]
pub(in crate::command) struct By {
    pub(in crate::command) key: String,
    pub(in crate::command) allowed: TopCallers,
    pub(in crate::command) refused: TopCallers,
}

impl By {
    /// Adds the values of the same entry at another server.
    pub(super) fn merge(&mut self, other: &By) {
        self.allowed.merge(&other.allowed);
        self.refused.merge(&other.refused);
    }
}

/// Limits of two servers are the same limit if all of this is equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    rule: (String, String),
    name: Option<String>,
    algorithm: String,
    numbers: (u64, Option<u64>, u64),
    options: QuotaOptions,
    by: Option<String>,
}

impl Limit {
    pub(super) fn identity(&self) -> Identity {
        let name = &self.name;
        Identity {
            rule: (name.domain.clone(), name.rule.clone()),
            name: name.name.clone(),
            algorithm: name.algorithm.clone(),
            numbers: (name.limit, name.window_ns, name.capacity),
            options: name.options.clone(),
            by: self.by.as_ref().map(|by| by.key.clone()),
        }
    }
}

impl Page {
    pub(super) fn parse(admin: &Admin, body: &[u8]) -> Result<Page, Problem> {
        serde_json::from_slice(body).map_err(|error| {
            let error: String = error.to_string().chars().take(ERROR_CHARS).collect();
            let what = format!("the answer of {admin} is no insight: {error}");
            Problem::new(
                what,
                "give --admin the address of spillgate's admin listener, of the same version as this command",
            )
        })
    }
}
