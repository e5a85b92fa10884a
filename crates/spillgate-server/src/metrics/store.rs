//! The metrics of a shared store, such as Redis.
//!
//! The store itself counts its failures and the requests that wait for it. These numbers are copied into the metrics
//! when a client reads the page of metrics.

use spillgate::{Circuit, Source, StoreErrorKind, StoreHealth};

use super::registry::Registry;
use super::{Counter, Gauge};

/// The metrics of a shared store. Without a shared store, the counters stay at zero, and the page does not show the
/// gauges.
#[derive(Debug)]
pub struct StoreMetrics {
    failures: [Counter; StoreErrorKind::ALL.len()],
    circuit: Gauge,
    in_flight: Gauge,
    refunds_lost: Counter,
    /// Requests that the deny cache answered.
    deny_cache: Counter,
    /// Requests that the local store of the fallback answered.
    local: Counter,
    /// Requests that an `on_store_failure` setting answered.
    policy: Counter,
    /// 1 if the store is up, otherwise 0. `command/serve/store_health.rs` says when the store counts as down.
    pub up: Gauge,
    /// How many times the store began to answer again.
    pub recoveries: Counter,
}

impl StoreMetrics {
    pub(super) fn new(registry: &mut Registry) -> StoreMetrics {
        let sources = [Source::DenyCache, Source::Local, Source::Policy].map(Source::as_str);
        let [deny_cache, local, policy] = registry.counters(
            "requests_without_store",
            "Requests that were decided without the shared store, by source of the decision",
            "source",
            sources,
        );
        StoreMetrics {
            failures: registry.counters(
                "store_failures",
                "Requests that the shared store did not decide, by class of error. Probes are not counted",
                "class",
                std::array::from_fn(|i| StoreErrorKind::ALL[i].as_str()),
            ),
            circuit: registry.gauge(
                "store_circuit",
                "State of the circuit breaker of the shared store: 0 is closed, 1 is half open, 2 is open",
                Gauge::unknown(),
            ),
            in_flight: registry.gauge("store_in_flight", "Requests that wait for the shared store", Gauge::unknown()),
            refunds_lost: registry.counter(
                "store_give_backs_lost",
                "Charges of requests that were not admitted. A reply or a refund was lost, so a hash slot of a cluster may \
                 have kept the charge. With store.scripts: off, refused requests are always charged, and this \
                 metric does not count these charges",
            ),
            deny_cache,
            local,
            policy,
            up: registry.gauge(
                "store_up",
                "1 while the shared store answers probes, 0 while it does not",
                Gauge::unknown(),
            ),
            recoveries: registry.counter("store_recoveries", "Recoveries of the shared store after a failure"),
        }
    }

    /// Counts a request that `source` decided. Does nothing if the store decided it.
    pub fn answered(&self, source: Source) {
        let counter = match source {
            Source::Store => return,
            Source::DenyCache => &self.deny_cache,
            Source::Local => &self.local,
            Source::Policy => &self.policy,
        };
        counter.inc();
    }

    /// Copies the numbers that the store counted.
    pub fn update(&self, health: &StoreHealth) {
        for (kind, failures) in &health.failures {
            let counter = &self.failures[*kind as usize];
            counter.inc_by(failures.saturating_sub(counter.get()));
        }
        self.refunds_lost.inc_by(health.refunds_lost.saturating_sub(self.refunds_lost.get()));
        self.in_flight.set(i64::try_from(health.in_flight).unwrap_or(i64::MAX));
        self.circuit.set(match health.circuit {
            Circuit::Closed => 0,
            Circuit::HalfOpen => 1,
            Circuit::Open => 2,
        });
    }
}
