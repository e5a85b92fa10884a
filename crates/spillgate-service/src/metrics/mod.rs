//! The metrics of the server.
//!
//! Most counters exist before the first request, so that a request does not search for them. The values of labels come
//! from the rules and from fixed lists. A value that a client sends becomes a label only if a rule asks for it, and
//! for at most a fixed number of values of each rule.

mod admin;
mod by_limit;
mod by_rule;
mod hangups;
mod histogram;
mod operator;
mod page;
mod peeks;
mod process;
mod regions;
mod registry;
mod reloads;
mod requests;
mod sharded;
mod store;
mod tls;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use spillgate::Verdict;
use spillgate::rules::Rules;
use tokio::time::Instant;

pub use admin::AdminRefusal;
use admin::AdminRefusals;
use by_rule::{Decided, Outcomes, labels_of};
use histogram::Histogram;
use peeks::Peeks;
use registry::Registry;
use requests::Requests;
use sharded::is_sampled;

pub(crate) use by_limit::LimitCounters;
pub use by_limit::LimitHits;
pub use by_limit::judged_units;
pub use by_rule::RuleCounters;
pub use hangups::{HangupMetrics, LostCharge};
pub(crate) use histogram::quantile_ns;
pub use operator::OperatorMetrics;
pub use page::Page;
pub use process::resident_bytes;
pub use regions::RegionMetrics;
pub use registry::{Counter, Format, Gauge};
pub use reloads::ReloadMetrics;
pub use requests::Protocol;
pub(crate) use sharded::ThreadNumber;
pub use store::StoreMetrics;
pub use tls::{HandshakeFailure, TlsMetrics};

/// By default, at most this many values of one rule have their own counters.
const RULE_VALUES: usize = 1000;

/// What a rule decided for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The descriptor was allowed.
    Allowed,
    /// The descriptor exceeds a limit, but is within the further units that the option `soft` of the limit allows.
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
    /// The request contains a refund or a limit of its own, which the listener does not allow.
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
    /// The server had reached its maximum number of open connections.
    Bound,
    /// The client did not send a whole request in time.
    Slow,
    /// The server wanted to end the connection, because it had no requests for a long time or because the server
    /// drained. The connection then ended without an error, or the server closed it after a timeout.
    Idle,
    /// The connection had reached its maximum age.
    Aged,
    /// The client broke the protocol or went away.
    Broken,
    /// The server stopped, and requests of the connection were still in flight when the time to drain was over.
    Drained,
    /// The certificate of the client has ended, or the server now trusts other authorities.
    Certificate,
}

impl Closed {
    const ALL: [Closed; 7] =
        [Closed::Bound, Closed::Slow, Closed::Idle, Closed::Aged, Closed::Broken, Closed::Drained, Closed::Certificate];

    const fn as_str(self) -> &'static str {
        match self {
            Closed::Bound => "bound",
            Closed::Slow => "slow",
            Closed::Idle => "idle",
            Closed::Aged => "aged",
            Closed::Broken => "broken",
            Closed::Drained => "drained",
            Closed::Certificate => "certificate",
        }
    }
}

