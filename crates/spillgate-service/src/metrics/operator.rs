//! Metrics of the blocks and shadow switches of operators.

use super::registry::{Counter, Gauge, Registry};

#[derive(Debug)]
pub struct OperatorMetrics {
    /// Requests that a block has refused.
    pub blocked: Counter,
    /// Blocks that are on.
    pub blocks: Gauge,
    /// Shadow switches that are on.
    pub shadow_switches: Gauge,
    /// The age of this server's copy of the shared lists, in seconds. The page does not show it before the first
    /// reading.
    pub copy_age: Gauge,
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
            copy_age: registry.gauge("operator_copy_age_seconds", age, Gauge::unknown()),
        }
    }
}
