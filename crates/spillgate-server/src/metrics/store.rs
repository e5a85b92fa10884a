//! What is counted of a shared store. Its own counters are read when metrics are.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use spillgate::Source;
use spillgate_redis::{Circuit, Failure, RedisStore};

use super::{counter, family, gauge};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    source: &'static str,
}

/// Handles of what concerns a shared store; without one they stay at zero.
#[derive(Debug)]
pub struct StoreMetrics {
    failures: [Counter; Failure::ALL.len()],
    circuit: Gauge,
    in_flight: Gauge,
    give_backs_lost: Counter,
    /// Requests that were answered by others than the store.
    deny_cache: Counter,
    local: Counter,
    policy: Counter,
    /// Whether it answers, by the last probe.
    pub up: Gauge,
    /// How often it was found to answer again.
    pub recoveries: Counter,
}

impl StoreMetrics {
    pub(super) fn new(registry: &mut Registry) -> StoreMetrics {
        let failures: Family<ClassLabels, Counter> = family(
            registry,
            "store_failures",
            "Requests that the shared store did not decide, by class; probes are not counted",
        );
        let answers: Family<SourceLabels, Counter> = family(
            registry,
            "requests_without_store",
            "Requests that were judged without asking the shared store, or because it failed, by who did",
        );
        let by = |source: Source| answers.get_or_create_owned(&SourceLabels { source: source.as_str() });
        StoreMetrics {
            failures: Failure::ALL.map(|class| failures.get_or_create_owned(&ClassLabels { class: class.name() })),
            circuit: gauge(
                registry,
                "store_circuit",
                "The breaker of the shared store: 0 closed, 1 half open (some nodes of a cluster serve), 2 open",
            ),
            in_flight: gauge(registry, "store_in_flight", "Questions that wait for the shared store"),
            give_backs_lost: counter(
                registry,
                "store_give_backs_lost",
                "Parts of requests that were not admitted, which a slot of a cluster may have kept; not what refusals charge \
                 with scripts: off",
            ),
            deny_cache: by(Source::DenyCache),
            local: by(Source::Local),
            policy: by(Source::Policy),
            up: gauge(registry, "store_up", "Whether the shared store answered the last probe"),
            recoveries: counter(registry, "store_recoveries", "How often the shared store was found to answer again"),
        }
    }

    /// Counts who judged a request.
    pub fn answered(&self, source: Source) {
        let counter = match source {
            Source::Store => return,
            Source::DenyCache => &self.deny_cache,
            Source::Local => &self.local,
            Source::Policy => &self.policy,
        };
        counter.inc();
    }

    /// Brings up to date what the store counts itself.
    pub fn read(&self, store: &RedisStore, failures: impl Fn(Failure) -> u64) {
        for (counter, class) in self.failures.iter().zip(Failure::ALL) {
            counter.inc_by(failures(class).saturating_sub(counter.get()));
        }
        self.give_backs_lost.inc_by(store.give_backs_lost().saturating_sub(self.give_backs_lost.get()));
        self.in_flight.set(i64::try_from(store.in_flight()).unwrap_or(i64::MAX));
        self.circuit.set(match store.circuit() {
            Circuit::Closed => 0,
            Circuit::HalfOpen => 1,
            Circuit::Open => 2,
        });
    }
}
