//! The nodes of a cluster, by slot and by address.
//!
//! The slot map names addresses only; this gives each address its connections, which outlive a change of the map.

use std::sync::Arc;

use redis::ConnectionAddr;

use crate::cluster::slot_map::{NODES_MAX, SlotMap};
use crate::node::Node;

/// A node that owns slots, or that a redirection has named.
#[derive(Clone)]
pub(crate) struct Member {
    /// Its address, as the slot map or a redirection names it.
    pub(crate) address: ConnectionAddr,
    /// Its connections. Dropping the last copy ends them.
    pub(crate) node: Arc<Node>,
}

/// All known nodes: the owners of slots first, in the order of the slot map's addresses.
pub(crate) struct Nodes {
    /// Names the owner of each slot.
    slot_map: SlotMap,
    /// The owners, and after them nodes that only redirections have named. A new slot map drops the latter.
    members: Vec<Member>,
}

impl Nodes {
    /// No nodes: the slot map has not been read yet.
    pub(crate) fn unknown() -> Nodes {
        Nodes { slot_map: SlotMap::empty(), members: Vec::new() }
    }

    /// The nodes of this slot map, each made by `member`.
    pub(crate) fn new(slot_map: SlotMap, member: impl Fn(&ConnectionAddr) -> Member) -> Nodes {
        let members = slot_map.addresses().iter().map(member).collect();
        Nodes { slot_map, members }
    }

    /// Whether the slot map has not been read yet.
    pub(crate) fn is_unknown(&self) -> bool {
        self.members.is_empty()
    }

    /// The node that owns the slot. `None` if the slot map names no owner.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Member> {
        self.members.get(self.slot_map.owner(slot)?)
    }

    /// All nodes that own slots.
    pub(crate) fn owners(&self) -> &[Member] {
        &self.members[..self.slot_map.addresses().len()]
    }

    /// All nodes.
    pub(crate) fn all(&self) -> &[Member] {
        &self.members
    }

    /// The node at this address, if it is known.
    pub(crate) fn at(&self, address: &ConnectionAddr) -> Option<&Member> {
        self.members.iter().find(|member| member.address == *address)
    }

    /// The same nodes and this one, unless there are too many already.
    pub(crate) fn with(&self, member: &Member) -> Nodes {
        let members = self.members.iter().chain([member]).take(NODES_MAX);
        Nodes { slot_map: self.slot_map.clone(), members: members.cloned().collect() }
    }
}

#[cfg(test)]
mod tests;
