//! Reads one `rate_limit` and builds a checked quota from its fields.
//!
//! Some fields depend on other fields: for example, `burst` is allowed only with the algorithm `token_bucket`. The
//! crate spillgate-core checks the numbers of a quota, but its errors have no line. So this module finds the field that
//! causes the error, and reports the error there.

use std::time::Duration;

use spillgate_core::{AcrossRegions, Algorithm, Anchor, Denied, OnStoreFailure, QuotaBuilder, QuotaError};

use super::errors::Reporter;
use super::regions::{self, Plain};
use super::scalar::{boolean, choice, duration, integer, share_ppm, text};
use super::section::{Fields, Section, found, is_empty, shown};
use super::sketch;
use crate::model::{Defaults, Limit, Origin, RuleStep, Unit};
use spillgate_text::yaml::{Node, Value};
use spillgate_text::{At, nearest};

/// The content of a `rate_limit`.
pub(super) enum Parsed {
    /// A limit that counts.
    Limit(Box<Limit>),
    /// `unlimited: true`, with the two fields that are allowed beside it.
    Unlimited { name: Option<Box<str>>, replaces: Box<[Box<str>]> },
}

/// What the reader of a `rate_limit` needs from the rest of the file.
pub(super) struct LimitContext<'a> {
    /// The file and the line of the limit.
    pub(super) origin: Origin,
    /// The position for errors about a missing field.
    pub(super) at: At,
    /// The path of the descriptor that has this limit. The last step is the descriptor itself.
    pub(super) steps: &'a [RuleStep],
    /// Whether the file behaves as with `compat: envoy`. Refused requests are then charged by default, and a missing
    /// `requests_per_unit` is 0.
    pub(super) compat_envoy: bool,
    /// The defaults for `on_store_failure` and `across_regions`, and the number of regions.
    pub(super) defaults: Defaults,
}

/// The fields that may be given with `unlimited: true`.
const BESIDE_UNLIMITED: [&str; 3] = ["unlimited", "name", "replaces"];

/// Reads one limit. If a field is wrong, reports errors and returns `None`.
///
/// After an error, most other fields are still read, so that one load shows every wrong field. But if `algorithm` is
/// wrong, reading ends, because the other fields depend on the algorithm.
pub(super) fn read(node: &Node, around: &LimitContext<'_>, reporter: &mut Reporter<'_>) -> Option<Parsed> {
    let before = reporter.count();
    let fields = Fields::read(node, Section::Limit, reporter)?;
    let name: Option<Box<str>> =
        fields.get("name").filter(|node| !is_empty(node)).and_then(|node| text(node, "name", reporter)).map(Into::into);
    let replaces = fields.get("replaces").map(|node| replaced_names(node, reporter)).unwrap_or_default();
    let unlimited = fields.get("unlimited").and_then(|node| boolean(node, "unlimited", reporter)).unwrap_or(false);
    if unlimited {
        for (key, at) in fields.keys().filter(|(key, _)| !BESIDE_UNLIMITED.contains(key)) {
            let message = format!("`{key}` has no effect beside `unlimited: true`");
            reporter.error(at, message, "not with unlimited", format!("remove `{key}`, or remove `unlimited`"));
        }
        return (reporter.count() == before).then_some(Parsed::Unlimited { name, replaces });
    }
    let algorithm = match fields.get("algorithm") {
        Some(node) => choice(node, "algorithm", &Algorithm::NAMES, reporter)?,
        None => Algorithm::FixedWindow(Anchor::Epoch),
    };
    let requests_per_unit = requests_per_unit(&fields, around, reporter);
    let window = window(&fields, algorithm, around, reporter);
    let policy = Policy::read(&fields, algorithm, around, reporter);
    let (requests_per_unit, (unit, window)) = (requests_per_unit?, window?);
    let builder =
        QuotaBuilder::new(algorithm, requests_per_unit, window).on_store_failure(around.defaults.on_store_failure);
    let mut builder = options(builder, &fields, reporter);
    if let Some(denied) = denied(&fields, algorithm, policy.post_paid, around, reporter) {
        builder = builder.denied(denied);
    }
    if reporter.count() > before {
        return None;
    }
    let whole = match builder.build() {
        Ok(quota) => quota,
        Err(error) => {
            quota_error(&error, &fields, around, reporter);
            return None;
        }
    };
    let sketch = sketch::read(&whole, &fields, around, reporter);
    let plain = Plain { post_paid: policy.post_paid, is_sketch: sketch.is_some() };
    let quota = regions::across(&whole, plain, &fields, around, reporter);
    if reporter.count() > before {
        return None;
    }
    let quota = quota?;
    let is_split = matches!(quota.across_regions(), AcrossRegions::Split(_));
    Some(Parsed::Limit(Box::new(Limit {
        name,
        quota,
        whole: is_split.then(|| Box::new(whole)),
        unit,
        requests_per_unit,
        replaces,
        post_paid: policy.post_paid,
        slot_by: policy.slot_by,
        exposed: policy.exposed,
        sketch,
        origin: Some(around.origin.clone()),
        charged: None,
    })))
}

