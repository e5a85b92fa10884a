//! The nodes of a cluster, by slot and by address.
//!
//! A slot map contains only addresses. This file adds the connections to each address. If a new slot map contains a
//! known address, the connections to this address are kept.

use std::sync::Arc;

use redis::ConnectionAddr;

use crate::cluster::slot_map::{NODES_MAX, SlotMap};
use crate::node::Node;

/// A node that owns slots, or that a redirection has named.
#[derive(Clone)]
pub(crate) struct Member {
    /// The address of the node, as the slot map or a redirection names it.
    pub(crate) address: ConnectionAddr,
    /// The connections to the node. When the last copy is dropped, the connections end.
    pub(crate) node: Arc<Node>,
}

/// The known nodes of a cluster, and the slot map that names the owners of slots.
pub(crate) struct Nodes {
    slot_map: SlotMap,
    /// The owners of slots, in the order of the slot map's addresses. After them come the nodes that only redirections
    /// have named. When a new slot map does not contain such a node, the node is dropped.
    members: Vec<Member>,
}

impl Nodes {
    /// Returns an empty list of nodes, for the time until the first slot map is read.
    pub(crate) fn unknown() -> Nodes {
        Nodes { slot_map: SlotMap::empty(), members: Vec::new() }
    }

    /// Returns the nodes of this slot map. `member` makes each node from its address.
    pub(crate) fn new(slot_map: SlotMap, member: impl Fn(&ConnectionAddr) -> Member) -> Nodes {
        let members = slot_map.addresses().iter().map(member).collect();
        Nodes { slot_map, members }
    }

    /// Returns whether no slot map has been read yet.
    pub(crate) fn is_unknown(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the node that owns the slot. `None` if the slot map names no owner.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Member> {
        self.members.get(self.slot_map.owner(slot)?)
    }

    pub(crate) fn owners(&self) -> &[Member] {
        &self.members[..self.slot_map.addresses().len()]
    }

    pub(crate) fn all(&self) -> &[Member] {
        &self.members
    }

    pub(crate) fn at(&self, address: &ConnectionAddr) -> Option<&Member> {
        self.members.iter().find(|member| member.address == *address)
    }

    /// Returns a copy of these nodes with `member` at the end. If there are [`NODES_MAX`] nodes already, the copy has
    /// no new member.
    pub(crate) fn with(&self, member: &Member) -> Nodes {
        let members = self.members.iter().chain([member]).take(NODES_MAX);
        Nodes { slot_map: self.slot_map.clone(), members: members.cloned().collect() }
    }
}

#[cfg(test)]
mod tests;