pub struct Metrics {
    registry: Registry,
    /// The counters of decisions. The key of the map is the text of the labels for domain and rule.
    decisions: Mutex<BTreeMap<Arc<str>, Decided>>,
    /// The counters of limits. The key of the map is the text of the labels for domain, rule and limit.
    limits: Mutex<BTreeMap<Arc<str>, LimitCounters>>,
    /// The maximum number of values of one rule that have their own counters.
    rule_values: usize,
    peeks: Peeks,
    requests: Requests,
    decision_durations: Arc<Histogram>,
    rejected: [Counter; Rejection::ALL.len()],
    /// Descriptors that refunded units.
    pub refunds: Counter,
    /// Descriptors with a limit of their own, which replaced the limits of the rules.
    pub overrides: Counter,
    /// Counts of the blocks and shadow switches that operators have made.
    pub operator: OperatorMetrics,
    /// Requests that got an error of the store instead of a decision.
    pub store_errors: Counter,
    /// States in the memory store. Like the next two metrics, updated only when a client reads the page of metrics.
    pub store_keys: Gauge,
    /// States that the memory store has removed because they had expired.
    pub store_keys_expired: Counter,
    /// Requests that found the memory store full.
    pub store_full: Counter,
    /// Counts of failures, calls and refusals of the shared store.
    pub store: StoreMetrics,
    /// What the server sees of other regions.
    pub regions: RegionMetrics,
    /// Snapshots that were written.
    pub snapshots: Counter,
    /// Snapshots that could not be written.
    pub snapshot_failures: Counter,
    /// The time when the last snapshot began, in seconds since 1970. This metric is not shown before the first
    /// snapshot.
    pub snapshot_time: Gauge,
    /// 1 if the last snapshot was written, and 0 if not. This metric is not shown before the first snapshot.
    pub snapshot_successful: Gauge,
    /// The number of rules that the server uses.
    pub rules: Gauge,
    /// When rules were last loaded without an error, in seconds since 1970. The first load, at the start, counts too.
    pub rules_loaded: Gauge,
    /// Reloads of all kinds.
    pub all_reloads: ReloadMetrics,
    /// Reloads of the rules that succeeded.
    pub reloads: Counter,
    /// Reloads of the rules that failed. After such a reload, the server still uses the old rules.
    pub reload_failures: Counter,
    /// 1 if the last reload of the rules succeeded, or if there was none, and 0 if it failed.
    pub reload_successful: Gauge,
    /// Open connections of all listeners.
    pub connections: Gauge,
    /// Connections that were accepted since the start.
    pub connections_accepted: Counter,
    closed: [Counter; Closed::ALL.len()],
    admin_refused: AdminRefusals,
    /// Event streams of the admin listener that are open.
    pub event_streams: Gauge,
    /// Health watches and calls of reflection that are open.
    pub grpc_open_calls: Gauge,
    /// Charges of HTTP clients that hung up before their answer.
    pub hangups: HangupMetrics,
    /// Charges of requests in domains with `compat: envoy` that got no answer.
    pub unanswered_charges: Counter,
    /// Bytes of `limits.in_flight` that connections have taken.
    pub in_flight: Gauge,
    /// Requests that were refused, or lost with their connection, because `limits.in_flight` was used up.
    pub in_flight_refused: Counter,
    /// Bytes of `limits.unread` that connections have taken.
    pub unread: Gauge,
    /// Requests that were refused because `limits.unread` was used up.
    pub unread_refused: Counter,
    /// Errors of the system call accept(2), without those that concern only the connection to be accepted.
    pub accept_errors: Counter,
    /// Lines that are not in the log, because standard error took no more and too many lines waited.
    pub log_lines_lost: Counter,
    /// Handshakes of TLS, and the ends of certificates.
    pub tls: TlsMetrics,
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
        let (rejected, closed) = (Rejection::ALL.map(Rejection::as_str), Closed::ALL.map(Closed::as_str));
        let minted = "Descriptors that gave units back (refund) or had a limit of their own (override)";
        let [refunds, overrides] = reg.counters("minted", minted, "kind", ["refund", "override"]);
        reg.build_info();
        let ([snapshots, snapshot_failures], [snapshot_time, snapshot_successful]) = of_snapshots(reg);
        let states = "Keys in the memory store. With a shared store, these keys were counted while the shared store failed or took no new keys";
        Metrics {
            requests: Requests::new(reg),
            decision_durations: reg.histogram(
                "decision_duration_seconds",
                "Time from the beginning of a decision to its result, with the wait for the shared store. One in 16 \
                 requests is measured, chosen at random",
            ),
            rejected: reg.counters(
                "requests_rejected",
                "Requests that were not decided, by reason",
                "reason",
                rejected,
            ),
            refunds,
            overrides,
            operator: OperatorMetrics::new(reg),
            store_errors: reg.counter("store_errors", "Requests that ended with an error of the shared store"),
            store_keys: reg.gauge("store_keys", states, Gauge::default()),
            store_keys_expired: reg
                .counter("store_expired_keys", "Keys that were removed from the memory store because they had expired"),
            store_full: reg.counter("store_full", "Requests that did not fit into the memory store"),
            store: StoreMetrics::new(reg),
            regions: RegionMetrics::new(reg),
            snapshots,
            snapshot_failures,
            snapshot_time,
            snapshot_successful,
            rules: reg.gauge("rules", "Rules that the server uses", Gauge::default()),
            rules_loaded: reg.gauge(
                "rules_last_reload_success_timestamp_seconds",
                "When the rules were last loaded without an error, at the start or by a reload, in seconds since 1970",
                Gauge::unknown(),
            ),
            all_reloads: ReloadMetrics::new(reg),
            reloads: reg.counter("rules_reloads", "Reloads of the rules that succeeded"),
            reload_failures: reg
                .counter("rules_reload_failures", "Reloads of the rules that failed. The server still uses the old rules"),
            reload_successful: reg.gauge(
                "rules_last_reload_successful",
                "1 if the last reload of the rules succeeded, or if there was none, and 0 if it failed",
                Gauge::default(),
            ),
            connections: reg.gauge("connections", "Open connections of all listeners", Gauge::default()),
            connections_accepted: reg.counter("connections_accepted", "Accepted connections"),
            closed: reg.counters(
                "connections_closed",
                "Connections that the server closed, by reason",
                "reason",
                closed,
            ),
            admin_refused: admin::refusals(reg),
            event_streams: reg.gauge("event_streams", "Open event streams of the admin listener", Gauge::default()),
            grpc_open_calls: reg.gauge(
                "grpc_open_calls",
                "Open health watches and calls of reflection over gRPC",
                Gauge::default(),
            ),
            hangups: HangupMetrics::new(reg),
            unanswered_charges: reg.counter(
                "unanswered_charges",
                "Charges that stay although their request has no answer, because another descriptor of it failed or its client hung \
                 up (compat: envoy)",
            ),
            in_flight: reg.gauge(
                "in_flight_bytes",
                "Bytes of limits.in_flight that connections have taken for their requests in flight",
                Gauge::default(),
            ),
            in_flight_refused: reg.counter(
                "in_flight_refused",
                "Requests that were refused, or lost with their connection, because limits.in_flight was used up",
            ),
            unread: reg.gauge(
                "unread_bytes",
                "Bytes of limits.unread that connections have taken for answers that clients have not read",
                Gauge::default(),
            ),
            unread_refused: reg
                .counter("unread_refused", "Requests that were refused, because limits.unread was used up"),
            accept_errors: reg.counter("accept_errors", "Errors while accepting connections"),
            log_lines_lost: reg
                .counter("log_lines_lost", "Lines of the log that were lost, because standard error took no more"),
            tls: TlsMetrics::new(reg),
            panics: reg.counter("panics", "Panics of request handlers"),
            decisions: Mutex::default(),
            limits: Mutex::default(),
            peeks: Peeks::default(),
            rule_values,
            registry,
        }
    }

    /// Counts one request that was allowed or refused.
    #[inline]
    pub(crate) fn count_request(&self, thread: ThreadNumber, protocol: Protocol, verdict: &Verdict) {
        self.requests.count(thread, protocol, verdict);
    }

    /// Returns how many requests were allowed, or how many were refused.
    #[must_use]
    pub fn requests(&self, allowed: bool) -> u64 {
        self.requests.count_of(allowed)
    }

    /// Returns how many requests were not decided.
    #[must_use]
    pub fn all_rejected(&self) -> u64 {
        self.rejected.iter().map(Counter::get).sum()
    }

    /// Returns how many descriptors no rule matched.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        self.requests.unmatched()
    }

    /// Returns the current time if the decision that begins now is measured, and `None` otherwise. One in 16 decisions
    /// is measured, chosen at random: two readings of the clock for every decision would cost more than all counters.
    #[inline]
    pub(crate) fn begin_decision() -> Option<Instant> {
        if is_sampled() { Some(Instant::now()) } else { None }
    }

    /// Counts the time since `begun`, which comes from [`begin_decision`](Metrics::begin_decision).
    #[inline]
    pub(crate) fn end_decision(&self, begun: Option<Instant>) {
        if let Some(begun) = begun {
            self.decision_durations.observe(begun.elapsed());
        }
    }

    /// Counts a descriptor that no rule matched.
    #[inline]
    pub(crate) fn count_unmatched(&self, thread: ThreadNumber) {
        self.requests.count_unmatched(thread);
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

    /// Returns the counter of requests that the admin listener refused because of `reason`.
    #[must_use]
    pub fn admin_refused(&self, reason: AdminRefusal) -> &Counter {
        &self.admin_refused[reason as usize]
    }

    /// Returns the counters of each rule in `rules`, in the same order. The server calls this when it loads rules.
    ///
    /// A rule or limit that existed before keeps its counts. The counters of removed rules and limits are dropped. If a
    /// rule has counters for single values, these counters start again at zero.
    pub fn for_rules(&self, rules: &Rules) -> Box<[RuleCounters]> {
        let (before, limits_before) = (self.decisions.lock().clone(), self.limits.lock().clone());
        let (mut after, mut limits_after) = (BTreeMap::new(), BTreeMap::new());
        let counters = rules.rules().map(|rule| {
            let decided: Decided = kept(labels_of(&rule.domain, &rule.path), &before, &mut after);
            let limits = by_limit::labels_of(rule).into_iter();
            let limits = limits.map(|labels| kept(labels.into(), &limits_before, &mut limits_after));
            RuleCounters::new(rule, decided.outcomes, limits.collect())
        });
        let counters: Box<[_]> = counters.collect();
        self.rules.set(i64::try_from(counters.len()).unwrap_or(i64::MAX));
        self.peeks.retain(|labels| after.contains_key(labels));
        // The labels of a new rule can be those of a value of an earlier one.
        after.values_mut().for_each(|decided| decided.has_value = false);
        *self.decisions.lock() = after;
        *self.limits.lock() = limits_after;
        counters
    }

    /// Returns the counters for the domain `domain` and the rule name `rule`, which contains values of clients. If they
    /// do not exist, this function makes them.
    ///
    /// There can be many such names. To save memory, all threads share one copy of their counters.
    fn outcomes(&self, domain: &str, rule: &str) -> Outcomes {
        let new = || Decided { outcomes: Outcomes::single(), has_value: true };
        self.decisions.lock().entry(labels_of(domain, rule)).or_insert_with(new).outcomes.clone()
    }
}

/// Registers the metrics of snapshots. Returns the counters of written and of failed snapshots, and the gauges for the
/// time and the success of the last one.
fn of_snapshots(registry: &mut Registry) -> ([Counter; 2], [Gauge; 2]) {
    let counters = [
        registry.counter("snapshots", "Snapshots that were written"),
        registry.counter("snapshot_failures", "Snapshots that could not be written"),
    ];
    let began = "When the last snapshot began, in seconds since 1970";
    let successful = "1 if the last snapshot was written, and 0 if it could not be written";
    let gauges = [
        registry.gauge("snapshot_timestamp_seconds", began, Gauge::unknown()),
        registry.gauge("snapshot_last_successful", successful, Gauge::unknown()),
    ];
    (counters, gauges)
}

/// Adds the counters with these labels to `after`, and returns them: those from `before` if there are any, or new ones.
fn kept<T: Clone + Default>(labels: Arc<str>, before: &BTreeMap<Arc<str>, T>, after: &mut BTreeMap<Arc<str>, T>) -> T {
    let counters = before.get(&labels).cloned().unwrap_or_default();
    after.entry(labels).or_insert(counters).clone()
}
