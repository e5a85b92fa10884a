//! Who has which slots, by the word of a cluster.

use redis::{ConnectionAddr, Value};

use crate::cluster::slot_map::address;

/// A primary, and what it has.
pub(super) struct Shard {
    pub(super) primary: ConnectionAddr,
    pub(super) replicas: usize,
    /// First and last slot of each range.
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

/// What CLUSTER SLOTS told the one who asked at `asked`: for each range first and last slot, the primary and its
/// replicas. What makes no sense is left out.
pub(super) fn read(told: &Value, asked: &ConnectionAddr) -> Vec<Shard> {
    let mut shards: Vec<Shard> = Vec::new();
    let Value::Array(ranges) = told else { return shards };
    for range in ranges {
        let Value::Array(range) = range else { continue };
        let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &range[..] else { continue };
        let (Ok(first), Ok(last)) = (u16::try_from(*first), u16::try_from(*last)) else { continue };
        let Some(primary) = address(primary, asked) else { continue };
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
        let told = Value::Array(vec![range(0, 9, &[1, 2]), range(10, 10, &[3]), range(20, 29, &[1, 2]), Value::Nil]);
        let shards = read(&told, &ConnectionAddr::Tcp("h".to_owned(), 1));
        let told: Vec<_> =
            shards.iter().map(|shard| (shard.primary.to_string(), shard.slots(), shard.replicas)).collect();
        assert_eq!(told, [("h:1".to_owned(), 20, 1), ("h:3".to_owned(), 1, 0)]);
        assert!(shards[0].has(29) && !shards[0].has(30) && shards[1].has(10) && !shards[1].has(9));
    }
}
