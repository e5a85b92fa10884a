//! The metrics of the server.
//!
//! Most counters exist before the first request, so that one atomic addition counts a request. The values of labels
//! come from the rules and from fixed lists. A value that a client sends becomes a label only if a rule asks for it,
//! and each rule has a bound on the number of such values.

mod by_rule;
mod page;
mod peeks;
mod registry;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use spillgate::rules::Rules;

use by_rule::{Outcomes, labels_of};
use peeks::Peeks;
use registry::Registry;

pub use by_rule::RuleCounters;
pub use page::Page;
pub use registry::{Counter, Format, Gauge};
pub use store::StoreMetrics;

/// By default, at most this many values of one rule have their own counters.
const RULE_VALUES: usize = 1000;

/// What a rule decided for a descriptor. A descriptor is one of the lists of keys and values in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The descriptor was allowed.
    Allowed,
    /// The descriptor exceeds a limit, but it was allowed, because the limit has `soft`.
    SoftOver,
    /// The rule refused the descriptor.
    Refused,
    /// The descriptor was allowed only because of shadow mode. Without this mode, the rule would have refused it.
    ShadowRefused,
}

/// The names of the outcomes in metrics, in the same order as in [`Outcome`].
const OUTCOMES: [&str; 4] = ["allowed", "soft_over", "refused", "shadow_refused"];

/// Why a request was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// The request is invalid.
    BadRequest,
    /// The request exceeds a bound of the server.
    TooLarge,
    /// The listener that got the request does not allow such requests.
    Forbidden,
}

impl Rejection {
    const ALL: [Rejection; 3] = [Rejection::BadRequest, Rejection::TooLarge, Rejection::Forbidden];

    const fn as_str(self) -> &'static str {
        match self {
            Rejection::BadRequest => "bad_request",
            Rejection::TooLarge => "too_large",
            Rejection::Forbidden => "forbidden",
        }
    }
}

/// Why the server closed a connection before its client did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Closed {
    /// The server had as many open connections as it accepts.
    Bound,
    /// No whole request arrived in time.
    Slow,
    /// The server asked the client to close the connection, because there was no request for a long time, or because
    /// the server drained. Then the connection ended without an error, or the server closed it after a timeout.
    Idle,
    /// The client broke the protocol or went away.
    Broken,
    /// The server stopped, and the connection was still busy at the end of the time to drain.
    Drained,
}

impl Closed {
    const ALL: [Closed; 5] = [Closed::Bound, Closed::Slow, Closed::Idle, Closed::Broken, Closed::Drained];

    const fn as_str(self) -> &'static str {
        match self {
            Closed::Bound => "bound",
            Closed::Slow => "slow",
            Closed::Idle => "idle",
            Closed::Broken => "broken",
            Closed::Drained => "drained",
        }
    }
}

/// All metrics of the server.
pub struct Metrics {
    registry: Registry,
    /// The counters of decisions. The key of the map is the text of the labels for domain and rule.
    decisions: Mutex<BTreeMap<Arc<str>, Arc<Outcomes>>>,
    /// The maximum number of values of one rule that have their own counters.
    rule_values: usize,
    /// Descriptors that no rule matched.
    pub unmatched: Counter,
    peeks: Peeks,
    /// Requests that were allowed.
    pub allowed: Counter,
    /// Requests that were refused.
    pub refused: Counter,
    rejected: [Counter; Rejection::ALL.len()],
    /// Descriptors that refunded units.
    pub refunds: Counter,
    /// Descriptors for which the request contained a limit. This limit replaced the limits of the rules.
    pub overrides: Counter,
    /// Requests that got an error of the store instead of a decision.
    pub store_errors: Counter,
    /// States in the memory of this process. This number is updated when the metrics are read.
    pub store_keys: Gauge,
    /// Requests for which the memory store was full. This number is updated when the metrics are read.
    pub store_full: Counter,
    /// Metrics of a shared store.
    pub store: StoreMetrics,
    /// Snapshots that were written.
    pub snapshots: Counter,
    /// Snapshots that could not be written.
    pub snapshot_failures: Counter,
    /// The time when the last snapshot began, in seconds since 1970. This metric is not shown before the first
    /// snapshot.
    pub snapshot_time: Gauge,
    /// The number of rules that the server uses.
    pub rules: Gauge,
    /// Reloads after which the server uses changed rules.
    pub reloads: Counter,
    /// Reloads that failed because the rules were invalid. After such a reload, the server still uses the old rules.
    pub reload_failures: Counter,
    /// Open connections of all listeners.
    pub connections: Gauge,
    /// Connections that were accepted since the start.
    pub connections_accepted: Counter,
    closed: [Counter; Closed::ALL.len()],
    /// Errors of the system call accept(2). Errors that only one connection causes are not counted.
    pub accept_errors: Counter,
    /// Request handlers that panicked. In each case the client got an internal error.
    pub panics: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    /// Makes all metrics, at zero.
    #[must_use]
    pub fn new() -> Metrics {
        Metrics::with_rule_values(RULE_VALUES)
    }

