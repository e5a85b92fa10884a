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
    pub(crate) address: ConnectionAddr,
    pub(crate) node: Arc<Node>,
}

/// All known nodes: the owners of slots first, in the order of the slot map's addresses.
pub(crate) struct Nodes {
    slot_map: SlotMap,
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
mod tests {
    use std::sync::Arc;

    use redis::{ConnectionAddr, RedisConnectionInfo, Value};

    use super::{Member, Nodes};
    use crate::cluster::slot_map::{NODES_MAX, SlotMap};
    use crate::connect::connector::Connector;
    use crate::connect::endpoint::{Endpoint, Location};
    use crate::node::Node;
    use crate::settings::Settings;

    fn at(port: i64) -> ConnectionAddr {
        ConnectionAddr::Tcp("a".to_owned(), u16::try_from(port).expect("a port"))
    }

    fn member(address: &ConnectionAddr) -> Member {
        let connector = Arc::new(Connector::new(RedisConnectionInfo::default(), None, &Settings::new("")));
        let endpoint = Endpoint { connector, location: Location::Address(address.clone()) };
        Member { address: address.clone(), node: Arc::new(Node::new(endpoint, &Settings::new(""))) }
    }

    /// A cluster of this many nodes: the n-th one owns slot n and listens on port n + 1.
    fn nodes(count: usize) -> Nodes {
        let range = |i: i64| {
            let primary = Value::Array(vec![Value::BulkString(b"a".to_vec()), Value::Int(1 + i)]);
            Value::Array(vec![Value::Int(i), Value::Int(i), primary])
        };
        let reply = Value::Array((0..count as i64).map(range).collect());
        Nodes::new(SlotMap::read(&reply, &at(1)).expect("a map"), member)
    }

    #[test]
    fn at_most_the_greatest_number_of_nodes_is_kept() {
        let other = member(&at(60_000));
        let full = nodes(NODES_MAX);
        assert_eq!(full.with(&other).all().len(), NODES_MAX);
        let less = nodes(NODES_MAX - 1).with(&other);
        assert!(less.at(&at(60_000)).is_some());
        assert_eq!((less.owners().len(), full.owners().len()), (NODES_MAX - 1, NODES_MAX));
        let owner = |nodes: &Nodes| nodes.owner(3).map(|member| member.address.clone());
        assert_eq!((owner(&less), owner(&full)), (Some(at(4)), Some(at(4))));
        assert!(less.owner(NODES_MAX as u16).is_none(), "a node that owns no slots");
    }
}
