//! The slot map: which node owns which slots, as CLUSTER SLOTS reports it.
//!
//! It holds addresses only. [`nodes`](super::nodes) adds the connections, so the map can be read and tested without
//! any.

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
    addresses: Arc<[ConnectionAddr]>,
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

    /// The map in the reply of the node at `asked` to CLUSTER SLOTS. `None` if the reply is invalid or names no owner.
    pub(crate) fn read(reply: &Value, asked: &ConnectionAddr) -> Option<SlotMap> {
        let (mut addresses, mut slots): (Vec<ConnectionAddr>, _) = (Vec::new(), [NO_NODE; SLOTS]);
        for range in array(reply)? {
            let [Value::Int(first), Value::Int(last), primary, ..] = array(range)? else { return None };
            // A node that is about to leave may have no port.
            let Some(address) = address(primary, asked) else { continue };
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

/// Host and port of a node in CLUSTER SLOTS. The host is `?` if the node should have a host name and has none. Then its
/// IP address is in the list of further details.
pub(crate) fn address(node: &Value, asked: &ConnectionAddr) -> Option<ConnectionAddr> {
    let [host, Value::Int(port), besides @ ..] = array(node)? else { return None };
    let host = match text(host)? {
        "?" => ip(besides.get(1)?)?,
        host => host,
    };
    at(host, u16::try_from(*port).ok().filter(|port| *port > 0)?, asked)
}

/// The value after the name `ip`.
fn ip(names_and_values: &Value) -> Option<&str> {
    let mut pairs = array(names_and_values)?.chunks_exact(2);
    pairs.find_map(|pair| if text(&pair[0])? == "ip" { text(&pair[1]) } else { None })
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Nil => Some(""),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use redis::{ConnectionAddr, Value};

    use super::{NODES_MAX, SlotMap};

    fn at(host: &str, port: u16) -> ConnectionAddr {
        ConnectionAddr::Tcp(host.to_owned(), port)
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), Value::SimpleString("id".to_owned())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary.clone(), primary])
    }

    fn text(host: &str) -> Value {
        Value::BulkString(host.as_bytes().to_vec())
    }

    fn read(ranges: Vec<Value>) -> Option<SlotMap> {
        SlotMap::read(&Value::Array(ranges), &at("asked", 1))
    }

    fn owner(map: &SlotMap, slot: u16) -> Option<String> {
        map.owner(slot).map(|position| map.addresses()[position].to_string())
    }

    #[test]
    fn a_node_without_a_name_is_the_one_that_was_asked() {
        let hosts = [Value::Nil, text(""), text("other"), Value::SimpleString("other".to_owned())];
        let ranges = (0..).zip(hosts).map(|(i, host)| range(i * 10, i * 10 + 4, host, 7000));
        let map = read(ranges.collect()).expect("a map");
        assert_eq!(map.addresses().len(), 2);
        for slot in 0..40 {
            let expected = if slot < 20 { "asked:7000" } else { "other:7000" };
            let expected = (slot % 10 < 5).then(|| expected.to_owned());
            assert_eq!(owner(&map, slot), expected, "slot {slot}");
        }
        assert_eq!(owner(&map, 16383), None);
    }

    #[test]
    fn a_node_that_lacks_its_host_name_is_at_its_ip_address() {
        let besides = |words: &[&str]| Value::Array(words.iter().map(|word| text(word)).collect());
        let range = |first, besides: Option<Value>| {
            let node = [text("?"), Value::Int(7000), text("id")].into_iter().chain(besides).collect();
            Value::Array(vec![Value::Int(first), Value::Int(first), Value::Array(node)])
        };
        let map = read(vec![
            range(0, Some(besides(&["shard", "ip", "ip", "192.0.2.1"]))),
            // The node does not know its own address yet.
            range(1, Some(besides(&["ip", ""]))),
            range(2, Some(besides(&["ip"]))),
            range(3, Some(besides(&[]))),
            range(4, Some(Value::Nil)),
            range(5, None),
        ]);
        let map = map.expect("a map");
        assert_eq!(owner(&map, 0).as_deref(), Some("192.0.2.1:7000"));
        assert_eq!(owner(&map, 1).as_deref(), Some("asked:7000"));
        assert!((2..6).all(|slot| owner(&map, slot).is_none()), "it is not the one that was asked");
    }

    #[test]
    fn an_invalid_slot_map_is_rejected() {
        let whole = || range(0, 16383, text("a"), 1);
        assert_eq!(read(vec![whole()]).and_then(|map| owner(&map, 16383)).as_deref(), Some("a:1"));
        let none = [
            vec![],
            vec![range(0, 16384, text("a"), 1)],
            vec![range(-1, 5, text("a"), 1)],
            vec![range(7, 5, text("a"), 1)],
            vec![range(0, 5, text("a"), 0)],
            vec![range(0, 5, text("a"), 65536)],
            vec![range(0, 5, Value::BulkString(vec![0xff]), 1)],
            vec![whole(), Value::Nil],
            vec![Value::Array(vec![Value::Int(0), Value::Int(5)])],
            vec![Value::Array(vec![Value::Int(0), text("5"), Value::Nil])],
        ];
        for ranges in none {
            assert!(read(ranges.clone()).is_none(), "{ranges:?}");
        }
        assert!(SlotMap::read(&Value::Nil, &at("asked", 1)).is_none());
    }

    #[test]
    fn a_map_of_too_many_nodes_is_rejected() {
        let ranges = |count: usize| (0..count as i64).map(|i| range(i, i, text("a"), 1 + i)).collect();
        assert!(read(ranges(NODES_MAX + 1)).is_none());
        assert_eq!(read(ranges(NODES_MAX)).expect("a map").addresses().len(), NODES_MAX);
    }
}
