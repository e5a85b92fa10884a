//! Tests of the nodes of a slot map.

use std::sync::Arc;

use redis::{ConnectionAddr, RedisConnectionInfo, Value};

use super::{Member, Nodes};
use crate::cluster::slot_map::{NODES_MAX, SlotMap};
use crate::connect::connector::Connector;
use crate::connect::endpoint::{Endpoint, Location};
use crate::node::Node;
use crate::settings::Settings;

fn at(port: i64) -> ConnectionAddr {
    ConnectionAddr::Tcp("a".to_owned(), u16::try_from(port).expect("the number is a port"))
}

fn member(address: &ConnectionAddr) -> Member {
    let connector = Arc::new(Connector::new(RedisConnectionInfo::default(), None, &Settings::new("")));
    let endpoint = Endpoint { connector, location: Location::Address(address.clone()) };
    Member { address: address.clone(), node: Arc::new(Node::new(endpoint, &Settings::new(""))) }
}

/// Returns a cluster of `count` nodes. Node `i`, counted from 0, owns slot `i` and listens on port `i + 1`.
fn nodes(count: usize) -> Nodes {
    let range = |i: i64| {
        let primary = Value::Array(vec![Value::BulkString(b"a".to_vec()), Value::Int(1 + i)]);
        Value::Array(vec![Value::Int(i), Value::Int(i), primary])
    };
    let reply = Value::Array((0..count as i64).map(range).collect());
    Nodes::new(SlotMap::read(&reply, &at(1)).expect("the reply is a slot map"), member)
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
    assert!(less.owner(NODES_MAX as u16).is_none(), "the added node owns no slots");
}
