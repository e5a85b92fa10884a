//! The slot map: which node owns which slots, as CLUSTER SLOTS reports it.
//!
//! The slot map contains only addresses. [`nodes`](super::nodes) adds the connections, so a slot map can be read and
//! tested without a connection.
//!
//! A reply to CLUSTER SLOTS has one element for each range of slots. The element has the first slot, the last slot, the
//! primary, and its replicas. The slot map ignores the replicas.
//!
//! ```text
//! > CLUSTER SLOTS
//! < [ 0,    8191,  ["10.0.0.7", 6379, "a3f1.."], ["10.0.0.8", 6379, "77c0.."] ]
//! < [ 8192, 16383, ["10.0.0.9", 6379, "05be.."] ]
//! ```
//!
//! This reply becomes the two addresses `10.0.0.7:6379` and `10.0.0.9:6379`, and a table with one position for each of
//! the 16,384 slots. The position says which address owns the slot: 0 for the first 8,192 slots, and 1 for the others.

use std::sync::Arc;

use redis::{ConnectionAddr, Value};

use crate::command::key::SLOTS;
use crate::node::redirection::at;

/// A slot map can have at most this many nodes. Redis recommends no larger cluster.
pub(crate) const NODES_MAX: usize = 1000;
/// This position means that no node owns the slot.
const NO_NODE: u16 = u16::MAX;

/// The addresses of the nodes that own slots, and the owner of each slot.
#[derive(Clone)]
pub(crate) struct SlotMap {
    /// Each owner once, in the order of the reply.
    addresses: Arc<[ConnectionAddr]>,
    /// For each slot a position in `addresses`, or [`NO_NODE`].
    slots: Arc<[u16]>,
}

impl SlotMap {
    /// Returns a map without owners, for the time until the first map is read.
    pub(crate) fn empty() -> SlotMap {
        SlotMap { addresses: Arc::new([]), slots: Arc::new([NO_NODE; SLOTS]) }
    }

    /// Returns the position of the slot's owner in [`addresses`](SlotMap::addresses). `None` if no node owns the slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<usize> {
        let position = usize::from(*self.slots.get(usize::from(slot))?);
        (position < self.addresses.len()).then_some(position)
    }

    pub(crate) fn addresses(&self) -> &[ConnectionAddr] {
        &self.addresses
    }

    /// Reads the slot map from a reply to CLUSTER SLOTS. `sender` is the address of the node that replied. The result
    /// is `None` if the reply is invalid or names no owner.
    pub(crate) fn read(reply: &Value, sender: &ConnectionAddr) -> Option<SlotMap> {
        let (mut addresses, mut slots): (Vec<ConnectionAddr>, _) = (Vec::new(), [NO_NODE; SLOTS]);
        for range in array(reply)? {
            let [Value::Int(first), Value::Int(last), primary, ..] = array(range)? else { return None };
            // A node that is about to leave the cluster can have no port. Its slots then get no owner.
            let Some(address) = address(primary, sender) else { continue };
            let known = addresses.iter().position(|known| *known == address);
            let position = known.unwrap_or(addresses.len());
            if known.is_none() {
                addresses.push(address);
            }
            let position = u16::try_from(position).ok().filter(|position| usize::from(*position) < NODES_MAX)?;
            slots.get_mut(usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?)?.fill(position);
        }
        let is_empty = addresses.is_empty();
        (!is_empty).then(|| SlotMap { addresses: addresses.into(), slots: Arc::new(slots) })
    }
}

fn array(value: &Value) -> Option<&[Value]> {
    if let Value::Array(values) = value { Some(values) } else { None }
}

/// Returns the host and port of a node in a reply to CLUSTER SLOTS. An empty host means the host of `sender`, the node
/// that replied. The host `?` means that the cluster uses host names and this node has none. Its IP address is then in
/// a list that follows the port and the id of the node.
pub(crate) fn address(node: &Value, sender: &ConnectionAddr) -> Option<ConnectionAddr> {
    let [host, Value::Int(port), besides @ ..] = array(node)? else { return None };
    let host = match text(host)? {
        "?" => ip(besides.get(1)?)?,
        host => host,
    };
    at(host, u16::try_from(*port).ok().filter(|port| *port > 0)?, sender)
}

/// Returns the value of `ip` in a list of names and values.
fn ip(names_and_values: &Value) -> Option<&str> {
    let mut pairs = array(names_and_values)?.chunks_exact(2);
    pairs.find_map(|pair| if text(&pair[0])? == "ip" { text(&pair[1]) } else { None })
}

/// Returns the text of a bulk string or a simple string. A null value becomes an empty text, because the host of a node
/// without an address is a null value.
fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Nil => Some(""),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
