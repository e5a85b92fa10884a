//! Checks that a server with these settings can serve these rules.
//!
//! Rules and settings can each be valid and still not fit together. For example, the store cannot count a limit, or no
//! rule limits a forward-auth request. Without these checks, such a fault would show only when requests come.

use std::num::NonZeroU32;
use std::time::Duration;

use spillgate::rules::{Limit, LimitSketch, Rule, RuleFinding, Rules, Unreleased};
use spillgate::sketch::Sketch;
use spillgate::units::{format_bytes, format_duration};
use spillgate::{Algorithm, OnFull, OnStoreFailure, OpKind};

use super::forward_auth::{self, fits};
use super::store;
use crate::command::terminal::{Problem, Problems};
use crate::settings::{Settings, StoreUrl};

/// Checks that a server with these settings can serve the rules. If not, the rules are not used.
pub(crate) fn check_for_server(settings: &Settings, rules: &Rules) -> Result<(), Problems> {
    let mut found = uncounted_by_server(settings, rules);
    found.extend(forward_auth::unlimited(settings, rules));
    found.extend(sketches(settings, rules));
    found.extend(shared_by_regions(settings, rules));
    Problems::check(found)
}

/// Returns an error for each setting that a limit which regions share needs, at the first such limit.
fn shared_by_regions(settings: &Settings, rules: &Rules) -> Vec<Problem> {
    let Some(limit) = limits(rules).find(|limit| limit.quota.is_shared()) else { return Vec::new() };
    let store = &settings.store;
    let needs = [
        (
            store.url == StoreUrl::Memory,
            "the store is memory, which other regions cannot reach",
            "set `store.url` to the shared store of this region: redis://HOST:PORT",
        ),
        (
            store.url != StoreUrl::Memory && !store.scripts,
            "the store is used without scripts (store.scripts: off)",
            "allow scripts in the store, and remove `store.scripts: off`",
        ),
        (
            store.url != StoreUrl::Memory && store.key_secret_file.is_none(),
            "there is no key secret, so the regions cannot know that their keys mean the same",
            "set `store.key_secret_file` to a file with the same secret in all regions (openssl rand -hex 16)",
        ),
        (
            store.url != StoreUrl::Memory && store.expected_nodes.is_none(),
            "the number of servers is not set, so nobody knows how many units may stay untold",
            "set `store.expected_nodes` to the highest number of servers that a region runs",
        ),
        (
            settings.grpc.is_some() && settings.allow.grpc.overriding,
            "callers over gRPC may replace it by a limit of their own (allow.grpc: override)",
            "set `allow.grpc: []`",
        ),
        (
            settings.http.is_some() && settings.allow.http.overriding,
            "callers over HTTP may replace it by a limit of their own (allow.http: override)",
            "set `allow.http: []`",
        ),
    ];
    let problem = |(_, why, help): (bool, &str, &str)| {
        let message = format!("{}: this limit is shared by regions, but {why}", origin(limit));
        Problem::new(message, format!("{help}, or write `across_regions: split` or `each` for this limit"))
    };
    needs.into_iter().filter(|(is_missing, ..)| *is_missing).map(problem).collect()
}

/// Returns whether callers can take permits of the rule's concurrency limits without a way to release them. Only the
/// HTTP API has a request that releases permits. Requests of other protocols and forward-auth requests only take them.
pub(crate) fn unreleased(settings: &Settings, rule: &Rule) -> Unreleased {
    let auth = &settings.forward_auth;
    let by_forward_auth =
        auth.domain.as_deref() == Some(&*rule.domain) && auth.descriptors.iter().any(|entries| fits(rule, entries));
    let has_others = settings.listeners_for_clients().iter().any(|(name, listen)| *name != "http" && listen.is_some());
    match (settings.http.is_some(), has_others) {
        (true, _) if by_forward_auth => Unreleased::Always,
        (false, true) => Unreleased::Always,
        (true, true) => Unreleased::Sometimes,
        (_, false) => Unreleased::Never,
    }
}

/// Returns a finding for each queue (`leaky_bucket`) whose callers cannot wait for their turn. Such a queue refuses every
/// request that would have to wait, so it admits one unit at a time. The callers are those that cannot release permits.
pub(crate) fn unused_queues(settings: &Settings, rule: &Rule) -> Vec<RuleFinding> {
    let callers = unreleased(settings, rule);
    let is_queue = |limit: &Limit| limit.quota.algorithm() == Algorithm::LeakyBucket && limit.quota.capacity() > 1;
    let queue = rule.limits.iter().position(is_queue).filter(|_| callers != Unreleased::Never);
    let finding = queue.map(|at| {
        let interval = format_duration(Duration::from_nanos(rule.limits[at].quota.interval_ns()));
        let (who, help) = match callers {
            Unreleased::Always => ("callers", "write `algorithm: token_bucket` with a `burst`, which needs no waiting"),
            _ => (
                "callers over gRPC",
                "let these callers ask POST /v1/check?wait=1s, or write `algorithm: token_bucket` with a `burst`",
            ),
        };
        let message = format!(
            "{who} cannot wait in the queue of `{}`: what would have to wait is refused, so they get one unit every {interval}",
            rule.path
        );
        let finding = RuleFinding::warning(message, "leaky_bucket", help).at_limit(at);
        if callers == Unreleased::Always { finding } else { finding.as_note() }
    });
    finding.into_iter().collect()
}

/// Checks that the shared store of the settings can count all limits. The memory store can count every limit.
pub(crate) fn check_for_store(settings: &Settings, rules: &Rules) -> Result<(), Problems> {
    Problems::check(uncounted(settings, rules))
}

