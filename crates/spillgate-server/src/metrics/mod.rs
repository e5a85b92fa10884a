//! What the server counts. Every handle exists before the first request, so that counting is one
//! atomic addition. Label values come from the rules loaded and from fixed lists; from clients only
//! where a rule asks for it, and then up to a bound.

mod by_rule;
mod looks;
mod page;
mod registry;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use spillgate::rules::Rules;

use by_rule::{Outcomes, labels_of};
use looks::Looks;
use registry::Registry;

pub use by_rule::RuleCounters;
pub use page::Page;
pub use registry::{Counter, Format, Gauge};
pub use store::StoreMetrics;

/// The values of one rule that have counters of their own, unless a setting says otherwise.
const RULE_VALUES: usize = 1000;

/// What became of one descriptor under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It passed.
    Allowed,
    /// It passed, above the soft limit.
    SoftOver,
    /// Its limit refused it.
    Refused,
    /// Its limit would have refused it, but is only watched.
    ShadowRefused,
}

/// The names of the outcomes, in their order.
const OUTCOMES: [&str; 4] = ["allowed", "soft_over", "refused", "shadow_refused"];

/// Why a request was not judged at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// It makes no sense.
    BadRequest,
    /// It is beyond a bound.
    TooLarge,
    /// This listener may not do that.
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
    /// There were as many connections as there may be.
    Bound,
    /// No request, or not all of one, came in time.
    Slow,
    /// Nothing was asked for long.
    Idle,
    /// It broke the protocol or went away.
    Broken,
    /// It was still busy when the time to drain was up.
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

/// Every handle, and the registry that reads them.
pub struct Metrics {
    registry: Registry,
    /// What was decided by rules, by the labels of domain and rule.
    decisions: Mutex<BTreeMap<Arc<str>, Arc<Outcomes>>>,
    /// The values of one rule that have counters of their own.
    rule_values: usize,
    /// Descriptors that no rule matched.
    pub unmatched: Counter,
    looks: Looks,
    /// Requests that passed.
    pub allowed: Counter,
    /// Requests that were refused.
    pub refused: Counter,
    rejected: [Counter; Rejection::ALL.len()],
    /// Descriptors that gave units back.
    pub refunds: Counter,
    /// Descriptors that brought a limit of their own.
    pub overrides: Counter,
    /// Requests that the store could not answer.
    pub store_errors: Counter,
    /// States that this process holds; set when metrics are read.
    pub store_keys: Gauge,
    /// Requests that met a bound of these; brought up to date when metrics are read.
    pub store_full: Counter,
    /// What concerns a shared store.
    pub store: StoreMetrics,
    /// Snapshots that were written.
    pub snapshots: Counter,
    /// Snapshots that could not be written.
    pub snapshot_failures: Counter,
    /// When the last snapshot was begun, in seconds since the epoch; on no page before the first.
    pub snapshot_time: Gauge,
    /// Rules in force.
    pub rules: Gauge,
    /// Rules files that were read again and taken.
    pub reloads: Counter,
    /// Rules files that were read again and were wrong, so that the old rules stayed.
    pub reload_failures: Counter,
    /// Connections open now, all listeners together.
    pub connections: Gauge,
    /// Connections taken since the start.
    pub connections_accepted: Counter,
    closed: [Counter; Closed::ALL.len()],
    /// Errors of accept(2) that were not the connection's own.
    pub accept_errors: Counter,
    /// Panics of request handlers, each answered with an internal error.
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

    /// The same, where `rule_values` values of one rule have counters of their own.
    #[must_use]
    pub fn with_rule_values(rule_values: usize) -> Metrics {
        let mut registry = Registry::default();
        let reg = &mut registry;
        let rejected = Rejection::ALL.map(Rejection::as_str);
        let closed = Closed::ALL.map(Closed::as_str);
        let minted = "Descriptors that gave units back or brought a limit, by kind";
        let [refunds, overrides] = reg.counters("minted", minted, "kind", ["refund", "override"]);
        let snapshot_time = Gauge::unknown();
        let held = "States that this process holds: with a shared store, those of its stand-in";
        Metrics {
            unmatched: reg.counter("unmatched_descriptors", "Descriptors that no rule matched"),
            allowed: reg.counter("requests_allowed", "Requests that passed"),
            refused: reg.counter("requests_refused", "Requests that were refused"),
            rejected: reg.counters("requests_rejected", "Requests that were not judged, by reason", "reason", rejected),
            refunds,
            overrides,
            store_errors: reg.counter("store_errors", "Requests that neither the store nor a policy answered"),
            store_keys: reg.gauge("store_keys", held, Gauge::default()),
            store_full: reg.counter("store_full", "Requests that met a bound of what this process holds"),
            store: StoreMetrics::new(reg),
            snapshots: reg.counter("snapshots", "Snapshots of the store that were written"),
            snapshot_failures: reg.counter("snapshot_failures", "Snapshots that could not be written"),
            snapshot_time: reg.gauge("snapshot_timestamp_seconds", "When the last snapshot was begun", snapshot_time),
            rules: reg.gauge("rules", "Rules in force", Gauge::default()),
            reloads: reg.counter("rules_reloads", "Changed rules that were taken"),
            reload_failures: reg.counter("rules_reload_failures", "Changed rules that were wrong"),
            connections: reg.gauge("connections", "Connections open now", Gauge::default()),
            connections_accepted: reg.counter("connections_accepted", "Connections taken"),
            closed: reg.counters("connections_closed", "Connections closed by the server, by reason", "reason", closed),
            accept_errors: reg.counter("accept_errors", "Errors while accepting connections"),
            panics: reg.counter("panics", "Request handlers that panicked"),
            decisions: Mutex::default(),
            looks: Looks::default(),
            rule_values,
            registry,
        }
    }

    /// The counter of requests that were not judged for `reason`.
    #[must_use]
    pub fn rejected(&self, reason: Rejection) -> &Counter {
        &self.rejected[reason as usize]
    }

    /// The counter of connections that were closed for `reason`.
    #[must_use]
    pub fn closed(&self, reason: Closed) -> &Counter {
        &self.closed[reason as usize]
    }

    /// Counters for each of `rules`, in their order; those of rules that are gone are dropped,
    /// and those by value start anew.
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
        self.looks.retain(|labels| after.contains_key(labels));
        *self.decisions.lock() = after;
        counters
    }

    /// The counters of what goes by the name `rule` in `domain`, new or known.
    fn outcomes(&self, domain: &str, rule: &str) -> Arc<Outcomes> {
        Arc::clone(self.decisions.lock().entry(labels_of(domain, rule)).or_default())
    }
}
