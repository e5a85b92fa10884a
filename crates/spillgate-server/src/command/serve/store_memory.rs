//! Watches the memory of the shared store: how full it is, and whether it evicts keys.
//!
//! A store that evicts keys decides every request, so nothing else shows that limits begin again.

use std::collections::HashMap;
use std::time::Duration;

use spillgate::{NodeMemory, StoreErrorKind};
use spillgate_service::metrics::StoreMetrics;
use spillgate_service::shared_store::SharedStore;
use tokio::time::Instant;

/// How often the memory of the store is read. A store that begins to evict keys shows nothing else.
const READ_EVERY: Duration = Duration::from_secs(10);
/// How often the server asks whether it may read the memory by now.
const FORBIDDEN_EVERY: Duration = Duration::from_secs(3600);
/// The evicted keys of at most this many nodes are kept.
const NODES_MAX: usize = 1024;

/// What is known about the memory of the store.
#[derive(Default)]
pub(super) struct MemoryWatch {
    /// When the memory is read next. `None` at first.
    next: Option<Instant>,
    /// The keys that each node had evicted at its last reading, by its address.
    evicted_keys: HashMap<String, u64>,
}

impl MemoryWatch {
    /// Reads how full the store is, if it is time for that. `within` is how long the answer may take.
    pub(super) async fn read(&mut self, store: &dyn SharedStore, metrics: &StoreMetrics, within: Duration) {
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        let read = store.memory(within).await;
        // The store writes each try without the right into its own log.
        let is_forbidden = read.as_ref().is_err_and(|failed| failed.kind() == StoreErrorKind::NoPermission);
        self.next = Some(now + if is_forbidden { FORBIDDEN_EVERY } else { READ_EVERY });
        let nodes = read.unwrap_or_default();
        metrics.set_memory(fullest(&nodes).map(|node| (node.used_bytes, node.max_bytes)));
        let keys = self.evicted_since(&nodes);
        metrics.evicted_keys.inc_by(keys);
        if keys > 0 {
            tracing::warn!(
                keys,
                "the store evicts keys, so limits of some callers begin again: give it more memory (CONFIG SET maxmemory), \
                 and use CONFIG SET maxmemory-policy noeviction"
            );
        }
    }

    /// Returns how many keys the nodes have evicted since their last readings. A node that was restarted counts from 0.
    fn evicted_since(&mut self, nodes: &[NodeMemory]) -> u64 {
        // Addresses can change for ever. What a node has evicted before it is known is not counted.
        if self.evicted_keys.len() + nodes.len() > NODES_MAX {
            self.evicted_keys.clear();
        }
        let since = |node: &NodeMemory| match self.evicted_keys.insert(node.address.clone(), node.evicted_keys) {
            None => 0,
            Some(before) if before <= node.evicted_keys => node.evicted_keys - before,
            Some(_) => node.evicted_keys,
        };
        nodes.iter().map(since).sum()
    }
}

/// Returns the node that is fullest. A node without a limit is never full.
fn fullest(nodes: &[NodeMemory]) -> Option<&NodeMemory> {
    let share = |node: &NodeMemory| match node.max_bytes {
        0 => (0, node.used_bytes),
        max => ((u128::from(node.used_bytes) << 32) / u128::from(max) + 1, node.used_bytes),
    };
    nodes.iter().max_by_key(|node| share(node))
}

#[cfg(test)]
mod tests {
    use spillgate::NodeMemory;

    use super::{MemoryWatch, fullest};

    fn node(address: &str, evicted_keys: u64) -> NodeMemory {
        let mut node = NodeMemory::new(address);
        node.evicted_keys = evicted_keys;
        node
    }

    #[test]
    fn evicted_keys_count_from_the_first_reading_and_from_each_restart_of_a_node() {
        let mut watch = MemoryWatch::default();
        let seen = [7, 7, 9, 2, 3].map(|evicted| watch.evicted_since(&[node("a", evicted)]));
        assert_eq!(seen, [0, 0, 2, 2, 1]);
    }

    #[test]
    fn a_node_that_is_away_for_a_while_has_evicted_nothing() {
        let mut watch = MemoryWatch::default();
        let both = [node("a", 1_000_000), node("b", 5)];
        let readings: [&[NodeMemory]; 4] = [&both, &both[1..], &[], &both];
        assert_eq!(readings.map(|nodes| watch.evicted_since(nodes)), [0; 4]);
    }

    #[test]
    fn the_fullest_node_has_the_largest_share_of_its_limit() {
        let of = |used, max| {
            let mut node = NodeMemory::new("");
            (node.used_bytes, node.max_bytes) = (used, max);
            node
        };
        assert_eq!(fullest(&[of(90, 100), of(500, 1000), of(9999, 0)]).map(|node| node.used_bytes), Some(90));
        assert_eq!(fullest(&[of(3, 0), of(9, 0)]).map(|node| node.used_bytes), Some(9));
        assert_eq!(fullest(&[]), None);
    }
}
