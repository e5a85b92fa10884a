//! Looks at limits that never refuse one, by rule.

use std::collections::HashSet;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use spillgate::rules::Rule;

use super::family;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LookLabels {
    pub(super) domain: String,
    pub(super) rule: String,
}

#[derive(Debug)]
pub(super) struct Looks {
    counters: Family<LookLabels, Counter>,
    /// The label sets that `counters` holds.
    labels: Mutex<HashSet<LookLabels>>,
}

impl Looks {
    pub(super) fn new(registry: &mut Registry) -> Looks {
        let help = "Looks over gRPC (hits_addend: 0) at limits that refuse none, since they are not post_paid, by rule";
        Looks { counters: family(registry, "looks_never_refused", help), labels: Mutex::default() }
    }

    /// The counter of `rule`, and how many rules have one if this one is new.
    pub(super) fn at(&self, rule: &Rule) -> (Counter, Option<usize>) {
        let label = LookLabels { domain: rule.domain.to_string(), rule: rule.path.to_string() };
        let mut labels = self.labels.lock();
        let counter = self.counters.get_or_create_owned(&label);
        let is_new = labels.insert(label);
        (counter, is_new.then_some(labels.len()))
    }

    /// Drops the counters of rules that are gone.
    pub(super) fn retain(&self, is_rule: impl Fn(&LookLabels) -> bool) {
        self.labels.lock().retain(|label| {
            let stays = is_rule(label);
            if !stays {
                self.counters.remove(label);
            }
            stays
        });
    }
}
