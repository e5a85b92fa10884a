//! Tests of replies to CLUSTER SLOTS.

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
fn a_node_without_a_name_is_the_sender_of_the_slot_map() {
    let hosts = [Value::Nil, text(""), text("other"), Value::SimpleString("other".to_owned())];
    let ranges = (0..).zip(hosts).map(|(i, host)| range(i * 10, i * 10 + 4, host, 7000));
    let map = read(ranges.collect()).expect("the reply is a slot map");
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
    let map = map.expect("the reply is a slot map");
    assert_eq!(owner(&map, 0).as_deref(), Some("192.0.2.1:7000"));
    assert_eq!(owner(&map, 1).as_deref(), Some("asked:7000"));
    assert!(
        (2..6).all(|slot| owner(&map, slot).is_none()),
        "a node without an address does not get the address of the node that was asked"
    );
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
    assert_eq!(read(ranges(NODES_MAX)).expect("the reply is a slot map").addresses().len(), NODES_MAX);
}
