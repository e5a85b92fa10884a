//! What is counted of a shared store. Its own counters are read when metrics are.

use spillgate::Source;
use spillgate_redis::{Circuit, ErrorKind, RedisStore};

use super::registry::Registry;
use super::{Counter, Gauge};

/// Handles of what concerns a shared store; without one counters stay at zero, and gauges show on no page.
#[derive(Debug)]
pub struct StoreMetrics {
    failures: [Counter; ErrorKind::ALL.len()],
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
        let sources = [Source::DenyCache, Source::Local, Source::Policy].map(Source::as_str);
        let [deny_cache, local, policy] = registry.counters(
            "requests_without_store",
            "Requests that were judged without asking the shared store, or because it failed, by who did",
            "source",
            sources,
        );
        StoreMetrics {
            failures: registry.counters(
                "store_failures",
                "Requests that the shared store did not decide, by class; probes are not counted",
                "class",
                ErrorKind::ALL.map(ErrorKind::name),
            ),
            circuit: registry.gauge(
                "store_circuit",
                "The breaker of the shared store: 0 closed, 1 half open (some nodes of a cluster serve), 2 open",
                Gauge::unknown(),
            ),
            in_flight: registry.gauge("store_in_flight", "Questions that wait for the shared store", Gauge::unknown()),
            give_backs_lost: registry.counter(
                "store_give_backs_lost",
                "Parts of requests that were not admitted, which a slot of a cluster may have kept; not what refusals charge \
                 with scripts: off",
            ),
            deny_cache,
            local,
            policy,
            up: registry.gauge("store_up", "Whether the shared store answered the last probe", Gauge::unknown()),
            recoveries: registry.counter("store_recoveries", "How often the shared store was found to answer again"),
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
    pub fn read(&self, store: &RedisStore, failures: impl Fn(ErrorKind) -> u64) {
        for (counter, class) in self.failures.iter().zip(ErrorKind::ALL) {
            counter.inc_by(failures(class).saturating_sub(counter.get()));
        }
        self.give_backs_lost.inc_by(store.refunds_lost().saturating_sub(self.give_backs_lost.get()));
        self.in_flight.set(i64::try_from(store.in_flight()).unwrap_or(i64::MAX));
        self.circuit.set(match store.circuit() {
            Circuit::Closed => 0,
            Circuit::HalfOpen => 1,
            Circuit::Open => 2,
        });
    }
}