/// Returns the names in a `replaces` list.
fn replaced_names(node: &Node, reporter: &mut Reporter<'_>) -> Box<[Box<str>]> {
    let Value::List(items) = &node.value else {
        let help = "write `replaces: [{name: OTHER}]`";
        reporter.error(node.at, "`replaces` has to be a list of names", found(node), help);
        return Box::default();
    };
    let mut names = Vec::new();
    for item in items {
        let Some(fields) = Fields::read(item, Section::Replaces, reporter) else { continue };
        match fields.get("name") {
            Some(node) => names.extend(text(node, "name", reporter).map(Box::from)),
            None => {
                let help = "write `- name: OTHER`";
                fields.missing(fields.at, "an item of `replaces` has no name", "here", help, reporter);
            }
        }
    }
    names.into()
}

/// Reads `requests_per_unit` or `limit`, which mean the same.
///
/// In a file with `compat: envoy`, a missing number is 0, as in Envoy's reference rate limit server. A warning then
/// says that the limit refuses every request. In other files a missing number is an error.
fn requests_per_unit(fields: &Fields<'_>, around: &LimitContext<'_>, reporter: &mut Reporter<'_>) -> Option<u64> {
    if let (Some(_), Some(at)) = (fields.get("requests_per_unit"), fields.key_at("limit")) {
        let help = "remove one of the two keys, because they mean the same";
        reporter.error(at, "`limit` and `requests_per_unit` are both given", "given again", help);
    }
    for key in ["requests_per_unit", "limit"] {
        if let Some(node) = fields.get(key).filter(|node| !(around.compat_envoy && is_empty(node))) {
            return integer(node, key, reporter);
        }
    }
    if around.compat_envoy {
        let message = "the limit has no `requests_per_unit`, so it is 0 and refuses every request".to_owned();
        let help = "write a number, or `requests_per_unit: 0` if every request should be refused".to_owned();
        reporter.warning(around.at, message, "in this limit", help);
        return Some(0);
    }
    let help = "add `requests_per_unit: NUMBER`; 0 refuses every request, and `unlimited: true` allows every request";
    fields.missing(around.at, "the limit has no `requests_per_unit`", "in this limit", help, reporter);
    None
}

