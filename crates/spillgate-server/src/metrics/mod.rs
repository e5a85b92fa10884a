//! What the server counts. Every handle exists before the first request, so that counting is one
//! atomic addition. Label values come from the rules loaded and from fixed lists; from clients only
//! where a rule asks for it, and then up to a bound.

mod by_rule;
mod looks;
mod store;

use std::collections::HashSet;
use std::fmt;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use spillgate::rules::{Rule, Rules};

use by_rule::Outcomes;
use looks::Looks;

pub use by_rule::RuleCounters;
pub use store::StoreMetrics;

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabels {
    domain: String,
    rule: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// Every handle, and the registry that reads them.
pub struct Metrics {
    registry: Registry,
    decisions: Family<RuleLabels, Counter>,
    /// The label sets that `decisions` holds, so that a reload can take away what is no rule any more.
    labels: Mutex<HashSet<RuleLabels>>,
    /// Descriptors that no rule matched.
    pub unmatched: Counter,
    looks: Looks,
    /// Requests that passed.
    pub allowed: Counter,
    /// Requests that were refused.
    pub refused: Counter,
    rejected: Family<ReasonLabels, Counter>,
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
    /// When the last snapshot was begun, in seconds since the epoch; 0 before the first.
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
    closed: Family<ReasonLabels, Counter>,
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
        let mut registry = Registry::with_prefix("spillgate");
        let mut metrics = Metrics {
            decisions: family(&mut registry, "decisions", "Descriptors judged, by rule and outcome"),
            labels: Mutex::new(HashSet::new()),
            unmatched: counter(&mut registry, "unmatched_descriptors", "Descriptors that no rule matched"),
            looks: Looks::new(&mut registry),
            allowed: counter(&mut registry, "requests_allowed", "Requests that passed"),
            refused: counter(&mut registry, "requests_refused", "Requests that were refused"),
            rejected: family(&mut registry, "requests_rejected", "Requests that were not judged, by reason"),
            refunds: Counter::default(),
            overrides: Counter::default(),
            store_errors: counter(
                &mut registry,
                "store_errors",
                "Requests that neither the store nor a policy answered",
            ),
            store_keys: gauge(
                &mut registry,
                "store_keys",
                "States that this process holds: with a shared store, those of its stand-in",
            ),
            store_full: counter(&mut registry, "store_full", "Requests that met a bound of what this process holds"),
            store: StoreMetrics::new(&mut registry),
            snapshots: counter(&mut registry, "snapshots", "Snapshots of the store that were written"),
            snapshot_failures: counter(&mut registry, "snapshot_failures", "Snapshots that could not be written"),
            snapshot_time: gauge(&mut registry, "snapshot_timestamp_seconds", "When the last snapshot was begun"),
            rules: gauge(&mut registry, "rules", "Rules in force"),
            reloads: counter(&mut registry, "rules_reloads", "Changed rules that were taken"),
            reload_failures: counter(&mut registry, "rules_reload_failures", "Changed rules that were wrong"),
            connections: gauge(&mut registry, "connections", "Connections open now"),
            connections_accepted: counter(&mut registry, "connections_accepted", "Connections taken"),
            closed: family(&mut registry, "connections_closed", "Connections closed by the server, by reason"),
            accept_errors: counter(&mut registry, "accept_errors", "Errors while accepting connections"),
            panics: counter(&mut registry, "panics", "Request handlers that panicked"),
            registry,
        };
        let minted: Family<KindLabels, Counter> =
            family(&mut metrics.registry, "minted", "Descriptors that gave units back or brought a limit, by kind");
        metrics.refunds = minted.get_or_create_owned(&KindLabels { kind: "refund" });
        metrics.overrides = minted.get_or_create_owned(&KindLabels { kind: "override" });
        for reason in Rejection::ALL {
            drop(metrics.rejected(reason));
        }
        for reason in Closed::ALL {
            drop(metrics.closed(reason));
        }
        metrics
    }

    /// The counter of requests that were not judged for `reason`.
    pub fn rejected(&self, reason: Rejection) -> Counter {
        self.rejected.get_or_create_owned(&ReasonLabels { reason: reason.as_str() })
    }

    /// The counter of connections that were closed for `reason`.
    pub fn closed(&self, reason: Closed) -> Counter {
        self.closed.get_or_create_owned(&ReasonLabels { reason: reason.as_str() })
    }

    /// Counters for each of `rules`, in their order; those of rules that are gone are dropped,
    /// and those by value start anew.
    pub fn for_rules(&self, rules: &Rules) -> Box<[RuleCounters]> {
        let gone = std::mem::take(&mut *self.labels.lock());
        let plain = |rule: &Rule| self.outcomes(&rule.domain, &rule.path);
        let counters: Box<[_]> = rules.rules().map(|rule| RuleCounters::new(rule, plain(rule))).collect();
        self.rules.set(i64::try_from(counters.len()).unwrap_or(i64::MAX));
        let held = self.labels.lock();
        for gone in gone.difference(&held) {
            self.decisions.remove(gone);
        }
        let outcome = OUTCOMES[0];
        self.looks.retain(|look| {
            held.contains(&RuleLabels { domain: look.domain.clone(), rule: look.rule.clone(), outcome })
        });
        counters
    }

    /// The counters of what goes by the name `rule` in `domain`, new or known.
    fn outcomes(&self, domain: &str, rule: &str) -> Outcomes {
        Outcomes(OUTCOMES.map(|outcome| {
            let label = RuleLabels { domain: domain.to_owned(), rule: rule.to_owned(), outcome };
            let counter = self.decisions.get_or_create_owned(&label);
            self.labels.lock().insert(label);
            counter
        }))
    }

    /// All metrics as OpenMetrics text.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail; half a text would be better than none anyway.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let metric = Counter::default();
    registry.register(name, help, metric.clone());
    metric
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let metric = Gauge::default();
    registry.register(name, help, metric.clone());
    metric
}

fn family<L>(registry: &mut Registry, name: &str, help: &str) -> Family<L, Counter>
where
    L: EncodeLabelSet + Clone + fmt::Debug + Eq + std::hash::Hash + Send + Sync + 'static,
{
    let metric = Family::<L, Counter>::default();
    registry.register(name, help, metric.clone());
    metric
}
