//! The limits of several servers as one list.
//!
//! No server knows the others, so their readings are merged here. Two limits of one server are never merged, even if
//! they look the same.

use std::collections::BTreeMap;

use super::page::{Identity, Limit, Page};
use crate::command::admin::client::Admin;

/// The limits of all servers that have answered.
#[derive(Default)]
pub(super) struct Fleet {
    pub(super) limits: Vec<Limit>,
    /// The index of each limit in `limits`. The number distinguishes the limits of one server that have the same
    /// identity.
    known: BTreeMap<(Identity, usize), usize>,
    servers: Vec<Answered>,
}

/// A server that has answered.
struct Answered {
    admin: String,
    id: String,
    key_check: String,
    unwatched_limits: u64,
}

impl Fleet {
    /// Adds the answer of a server. A server counts only once. If it has answered already, at another address, this
    /// answer is not added, and the function returns that address.
    pub(super) fn add(&mut self, admin: &Admin, page: Page) -> Result<(), String> {
        if let Some(same) = self.servers.iter().find(|server| server.id == page.server.id) {
            return Err(same.admin.clone());
        }
        let mut counts: BTreeMap<Identity, usize> = BTreeMap::new();
        for limit in page.limits {
            let count = counts.entry(limit.identity()).or_default();
            let key = (limit.identity(), *count);
            *count += 1;
            match self.known.get(&key) {
                Some(index) => {
                    let known = &mut self.limits[*index];
                    known.reading.merge(&limit.reading);
                    // Both have the same key, which is a part of the identity.
                    if let (Some(known), Some(by)) = (&mut known.by, &limit.by) {
                        known.merge(by);
                    }
                    // The suggested rules are those of one server, and do not fit several servers together.
                    known.suggested_rules = None;
                }
                None => {
                    self.known.insert(key, self.limits.len());
                    self.limits.push(limit);
                }
            }
        }
        let (id, key_check) = (page.server.id, page.server.key_check);
        let unwatched_limits = page.server.unwatched_limits;
        self.servers.push(Answered { admin: admin.to_string(), id, key_check, unwatched_limits });
        Ok(())
    }

    /// Returns the number of servers that have answered.
    pub(super) const fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Returns whether all servers give the same hash to a caller. If not, a caller of two servers counts as two
    /// callers.
    pub(super) fn callers_match(&self) -> bool {
        self.servers.windows(2).all(|two| two[0].key_check == two[1].key_check)
    }

    /// Returns the highest number of unwatched limits that any of the servers has.
    pub(super) fn unwatched_limits(&self) -> u64 {
        self.servers.iter().map(|server| server.unwatched_limits).max().unwrap_or(0)
    }
}
