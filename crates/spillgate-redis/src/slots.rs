//! Which node of a cluster has which slots.

use std::sync::Arc;

use redis::{ConnectionAddr, Value};

use crate::name::Name;
use crate::server::{Server, at};

const SLOTS: usize = 16384;
/// The most nodes that are known at once: what Redis itself recommends as the most.
const NODES_MAX: usize = 1000;
/// The place of no node.
const NOBODY: u16 = u16::MAX;

/// The slot of a state.
pub(crate) fn slot(name: &Name) -> u16 {
    crc16(name.tag()) % SLOTS as u16
}

/// CRC-16/XMODEM, as the cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| crc << 8 ^ CRCS[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRCS: [u16; 256] = {
    let (mut crcs, mut byte) = ([0; 256], 0);
    while byte < crcs.len() {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        crcs[byte] = crc;
        byte += 1;
    }
    crcs
};

/// A node that has slots, or to which another one has sent us.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) address: ConnectionAddr,
    pub(crate) server: Arc<Server>,
}

/// The nodes, and for each slot the place of its node.
pub(crate) struct Map {
    pub(crate) nodes: Vec<Node>,
    /// So many of them have slots: the first ones.
    owners: usize,
    slots: Arc<[u16]>,
}

impl Map {
    /// The map of a cluster that nobody knows yet.
    pub(crate) fn unknown() -> Map {
        Map { nodes: Vec::new(), owners: 0, slots: Arc::new([NOBODY; SLOTS]) }
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Who has the slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Node> {
        self.nodes.get(usize::from(self.slots[usize::from(slot)]))
    }

    /// All that have slots.
    pub(crate) fn owners(&self) -> &[Node] {
        &self.nodes[..self.owners]
    }

    pub(crate) fn at(&self, address: &ConnectionAddr) -> Option<&Node> {
        self.nodes.iter().find(|node| node.address == *address)
    }

    /// The same map, which knows of another node, unless it knows too many.
    pub(crate) fn with(&self, node: &Node) -> Map {
        let nodes = self.nodes.iter().chain([node]).take(NODES_MAX);
        Map { nodes: nodes.cloned().collect(), owners: self.owners, slots: Arc::clone(&self.slots) }
    }

    /// The map that `asked` told by CLUSTER SLOTS; `None` if that is none. `node` makes those that are new.
    pub(crate) fn read(told: &Value, asked: &ConnectionAddr, node: impl Fn(ConnectionAddr) -> Node) -> Option<Map> {
        let (mut nodes, mut slots): (Vec<Node>, _) = (Vec::new(), [NOBODY; SLOTS]);
        for range in array(told)? {
            let [Value::Int(first), Value::Int(last), primary, ..] = array(range)? else { return None };
            // A node that is about to leave may have no port.
            let Some(address) = address(primary, asked) else { continue };
            let known = nodes.iter().position(|node| node.address == address);
            let place = known.unwrap_or(nodes.len());
            if known.is_none() {
                nodes.push(node(address));
            }
            let place = u16::try_from(place).ok().filter(|place| usize::from(*place) < NODES_MAX)?;
            slots.get_mut(usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?)?.fill(place);
        }
        let owners = nodes.len();
        if owners == 0 { None } else { Some(Map { nodes, owners, slots: Arc::new(slots) }) }
    }
}

fn array(value: &Value) -> Option<&[Value]> {
    if let Value::Array(values) = value { Some(values) } else { None }
}

/// Host and port of a node in CLUSTER SLOTS. A node that should have a host name and has none is `?`; then its IP address
/// is among what is told besides.
pub(crate) fn address(node: &Value, asked: &ConnectionAddr) -> Option<ConnectionAddr> {
    let [host, Value::Int(port), besides @ ..] = array(node)? else { return None };
    let host = match text(host)? {
        "?" => ip(besides.get(1)?)?,
        host => host,
    };
    at(host, u16::try_from(*port).ok().filter(|port| *port > 0)?, asked)
}

/// The value that follows the name `ip`.
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
    use std::sync::Arc;

    use redis::{ConnectionAddr, RedisConnectionInfo, Value};

    use super::{Map, NODES_MAX, Node, crc16};
    use crate::server::Server;
    use crate::settings::Settings;
    use crate::target::{Access, Location, Target};

    fn at(host: &str, port: u16) -> ConnectionAddr {
        ConnectionAddr::Tcp(host.to_owned(), port)
    }

    fn node(address: ConnectionAddr) -> Node {
        let access = Arc::new(Access::new(RedisConnectionInfo::default(), None, &Settings::new("")));
        let target = Target { access, location: Location::At(address.clone()) };
        Node { address, server: Arc::new(Server::new(target, &Settings::new(""))) }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), Value::SimpleString("id".to_owned())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary.clone(), primary])
    }

    fn text(host: &str) -> Value {
        Value::BulkString(host.as_bytes().to_vec())
    }

    fn read(ranges: Vec<Value>) -> Option<Map> {
        Map::read(&Value::Array(ranges), &at("asked", 1), node)
    }

    fn owner(map: &Map, slot: u16) -> Option<String> {
        map.owner(slot).map(|node| node.address.to_string())
    }

    #[test]
    fn slots_are_by_the_crc_that_the_specification_names() {
        assert_eq!((crc16(b"123456789"), crc16(b"")), (0x31c3, 0));
    }

    #[test]
    fn a_node_without_a_name_is_the_one_that_was_asked() {
        let hosts = [Value::Nil, text(""), text("other"), Value::SimpleString("other".to_owned())];
        let ranges = (0..).zip(hosts).map(|(i, host)| range(i * 10, i * 10 + 4, host, 7000));
        let map = read(ranges.collect()).expect("a map");
        assert_eq!(map.nodes.len(), 2);
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
            // It does not know its own yet.
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
    fn what_is_no_map_is_none() {
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
        assert!(Map::read(&Value::Nil, &at("asked", 1), node).is_none());
    }

    #[test]
    fn so_many_nodes_are_known_and_no_more() {
        let ranges = |count: usize| (0..count as i64).map(|i| range(i, i, text("a"), 1 + i)).collect();
        assert!(read(ranges(NODES_MAX + 1)).is_none());
        let map = read(ranges(NODES_MAX)).expect("a map");
        assert_eq!(map.nodes.len(), NODES_MAX);
        assert_eq!(map.with(&node(at("b", 1))).nodes.len(), NODES_MAX);
        let less = read(ranges(NODES_MAX - 1)).expect("a map").with(&node(at("b", 1)));
        assert!(less.at(&at("b", 1)).is_some() && owner(&less, 3) == owner(&map, 3));
        assert_eq!((less.owners().len(), map.owners().len()), (NODES_MAX - 1, NODES_MAX));
    }
}
