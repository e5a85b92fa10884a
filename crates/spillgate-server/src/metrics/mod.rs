//! The metrics of the server.
//!
//! Every counter exists before the first request, so that counting is one atomic addition. Label values come from the rules
//! and from fixed lists. Values of clients become labels only if a rule asks for it, and their number has a bound.

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

/// The most values of one rule that have counters of their own, unless a setting says otherwise.
const RULE_VALUES: usize = 1000;

/// The result for one descriptor under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was allowed.
    Allowed,
    /// It was allowed, above the soft limit.
    SoftOver,
    /// Its limit refused it.
    Refused,
    /// Its limit would have refused it, but is a shadow.
    ShadowRefused,
}

/// The names of the outcomes in metrics, in the order of their declaration.
const OUTCOMES: [&str; 4] = ["allowed", "soft_over", "refused", "shadow_refused"];

/// Why a request was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// It is invalid.
    BadRequest,
    /// It exceeds a bound.
    TooLarge,
    /// Its listener does not allow it.
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
    /// The server had the most connections that it accepts.
    Bound,
    /// No whole request arrived in time.
    Slow,
    /// There was no request for a long time.
    Idle,
    /// The client broke the protocol or went away.
    Broken,
    /// It was still busy when the time to drain was over.
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

/// All metrics, and the registry that writes them.
pub struct Metrics {
    registry: Registry,
    /// Decisions, by the labels of domain and rule.
    decisions: Mutex<BTreeMap<Arc<str>, Arc<Outcomes>>>,
    /// The most values of one rule that have counters of their own.
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
    /// Descriptors that brought a limit of their own.
    pub overrides: Counter,
    /// Requests that neither the store nor a policy answered.
    pub store_errors: Counter,
    /// States in the memory of this process. Set when the metrics are read.
    pub store_keys: Gauge,
    /// Requests for which the memory store had no capacity. Updated when the metrics are read.
    pub store_full: Counter,
    /// Metrics of a shared store.
    pub store: StoreMetrics,
    /// Snapshots that were written.
    pub snapshots: Counter,
    /// Snapshots that could not be written.
    pub snapshot_failures: Counter,
    /// The start of the last snapshot, in seconds since the epoch. On no page before the first snapshot.
    pub snapshot_time: Gauge,
    /// Rules in force.
    pub rules: Gauge,
    /// Reloads that put changed rules in force.
    pub reloads: Counter,
    /// Reloads that failed because the rules were invalid. The old rules stayed in force.
    pub reload_failures: Counter,
    /// Open connections of all listeners.
    pub connections: Gauge,
    /// Connections that were accepted since the start.
    pub connections_accepted: Counter,
    closed: [Counter; Closed::ALL.len()],
    /// Errors of accept(2) that were not caused by a single connection.
    pub accept_errors: Counter,
    /// Panics of request handlers. The client of each got an internal error.
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
    /// All metrics, at zero.
    #[must_use]
    pub fn new() -> Metrics {
        Metrics::with_rule_values(RULE_VALUES)
    }

    /// All metrics, at zero. At most `rule_values` values of one rule have counters of their own.
    #[must_use]
    pub fn with_rule_values(rule_values: usize) -> Metrics {
        let mut registry = Registry::default();
        let reg = &mut registry;
        let rejected = Rejection::ALL.map(Rejection::as_str);
        let closed = Closed::ALL.map(Closed::as_str);
        let minted = "Descriptors that refunded units or brought a limit of their own, by kind";
        let [refunds, overrides] = reg.counters("minted", minted, "kind", ["refund", "override"]);
        let snapshot_time = Gauge::unknown();
        let states =
            "States in the memory of this process. With a shared store these are the states of the local fallback";
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
            store_errors: reg.counter("store_errors", "Requests that neither the store nor a policy answered"),
            store_keys: reg.gauge("store_keys", states, Gauge::default()),
            store_full: reg.counter("store_full", "Requests for which the memory store had no capacity"),
            store: StoreMetrics::new(reg),
            snapshots: reg.counter("snapshots", "Snapshots of the store that were written"),
            snapshot_failures: reg.counter("snapshot_failures", "Snapshots that could not be written"),
            snapshot_time: reg.gauge(
                "snapshot_timestamp_seconds",
                "When the last snapshot began, in seconds since 1970",
                snapshot_time,
            ),
            rules: reg.gauge("rules", "Rules in force", Gauge::default()),
            reloads: reg.counter("rules_reloads", "Reloads that put changed rules in force"),
            reload_failures: reg.counter("rules_reload_failures", "Reloads that failed because the rules were invalid"),
            connections: reg.gauge("connections", "Open connections", Gauge::default()),
            connections_accepted: reg.counter("connections_accepted", "Accepted connections"),
            closed: reg.counters(
                "connections_closed",
                "Connections that the server closed, by reason",
                "reason",
                closed,
            ),
            accept_errors: reg.counter("accept_errors", "Errors while accepting connections"),
            panics: reg.counter("panics", "Request handlers that panicked"),
            decisions: Mutex::default(),
            peeks: Peeks::default(),
            rule_values,
            registry,
        }
    }

    /// The counter of requests that were not decided, for `reason`.
    #[must_use]
    pub fn rejected(&self, reason: Rejection) -> &Counter {
        &self.rejected[reason as usize]
    }

    /// The counter of connections that the server closed, for `reason`.
    #[must_use]
    pub fn closed(&self, reason: Closed) -> &Counter {
        &self.closed[reason as usize]
    }

    /// The counters of each of `rules`, in their order. Counters of rules that were removed are dropped. Counters by value
    /// start again at zero.
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

    /// The counters of the name `rule` in `domain`. They are created if they are new.
    fn outcomes(&self, domain: &str, rule: &str) -> Arc<Outcomes> {
        Arc::clone(self.decisions.lock().entry(labels_of(domain, rule)).or_default())
    }
}