/// Reads `unit` or `window`. Returns the length of the window, and the unit if the file gives a `unit`. A concurrency
/// limit has no window, so `unit` and `window` are errors in such a limit.
fn window(
    fields: &Fields<'_>,
    algorithm: Algorithm,
    around: &LimitContext<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<(Option<Unit>, Duration)> {
    let (unit, window) = (fields.get("unit"), fields.get("window"));
    if algorithm == Algorithm::Concurrency {
        for at in ["unit", "window"].into_iter().filter_map(|key| fields.key_at(key)) {
            let help = "remove it, because permits are not counted in a window; `lease` says how long a permit is held";
            reporter.error(at, "`concurrency` has neither `unit` nor `window`", "not with concurrency", help);
        }
        return Some((None, Duration::ZERO));
    }
    let units = Unit::ALL.map(|unit| (unit.as_str(), unit));
    match (unit, window) {
        (Some(_), Some(_)) => {
            let at = fields.key_at("window").unwrap_or(around.at);
            let help = "remove one of the two keys; `unit: minute` is the same as `window: 1m`";
            reporter.error(at, "`unit` and `window` are both given", "given beside unit", help);
            None
        }
        (Some(node), None) => {
            let unit = choice(node, "unit", &units, reporter)?;
            Some((Some(unit), unit.window()))
        }
        (None, Some(node)) => Some((None, duration(node, "window", reporter)?)),
        (None, None) => {
            let help = "add `unit:` with second, minute, hour, day, week, month or year, or a `window:` such as 10s";
            fields.missing(around.at, "the limit has no `unit`", "in this limit", help, reporter);
            None
        }
    }
}

/// Fields of a limit that are not part of its quota. [`Limit`] explains them.
struct Policy {
    post_paid: bool,
    slot_by: Option<Box<str>>,
    exposed: bool,
}

impl Policy {
    /// Reads the fields, and checks them against the algorithm and the path.
    fn read(
        fields: &Fields<'_>,
        algorithm: Algorithm,
        around: &LimitContext<'_>,
        reporter: &mut Reporter<'_>,
    ) -> Policy {
        let post_paid = fields.get("post_paid").and_then(|node| boolean(node, "post_paid", reporter)).unwrap_or(false);
        if post_paid && algorithm == Algorithm::Concurrency {
            let at = fields.key_at("post_paid").unwrap_or(around.at);
            let help = "remove `post_paid`, because a permit is always taken before the work";
            reporter.error(at, "`concurrency` cannot have `post_paid`", "not with concurrency", help);
        }
        let slot_by = fields.get("slot_by").and_then(|node| slot_by(node, around.steps, reporter));
        let exposed = fields.get("expose").and_then(|node| boolean(node, "expose", reporter)).unwrap_or(true);
        Policy { post_paid, slot_by, exposed }
    }
}

/// Reads `slot_by`, which has to be a key on the path of the rule, because a request that matches the rule has no other
/// keys.
fn slot_by(node: &Node, steps: &[RuleStep], reporter: &mut Reporter<'_>) -> Option<Box<str>> {
    let key = text(node, "slot_by", reporter)?;
    // Entries that match a key with a star can have different keys, so such a key names no entry.
    let keys = || steps.iter().map(|step| &*step.key).filter(|key| !key.contains('*'));
    if keys().any(|own| own == key) {
        return Some(key.into());
    }
    let help = match nearest(key, keys()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the keys of this rule are {}", keys().collect::<Vec<_>>().join(", ")),
    };
    reporter.error(node.at, format!("`{}` is not a key of this rule", shown(key)), "not on the rule's path", help);
    None
}

/// Returns whether refused requests are charged. `None` keeps the default of [`QuotaBuilder`], which is
/// [`Denied::Free`].
///
/// If the limit has `denied`, the value of `denied` decides. Without `denied`, refused requests are charged only in a
/// file with `compat: envoy`, as in Envoy's reference rate limit server. Even there, a concurrency limit and a limit
/// with `post_paid` do not charge them by default.
fn denied(
    fields: &Fields<'_>,
    algorithm: Algorithm,
    post_paid: bool,
    around: &LimitContext<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<Denied> {
    let Some(node) = fields.get("denied") else {
        // A limit with `post_paid` refuses only requests of cost 0, so there is nothing to charge for a refusal.
        let charged = around.compat_envoy && algorithm != Algorithm::Concurrency && !post_paid;
        return charged.then_some(Denied::Charged);
    };
    let denied =
        choice(node, "denied", &[Denied::Free, Denied::Charged].map(|denied| (denied.as_str(), denied)), reporter)?;
    let has_penalty = fields.get("penalty").is_some() || fields.may_misspell("penalty");
    if denied == Denied::Charged && post_paid && !has_penalty {
        let help = "remove `denied`, because `post_paid` refuses only requests of cost 0; or add a `penalty`: `denied: charged` \
                    lets each refused request start the penalty from its beginning";
        reporter.error(node.at, "`denied: charged` has no effect beside `post_paid`", "not with post_paid", help);
    }
    Some(denied)
}

/// Copies options such as `burst` and `penalty` from the fields to the builder of the quota. The builder checks later
/// whether the algorithm has these options.
fn options(mut builder: QuotaBuilder, fields: &Fields<'_>, reporter: &mut Reporter<'_>) -> QuotaBuilder {
    if let Some(burst) = fields.get("burst").and_then(|node| integer(node, "burst", reporter)) {
        builder = builder.burst(burst);
    }
    if let Some(queue) = fields.get("queue").and_then(|node| integer(node, "queue", reporter)) {
        builder = builder.queue(queue);
    }
    if let Some(segments) = fields.get("segments").and_then(|node| segments(node, reporter)) {
        builder = builder.segments(segments);
    }
    let anchors = [Anchor::Epoch, Anchor::FirstHit].map(|anchor| (anchor.as_str(), anchor));
    if let Some(anchor) = fields.get("anchor").and_then(|node| choice(node, "anchor", &anchors, reporter)) {
        builder = builder.anchor(anchor);
    }
    if let Some(soft_ppm) = fields.get("soft").and_then(|node| share_ppm(node, "soft", reporter)) {
        builder = builder.soft_ppm(soft_ppm);
    }
    if let Some(penalty) = fields.get("penalty").and_then(|node| duration(node, "penalty", reporter)) {
        builder = builder.penalty(penalty);
    }
    if let Some(lease) = fields.get("lease").and_then(|node| duration(node, "lease", reporter)) {
        builder = builder.lease(lease);
    }
    let policies = OnStoreFailure::ALL.map(|policy| (policy.as_str(), policy));
    let policy = fields.get("on_store_failure").and_then(|node| choice(node, "on_store_failure", &policies, reporter));
    if let Some(policy) = policy {
        builder = builder.on_store_failure(policy);
    }
    builder
}

/// Reads `segments`. The quota checks the exact bounds later.
fn segments(node: &Node, reporter: &mut Reporter<'_>) -> Option<u8> {
    let segments = integer(node, "segments", reporter)?;
    let fits = u8::try_from(segments).ok();
    if fits.is_none() {
        let message = format!("`segments` has to be 1 to 128, not {segments}");
        let help = "write `segments: 10`, or another number by which the window is divisible";
        reporter.error(node.at, message, "too many", help);
    }
    fits
}

/// Reports an error of the quota at the field that causes it.
fn quota_error(error: &QuotaError, fields: &Fields<'_>, around: &LimitContext<'_>, reporter: &mut Reporter<'_>) {
    let first = |keys: &[&str]| keys.iter().find_map(|key| fields.get(key).map(|node| node.at));
    let limit = ["requests_per_unit", "limit"];
    let (at, help) = match *error {
        QuotaError::TooLarge { field, max, .. } => {
            let at = first(&[field]).or_else(|| first(&limit));
            (at, format!("lower it to at most {max}"))
        }
        QuotaError::Span { field } => (first(&[field]), "write a duration such as 10s".to_owned()),
        QuotaError::Inexact { below, above, .. } => {
            let above = above.map(|above| format!(" or {above}")).unwrap_or_default();
            (first(&limit), format!("write {below}{above}, or choose a longer window"))
        }
        QuotaError::TooDeep { .. } => (first(&["burst", "queue"]), "lower it, or shorten the window".to_owned()),
        QuotaError::NoBurst => {
            (first(&["burst"]), "write 1 or more; to refuse every request, set the limit to 0".to_owned())
        }
        QuotaError::Segments { .. } => (first(&["segments"]), "write 1 to 128".to_owned()),
        QuotaError::Indivisible { window_ns, segments } => {
            let divides = |n: &u8| window_ns.is_multiple_of(u64::from(*n));
            let near = (1..=128).filter(divides).min_by_key(|n: &u8| n.abs_diff(segments)).unwrap_or(1);
            (first(&["segments"]), format!("write {near}, because the window is divisible by {near}"))
        }
        QuotaError::NotFor { field, .. } => {
            let key = field.split(':').next().unwrap_or(field);
            (fields.key_at(key), home_of(key))
        }
        _ => (None, "check this limit".to_owned()),
    };
    let at = at.or_else(|| first(&limit)).unwrap_or(around.at);
    reporter.error(at, error.to_string(), "this field", help);
}

/// Returns a help text for an option that this algorithm does not have. The text names the algorithm that has the
/// option.
fn home_of(option: &str) -> String {
    match option {
        "burst" => "remove it, or write `algorithm: token_bucket`".to_owned(),
        "queue" => "remove it, or write `algorithm: leaky_bucket`".to_owned(),
        "segments" => "remove it, or write `algorithm: sliding_window_counter`".to_owned(),
        "anchor" => "remove it, or write `algorithm: fixed_window`".to_owned(),
        "lease" => "remove it, or write `algorithm: concurrency`".to_owned(),
        other => format!("remove `{other}`"),
    }
}
