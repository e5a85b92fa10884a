//! The slot map: which node owns which slots, as CLUSTER SLOTS reports it.
//!
//! It holds addresses only. [`nodes`](super::nodes) adds the connections, so the map can be read and tested without
//! any.
//!
//! A reply to CLUSTER SLOTS has one element for each range of slots: the first slot, the last slot, the primary, and its
//! replicas. The replicas are ignored here.
//!
//! ```text
//! > CLUSTER SLOTS
//! < [ 0,    8191,  ["10.0.0.7", 6379, "a3f1.."], ["10.0.0.8", 6379, "77c0.."] ]
//! < [ 8192, 16383, ["10.0.0.9", 6379, "05be.."] ]
//! ```
//!
//! This becomes the addresses `10.0.0.7:6379` and `10.0.0.9:6379`, and a table of 16,384 positions: 0 for the first
//! 8,192 slots, and 1 for the others.

use std::sync::Arc;

use redis::{ConnectionAddr, Value};

use crate::command::key::SLOTS;
use crate::node::redirection::at;

/// The most nodes that are kept. Redis recommends no larger cluster.
pub(crate) const NODES_MAX: usize = 1000;
/// The position that means "no node".
const NO_NODE: u16 = u16::MAX;

/// The addresses of the nodes that own slots, and for each slot the position of its owner among them.
#[derive(Clone)]
pub(crate) struct SlotMap {
    /// Each owner once, in the order of the reply.
    addresses: Arc<[ConnectionAddr]>,
    /// For each slot a position in `addresses`, or [`NO_NODE`].
    slots: Arc<[u16]>,
}

impl SlotMap {
    /// A map without owners, before the first one was read.
    pub(crate) fn empty() -> SlotMap {
        SlotMap { addresses: Arc::new([]), slots: Arc::new([NO_NODE; SLOTS]) }
    }

    /// The position of the slot's owner in [`addresses`](SlotMap::addresses).
    pub(crate) fn owner(&self, slot: u16) -> Option<usize> {
        let position = usize::from(*self.slots.get(usize::from(slot))?);
        (position < self.addresses.len()).then_some(position)
    }

    /// The addresses of all nodes that own slots.
    pub(crate) fn addresses(&self) -> &[ConnectionAddr] {
        &self.addresses
    }

    /// The map in the reply of the node at `sender` to CLUSTER SLOTS. `None` if the reply is invalid or names no owner.
    pub(crate) fn read(reply: &Value, sender: &ConnectionAddr) -> Option<SlotMap> {
        let (mut addresses, mut slots): (Vec<ConnectionAddr>, _) = (Vec::new(), [NO_NODE; SLOTS]);
        for range in array(reply)? {
            let [Value::Int(first), Value::Int(last), primary, ..] = array(range)? else { return None };
            // A node that is about to leave may have no port.
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

/// The elements of an array; `None` for any other value.
fn array(value: &Value) -> Option<&[Value]> {
    if let Value::Array(values) = value { Some(values) } else { None }
}

/// Host and port of a node in CLUSTER SLOTS. The host is `?` if the node should have a host name and has none. Then its
/// IP address is in the list of further details.
pub(crate) fn address(node: &Value, sender: &ConnectionAddr) -> Option<ConnectionAddr> {
    let [host, Value::Int(port), besides @ ..] = array(node)? else { return None };
    let host = match text(host)? {
        "?" => ip(besides.get(1)?)?,
        host => host,
    };
    at(host, u16::try_from(*port).ok().filter(|port| *port > 0)?, sender)
}

/// The value after the name `ip`.
fn ip(names_and_values: &Value) -> Option<&str> {
    let mut pairs = array(names_and_values)?.chunks_exact(2);
    pairs.find_map(|pair| if text(&pair[0])? == "ip" { text(&pair[1]) } else { None })
}

/// A text in either form of RESP. A value that does not exist is an empty text, as for a node without an address.
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