    /// Makes all metrics, at zero. At most `rule_values` values of one rule have their own counters.
    #[must_use]
    pub fn with_rule_values(rule_values: usize) -> Metrics {
        let mut registry = Registry::default();
        let reg = &mut registry;
        let rejected = Rejection::ALL.map(Rejection::as_str);
        let closed = Closed::ALL.map(Closed::as_str);
        let minted = "Descriptors that gave units back (refund) or had a limit of their own (override)";
        let [refunds, overrides] = reg.counters("minted", minted, "kind", ["refund", "override"]);
        let snapshot_time = Gauge::unknown();
        let states =
            "Keys in the memory store. With a shared store, these keys were counted while the shared store failed";
        Metrics {
            unmatched: reg.counter("unmatched_descriptors", "Descriptors that no rule matched"),
            allowed: reg.counter("requests_allowed", "Requests that were allowed"),
            refused: reg.counter("requests_refused", "Requests that were refused"),
            rejected: reg.counters(
                "requests_rejected",
                "Requests that were not decided, by reason",
                "reason",
                rejected,
            ),
            refunds,
            overrides,
            store_errors: reg.counter("store_errors", "Requests that ended with an error of the shared store"),
            store_keys: reg.gauge("store_keys", states, Gauge::default()),
            store_full: reg.counter("store_full", "Requests that did not fit into the memory store"),
            store: StoreMetrics::new(reg),
            snapshots: reg.counter("snapshots", "Snapshots that were written"),
            snapshot_failures: reg.counter("snapshot_failures", "Snapshots that could not be written"),
            snapshot_time: reg.gauge(
                "snapshot_timestamp_seconds",
                "When the last snapshot began, in seconds since 1970",
                snapshot_time,
            ),
            rules: reg.gauge("rules", "Rules that the server uses", Gauge::default()),
            reloads: reg.counter("rules_reloads", "Reloads after which the server uses changed rules"),
            reload_failures: reg.counter("rules_reload_failures", "Reloads that failed because the rules were invalid"),
            connections: reg.gauge("connections", "Open connections of all listeners", Gauge::default()),
            connections_accepted: reg.counter("connections_accepted", "Accepted connections"),
            closed: reg.counters(
                "connections_closed",
                "Connections that the server closed, by reason",
                "reason",
                closed,
            ),
            accept_errors: reg.counter("accept_errors", "Errors while accepting connections"),
            panics: reg.counter("panics", "Panics of request handlers"),
            decisions: Mutex::default(),
            peeks: Peeks::default(),
            rule_values,
            registry,
        }
    }

    /// Returns the counter of requests that were not decided because of `reason`.
    #[must_use]
    pub fn rejected(&self, reason: Rejection) -> &Counter {
        &self.rejected[reason as usize]
    }

    /// Returns the counter of connections that the server closed because of `reason`.
    #[must_use]
    pub fn closed(&self, reason: Closed) -> &Counter {
        &self.closed[reason as usize]
    }

    /// Returns the counters of each rule in `rules`, in the same order. The server calls this when it loads rules.
    ///
    /// A rule that existed before keeps its counts. The counters of removed rules are dropped. If a rule has counters
    /// for single values, these counters start again at zero.
    pub fn for_rules(&self, rules: &Rules) -> Box<[RuleCounters]> {
        let before = self.decisions.lock().clone();
        let mut after = BTreeMap::new();
        let counters = rules.rules().map(|rule| {
            let labels = labels_of(&rule.domain, &rule.path);
            let known = before.get(&labels);
            let outcomes = after.entry(labels).or_insert_with(|| known.cloned().unwrap_or_default());
            RuleCounters::new(rule, Arc::clone(outcomes))
        });
        let counters: Box<[_]> = counters.collect();
        self.rules.set(i64::try_from(counters.len()).unwrap_or(i64::MAX));
        self.peeks.retain(|labels| after.contains_key(labels));
        *self.decisions.lock() = after;
        counters
    }

    /// Returns the counters for the domain `domain` and the rule name `rule`. They are created if they do not exist.
    fn outcomes(&self, domain: &str, rule: &str) -> Arc<Outcomes> {
        Arc::clone(self.decisions.lock().entry(labels_of(domain, rule)).or_default())
    }
}
