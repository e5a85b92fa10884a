//! The metrics of a shared store, such as Redis.
//!
//! The store itself counts its failures, its calls and the requests that wait for it. These counts are copied to the
//! metrics when a client reads the page of metrics.

use std::sync::Arc;

use spillgate::{Circuit, StoreErrorKind, StoreHealth};

use super::histogram::Histogram;
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
    given_back: Counter,
    calls: Counter,
    call_requests: Counter,
    call_durations: Arc<Histogram>,
    deny_cache_entries: Gauge,
    deny_cache_hits: Counter,
    /// 1 if the store is up, otherwise 0. The server's `command/serve/store_health.rs` sends probes to the store, and
    /// decides when the store counts as down.
    pub up: Gauge,
    memory_bytes: Gauge,
    memory_max_bytes: Gauge,
    pub evicted_keys: Counter,
    /// How many times the store began to answer again after it counted as down.
    pub recoveries: Counter,
}

impl StoreMetrics {
    pub(super) fn new(registry: &mut Registry) -> StoreMetrics {
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
                "store_refunds_lost",
                "Charges of requests that were not admitted. A reply or a refund was lost, so the shared store may have \
                 kept the charge. With store.scripts: off, refused requests are always charged, and this \
                 metric does not count these charges",
            ),
            given_back: registry.counter(
                "store_given_back",
                "Charges that were given back: the reply of the shared store came after the deadline or after the \
                 caller had gone, or another hash slot refused the request",
            ),
            calls: registry.counter(
                "store_calls",
                "Calls (commands) that were sent to the shared store, with probes and without logins",
            ),
            call_requests: registry.counter(
                "store_call_requests",
                "Requests in the calls that were sent to the shared store. Under load, one call has several requests",
            ),
            call_durations: registry.histogram(
                "store_duration_seconds",
                "Time from the write of a call of the shared store to its reply",
            ),
            deny_cache_entries: registry.gauge(
                "deny_cache_entries",
                "States in the deny cache, with those that no longer refuse",
                Gauge::unknown(),
            ),
            deny_cache_hits: registry.counter(
                "deny_cache_hits",
                "Requests that the deny cache refused without a call of the shared store",
            ),
            up: registry.gauge(
                "store_up",
                "1 while the shared store answers probes, 0 while it does not",
                Gauge::unknown(),
            ),
            memory_bytes: registry.gauge(
                "store_memory_bytes",
                "Memory in use of the shared store, of the node that is fullest. This needs the right to call INFO",
                Gauge::unknown(),
            ),
            memory_max_bytes: registry.gauge(
                "store_memory_max_bytes",
                "Memory limit of the same node of the shared store. 0 if it has none",
                Gauge::unknown(),
            ),
            evicted_keys: registry.counter(
                "store_evicted_keys",
                "Keys that the shared store evicted while this server watched. Each can be a limit that begins again",
            ),
            recoveries: registry.counter("store_recoveries", "Recoveries of the shared store after a failure"),
        }
    }

    /// Sets the memory of the store: the bytes in use, and the limit. `None` if they are not known.
    pub fn set_memory(&self, memory: Option<(u64, u64)>) {
        let gauges = [&self.memory_bytes, &self.memory_max_bytes];
        for (gauge, bytes) in gauges.into_iter().zip(memory.map_or([None; 2], |(used, max)| [Some(used), Some(max)])) {
            match bytes {
                Some(bytes) => gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX)),
                None => gauge.forget(),
            }
        }
    }

    /// Copies the counts that the store keeps itself.
    pub fn update(&self, health: &StoreHealth) {
        for (kind, failures) in &health.failures {
            self.failures[*kind as usize].raise_to(*failures);
        }
        self.refunds_lost.raise_to(health.refunds_lost);
        self.given_back.raise_to(health.given_back);
        self.calls.raise_to(health.calls.sent);
        self.call_requests.raise_to(health.calls.requests);
        self.call_durations.copy(&health.calls.durations, health.calls.duration_sum_ns);
        if let Some(entries) = health.deny_cache_entries {
            self.deny_cache_entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
        }
        self.deny_cache_hits.raise_to(health.deny_cache_hits);
        self.in_flight.set(i64::try_from(health.in_flight).unwrap_or(i64::MAX));
        self.circuit.set(match health.circuit {
            Circuit::Closed => 0,
            Circuit::HalfOpen => 1,
            Circuit::Open => 2,
        });
    }
}
