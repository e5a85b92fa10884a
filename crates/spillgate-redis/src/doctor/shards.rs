//! Reads which primary of a cluster owns which slots, and how many replicas each primary has.
//!
//! The doctor cannot use the slot map of the store, because that map ignores replicas.

use redis::{ConnectionAddr, Value};

use crate::cluster::slot_map::address;

/// A primary with its slots.
pub(super) struct Shard {
    pub(super) primary: ConnectionAddr,
    /// The number of replicas of the primary. The reply to CLUSTER SLOTS lists the replicas again for each range of
    /// slots, and only the list of the first range is read.
    pub(super) replicas: usize,
    /// The first and the last slot of each range.
    ranges: Vec<(u16, u16)>,
}

impl Shard {
    pub(super) fn has(&self, slot: u16) -> bool {
        self.ranges.iter().any(|(first, last)| (first..=last).contains(&&slot))
    }

    pub(super) fn slots(&self) -> usize {
        self.ranges.iter().map(|(first, last)| usize::from(last.saturating_sub(*first)) + 1).sum()
    }
}

/// Reads the primaries and their slots from a reply to CLUSTER SLOTS. `sender` is the address of the node that replied.
/// Invalid parts of the reply are skipped.
pub(super) fn read(reply: &Value, sender: &ConnectionAddr) -> Vec<Shard> {
    let mut shards: Vec<Shard> = Vec::new();
    let Value::Array(ranges) = reply else { return shards };
    for range in ranges {
        let Value::Array(range) = range else { continue };
        let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &range[..] else { continue };
        let (Ok(first), Ok(last)) = (u16::try_from(*first), u16::try_from(*last)) else { continue };
        let Some(primary) = address(primary, sender) else { continue };
        match shards.iter_mut().find(|shard| shard.primary == primary) {
            Some(shard) => shard.ranges.push((first, last)),
            None => shards.push(Shard { primary, replicas: replicas.len(), ranges: vec![(first, last)] }),
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use redis::{ConnectionAddr, Value};

    use super::read;

    #[test]
    fn ranges_of_one_primary_are_one_shard() {
        let node = |port| Value::Array(vec![Value::BulkString(b"h".to_vec()), Value::Int(port)]);
        let range = |first, last, nodes: &[i64]| {
            let nodes = nodes.iter().map(|port| node(*port));
            Value::Array([Value::Int(first), Value::Int(last)].into_iter().chain(nodes).collect())
        };
        let reply = Value::Array(vec![range(0, 9, &[1, 2]), range(10, 10, &[3]), range(20, 29, &[1, 2]), Value::Nil]);
        let shards = read(&reply, &ConnectionAddr::Tcp("h".to_owned(), 1));
        let reply: Vec<_> =
            shards.iter().map(|shard| (shard.primary.to_string(), shard.slots(), shard.replicas)).collect();
        assert_eq!(reply, [("h:1".to_owned(), 20, 1), ("h:3".to_owned(), 1, 0)]);
        assert!(shards[0].has(29) && !shards[0].has(30) && shards[1].has(10) && !shards[1].has(9));
    }
}