/// Returns an error for each limit that the store cannot count.
///
/// With a shared store, also returns an error for the first limit with `on_store_failure: local` if
/// `store.expected_nodes` is not set. While the store fails, each server admits its share of such a limit: the limit
/// divided by `store.expected_nodes`.
fn uncounted_by_server(settings: &Settings, rules: &Rules) -> Vec<Problem> {
    let mut found = uncounted(settings, rules);
    let local = |limit: &&Limit| limit.sketch.is_none() && limit.quota.on_store_failure() == OnStoreFailure::Local;
    let is_shared = settings.store.url != StoreUrl::Memory;
    if let (true, None, Some(limit)) = (is_shared, settings.store.expected_nodes, limits(rules).find(local)) {
        let message = format!(
            "{}: while the store fails, each server counts its share of this limit (on_store_failure: local), but the \
             number of servers is not set",
            origin(limit)
        );
        let help = "set `store.expected_nodes` to the highest number of servers that share the store. Or set \
                    `on_store_failure: allow`, `deny` or `error`, for this limit or in the settings for all";
        found.push(Problem::new(message, help));
    }
    found
}

/// Returns notes if the store is memory, because the options `on_store_failure` and `slot_by` of a limit have no effect
/// there. Each of the two options is reported once, at the first limit that sets it.
pub(crate) fn notes(settings: &Settings, rules: &Rules) -> Vec<String> {
    if settings.store.url != StoreUrl::Memory {
        return Vec::new();
    }
    let policy = limits(rules).find(|limit| limit.quota.on_store_failure() != OnStoreFailure::Local);
    let slot = limits(rules).find(|limit| limit.slot_by.is_some());
    let found = [("on_store_failure", policy), ("slot_by", slot)].into_iter();
    let note = |(key, limit): (&str, Option<&Limit>)| {
        Some(format!("{}: {key} has no effect while store.url is memory", origin(limit?)))
    };
    found.filter_map(note).collect()
}

/// Returns errors for sketches that do not fit the settings.
fn sketches(settings: &Settings, rules: &Rules) -> Vec<Problem> {
    let first = limits(rules).find(|limit| limit.sketch.is_some()).map(origin);
    let mut found = Vec::new();
    let is_shared = settings.store.url != StoreUrl::Memory;
    if let (true, None, Some(first)) = (is_shared, settings.store.expected_nodes, &first) {
        let message = format!(
            "{first}: each server counts its share of a limit with representation: sketch, but the number of servers is not set"
        );
        found.push(Problem::new(message, "set `store.expected_nodes` to the highest number of servers"));
    }
    if let (true, Some(nodes)) = (is_shared, settings.store.expected_nodes.and_then(NonZeroU32::new)) {
        found.extend(limits(rules).filter_map(|limit| too_small(limit, nodes)));
    }
    let overflow = if matches!(settings.memory.on_full, OnFull::Sketch { .. }) { settings.memory.sketch } else { 0 };
    let (bytes, most) = (rules.sketch_bytes().saturating_add(overflow), settings.memory.max_heap);
    if bytes > most {
        let (bytes, most) = (format_bytes(bytes as u64), format_bytes(most as u64));
        let place = first.map(|first| format!("{first}: ")).unwrap_or_default();
        let message = format!("{place}all sketches together need {bytes}, but memory.max_heap is {most}");
        let help = "raise `memory.max_heap`, or lower `memory.sketch` or the `sketch_memory` of limits";
        found.push(Problem::new(message, help));
    }
    found
}

/// Returns an error for a sketch that is too small for the share of one server. In the share of a token bucket, the
/// time between two units is longer than in the whole bucket, so the share can need a larger sketch.
fn too_small(limit: &Limit, nodes: NonZeroU32) -> Option<Problem> {
    let share = limit.quota.share(nodes);
    let can = Sketch::highest_rate(&share, limit.sketch.as_ref()?.bytes);
    (share.limit() > 0 && can < LimitSketch::LEAST_UNITS_PER_SECOND).then(|| {
        let message = format!(
            "{}: with {nodes} servers, the sketch of each server is large enough for only {can:.3} units of this limit in a \
             second, from all keys together",
            origin(limit)
        );
        Problem::new(message, "raise `sketch_memory`, shorten the window, or remove `representation`")
    })
}

fn limits(rules: &Rules) -> impl Iterator<Item = &Limit> {
    rules.rules().flat_map(|rule| &rule.limits)
}

fn origin(limit: &Limit) -> String {
    limit.origin.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// Returns an error for each limit that the shared store cannot count.
fn uncounted(settings: &Settings, rules: &Rules) -> Vec<Problem> {
    if settings.store.url == StoreUrl::Memory {
        return Vec::new();
    }
    let supports = |limit: &Limit, kind| store::supports(settings, &limit.quota, kind);
    let mut found = Vec::new();
    for limit in limits(rules).filter(|limit| limit.sketch.is_none()) {
        let kinds = [OpKind::Peek, if limit.post_paid { OpKind::Force } else { OpKind::Take }];
        if !kinds.iter().all(|kind| supports(limit, *kind)) {
            found.push(uncountable(settings, limit));
        }
    }
    found
}

fn uncountable(settings: &Settings, limit: &Limit) -> Problem {
    let (place, algorithm) = (origin(limit), limit.quota.algorithm().as_str());
    let message = format!("{place}: the store {} cannot count this {algorithm}", settings.store.url);
    let help = match settings.store.scripts {
        false => {
            "without scripts (store.scripts: off) the store counts only fixed windows without `penalty`, `denied: \
             charged` and `post_paid`: write such a limit, or allow scripts"
        }
        true => {
            "in a shared store, a window and each of its segments must be a whole number of microseconds, and at most 71 years"
        }
    };
    Problem::new(message, help)
}
