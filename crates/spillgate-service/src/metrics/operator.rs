//! Metrics of the blocks and shadow switches of operators.

use super::registry::{Counter, Gauge, Registry};

#[derive(Debug)]
pub struct OperatorMetrics {
    /// Requests that a block has refused.
    pub blocked: Counter,
    /// Blocks that have not ended.
    pub blocks: Gauge,
    /// Shadow switches that have not ended.
    pub shadow_switches: Gauge,
    /// How many seconds ago this server compared its copy of the lists of blocks and switches with the shared store.
    /// The page does not show this metric before the first comparison.
    pub copy_age: Gauge,
    /// How often the shared store has lost blocks or switches of this server's copy.
    pub lost: Counter,
}

impl OperatorMetrics {
    pub(super) fn new(registry: &mut Registry) -> OperatorMetrics {
        let age = "How long ago the blocks and shadow switches were last compared with the shared store";
        OperatorMetrics {
            blocked: registry.counter("blocked", "Requests that a block of an operator refused"),
            blocks: registry.gauge("blocks", "Blocks of operators that are on", Gauge::default()),
            shadow_switches: registry.gauge(
                "shadow_switches",
                "Shadow switches of operators that are on",
                Gauge::default(),
            ),
            lost: registry.counter(
                "operator_lists_lost",
                "How often the shared store has lost blocks or shadow switches that this server knows",
            ),
            copy_age: registry.gauge("operator_copy_age_seconds", age, Gauge::unknown()),
        }
    }
}
