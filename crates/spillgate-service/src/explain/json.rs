//! An explanation as JSON: how each descriptor found its rule, and what each limit decided.
//!
//! `POST /explain` and `spillgate check --json` write the same format, so one program can read the answers of both.

use serde_json::{Value, json};
use spillgate::Wait;
use spillgate::rules::{Limit, LimitDescription, Origin, Outcome, Rule, Rules, Step};

use super::{After, Explained, ExplainedLimit, KnownRules, Pairs, Told, is_left_out, unknown_names};

/// The maximum number of steps in an explanation. A step is part of the search for the rule of a descriptor. Each step
/// repeats the beginning of a value, so this number bounds the size of the answer. Usual rules need a few steps for
/// each entry.
const STEPS_MAX: usize = 1_000;

/// Requests with the same descriptors, and their decisions.
#[derive(Debug)]
pub struct Explanation<'a> {
    pub domain: &'a str,
    /// The costs of the requests, in their order.
    pub costs: &'a [u64],
    /// The URL of the shared store. `None` if the store is memory.
    pub store: Option<String>,
    /// Whether the requests took units.
    pub takes: bool,
    /// The descriptors, which are the same in all these requests.
    pub descriptors: &'a Pairs<'a>,
    /// What was decided on each request.
    pub explained: &'a [Explained<'a>],
    /// Whether all limits of the server are in shadow mode.
    pub shadow: bool,
    /// The names of the other regions.
    pub regions: &'a [String],
    /// A step shows at most this many bytes of the value that it compares.
    pub value_bytes: usize,
}

impl Explanation<'_> {
    /// Returns the explanation as one JSON object. Times are in nanoseconds. A time that does not exist, such as the
    /// wait of an allowed request, is null.
    pub fn json(&self, rules: &Rules) -> Value {
        let numbered = self.descriptors.iter().enumerate();
        let left_out = |number, limit: &Limit| is_left_out(self.explained, number, limit);
        let mut steps_max = STEPS_MAX;
        let descriptor = |(number, entries): (usize, &Vec<(&str, &str)>)| {
            let steps = rules.explain_within(self.domain, entries, steps_max, self.value_bytes);
            steps_max -= steps.0.len();
            let limit = |rule: &Rule, limit: &Limit| limit_json(rule, limit, self.shadow, left_out(number, limit));
            descriptor_json(rules.find(self.domain, entries), entries, &steps, &limit)
        };
        json!({
            "domain": self.domain,
            "costs": self.costs,
            "store": self.store,
            "takes": self.takes,
            "descriptors": numbered.map(descriptor).collect::<Vec<_>>(),
            "unknown": unknown_names(rules, self.domain, self.descriptors),
            "known": KnownRules::of(rules, self.domain, self.descriptors),
            "asked": self.explained.iter().map(|explained| explained_json(explained, self.regions)).collect::<Vec<_>>(),
        })
    }
}

fn descriptor_json(
    rule: Option<&Rule>,
    entries: &[(&str, &str)],
    (steps, steps_left_out): &(Vec<Step>, usize),
    limit_json: &dyn Fn(&Rule, &Limit) -> Value,
) -> Value {
    let steps: Vec<_> = steps.iter().map(step_json).collect();
    let rule = rule.map(|rule| {
        let limits: Vec<_> = rule.limits.iter().map(|limit| limit_json(rule, limit)).collect();
        json!({
            "domain": &*rule.domain,
            "rule": &*rule.path,
            "file": &*rule.origin.file,
            "line": rule.origin.line,
            "unlimited": rule.unlimited,
            "shadow_mode": rule.shadow_mode,
            "quota_mode": rule.quota_mode,
            "shadow_switches": [],
            "limits": limits,
        })
    });
    // `POST /explain` replaces `block` and `shadow_switches` by those of its server. In `spillgate check`, they stay
    // empty, because only a server has blocks and shadow switches.
    json!({ "entries": entries, "steps": steps, "steps_left_out": steps_left_out, "matched": rule, "block": null })
}

fn step_json(step: &Step) -> Value {
    let outcome = match step.outcome {
        Outcome::WentDeeper => "went_deeper",
        Outcome::WentBack => "went_back",
        Outcome::Matched => "matched",
        Outcome::Failed => "failed",
    };
    json!({
        "level": step.level,
        "key": step.key,
        "value": step.value,
        "how": step.how.as_str(),
        "pattern": step.how.pattern(),
        "outcome": outcome,
        "file": step.origin.as_ref().map(|Origin { file, .. }| &**file),
        "line": step.origin.as_ref().map(|Origin { line, .. }| line),
    })
}

fn limit_json(rule: &Rule, limit: &Limit, shadow: bool, is_left_out: bool) -> Value {
    let mut limit = json!(LimitDescription::of(rule, limit).on_server(shadow));
    limit["replaced"] = json!(is_left_out);
    limit
}

fn explained_json(explained: &Explained<'_>, regions: &[String]) -> Value {
    let limits: Vec<_> = explained.limits.iter().map(|limit| explained_limit_json(limit, regions)).collect();
    json!({
        "cost": explained.cost,
        "at_ns": u64::try_from(explained.at.as_nanos()).unwrap_or(u64::MAX),
        "allowed": explained.verdict.allowed,
        "retry_after_ns": retry_json(explained.verdict.allowed, explained.verdict.retry_after),
        "delay_ns": explained.verdict.delay_ns,
        "limits": limits,
    })
}

fn explained_limit_json(explained: &ExplainedLimit<'_>, regions: &[String]) -> Value {
    let state = |seen: After| json!({ "remaining": seen.remaining, "reset_after_ns": seen.reset_after_ns });
    let decision = &explained.decision;
    json!({
        "descriptor": explained.descriptor,
        "index": explained.number,
        "name": explained.limit.name.as_deref(),
        "label": explained.limit.label(),
        "binding": explained.binding.as_str(),
        "allowed": decision.allowed,
        "reason": decision.reason.as_str(),
        "soft_over": decision.soft_over,
        "capacity": decision.limit,
        "before": state(After::from(&explained.before)),
        "after": state(explained.after),
        "retry_after_ns": retry_json(decision.allowed, decision.retry_after),
        "delay_ns": decision.delay_ns,
        "told": explained.told.as_ref().map(|told| told_json(told, regions)),
    })
}

/// Writes what other regions have told of a limit. A server can be of a region whose name this one does not know.
fn told_json(told: &Told, regions: &[String]) -> Value {
    let (known, others) = told.by_region(regions);
    let unnamed = (others > 0).then_some((None, others));
    let all = known.into_iter().map(|(name, units)| (Some(name), units)).chain(unnamed);
    let by: Vec<_> = all.map(|(region, units)| json!({"region": region, "units": units})).collect();
    json!({"span_start_ms": told.span.start_ns / 1_000_000, "span_ns": told.span.length_ns, "by": by})
}

fn retry_json(allowed: bool, wait: Wait) -> Value {
    if allowed { Value::Null } else { json!(wait.nanos()) }
}
