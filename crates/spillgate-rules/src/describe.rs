//! Describes a limit for people and for programs: as a label, as a sentence, and as data.
//!
//! Every page, command, log, metric and report uses these descriptions, so a limit looks the same wherever it is shown.

use std::time::Duration;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};
use spillgate_core::{AcrossRegions, Algorithm, Anchor, Binding, Denied, Regions};

use spillgate_limiter::units::{format_bytes, format_duration};
use spillgate_text::thousands;

use crate::{Limit, Rule, Unit};

/// A limit as data. Every answer, command and report shows the same JSON, which has `label` and `summary` in addition
/// to these fields.
///
/// ```
/// use spillgate::rules::{LimitDescription, Rules, RulesFile};
/// let limit = "{unit: minute, limit: 3000, algorithm: token_bucket, burst: 50}";
/// let text = format!("domain: api\ndescriptors: [{{key: user, rate_limit: {limit}}}]");
/// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text }])?;
/// let rule = rules.find("api", &[("user", "ann")]).expect("a rule");
/// let described = LimitDescription::of(rule, &rule.limits[0]);
/// assert_eq!(described.label(), "3,000 per minute");
/// assert_eq!(described.summary(), "3,000 per minute, token bucket, burst 50");
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct LimitDescription {
    /// The name of the domain that has the limit.
    pub domain: String,
    /// The path of the rule that has the limit, for example `user_id=vip* > path`.
    pub rule: String,
    /// The `name` in the rules file. `None` if the limit has no name.
    pub name: Option<String>,
    /// The algorithm, as rules files write it: for example `token_bucket`.
    pub algorithm: String,
    /// The number of units that each window allows, or the number of permits of a concurrency limit.
    pub limit: u64,
    /// The length of a window in nanoseconds. `None` for a concurrency limit.
    pub window_ns: Option<u64>,
    /// The burst of a token bucket, the queue length plus 1 of a leaky bucket, or otherwise the limit.
    pub capacity: u64,
    /// The size of its sketch in bytes. `None` if the limit is counted exactly.
    pub sketch_bytes: Option<usize>,
    /// The name of the rules file, usually its path.
    pub file: String,
    /// The line of the rule in this file, counted from 1.
    pub line: u32,
    /// The anchor, the penalty, the lease and similar options.
    pub options: QuotaOptions,
}

/// The options of a limit beyond its size and its algorithm. Two limits are the same only if these options are equal
/// too.
// `spillgate insight` also reads servers of a version that has fewer options.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaOptions {
    /// For a fixed window, where windows begin: `epoch` or `first_hit`. `None` for other algorithms.
    pub anchor: Option<String>,
    /// For a sliding window counter, the number of segments of a window. `None` for other algorithms.
    pub segments: Option<u8>,
    /// The number of units above which the limit refuses: the capacity, plus the share above it that a soft limit
    /// allows.
    pub hard_capacity: u64,
    /// How long a key stays refused after a refusal, in nanoseconds. 0 means no penalty.
    pub penalty_ns: u64,
    /// Whether refused units are counted: `free` (no) or `charged` (yes).
    pub denied: String,
    /// The nanoseconds after which a permit expires without a renewal. 0 if the limit has no permits.
    pub lease_ns: u64,
    /// Whether requests are charged only after their work (`post_paid`).
    pub post_paid: bool,
    /// Whether answers show the limit to clients. False with `expose: false`.
    #[serde(default = "exposed")]
    pub exposed: bool,
    /// What the limit means for all regions together: `each`, `split` or `shared`.
    #[serde(default = "each")]
    pub across_regions: String,
    /// How many regions split or share the limit. `None` if each region has it for itself.
    pub regions: Option<u8>,
    /// What a refusal by the limit does to its request: `enforce` (refuses it), `shadow` (nothing) or `quota` (as with
    /// `quota_mode`).
    pub binding: String,
}

/// What limits of a version that does not say it are.
const fn exposed() -> bool {
    true
}

/// What limits of a version that knows no regions mean.
fn each() -> String {
    AcrossRegions::Each.as_str().to_owned()
}

impl Limit {
    /// Returns how much the limit allows, for example `30 per minute`, `150 per 2m` or `3 at once`.
    #[must_use]
    pub fn size(&self) -> String {
        let quota = self.written();
        limit_size(quota.limit(), Some(quota.window_ns()).filter(|window_ns| *window_ns > 0))
    }

    /// Returns the name of the limit, or its [size](Limit::size) if it has no name.
    #[must_use]
    pub fn label(&self) -> String {
        self.name.as_deref().map_or_else(|| self.size(), str::to_owned)
    }
}

impl LimitDescription {
    /// Describes `limit`, which is a limit of `rule`.
    #[must_use]
    pub fn of(rule: &Rule, limit: &Limit) -> LimitDescription {
        let (quota, origin) = (limit.written(), &rule.origin);
        LimitDescription {
            domain: rule.domain.to_string(),
            rule: rule.path.to_string(),
            name: limit.name.as_deref().map(str::to_owned),
            algorithm: quota.algorithm().as_str().to_owned(),
            limit: quota.limit(),
            window_ns: Some(quota.window_ns()).filter(|window_ns| *window_ns > 0),
            capacity: quota.capacity(),
            sketch_bytes: limit.sketch.as_ref().map(|sketch| sketch.bytes),
            file: origin.file.to_string(),
            line: origin.line,
            options: QuotaOptions::of(rule, limit),
        }
    }

    /// Returns the description for a server. If `shadow` is true, the whole server is in shadow mode, so the limit is
    /// too.
    #[must_use]
    pub fn on_server(mut self, shadow: bool) -> LimitDescription {
        if shadow {
            Binding::Shadow.as_str().clone_into(&mut self.options.binding);
        }
        self
    }

    /// Returns the name by which texts call the rule of the limit, for example `api: user_id`.
    #[must_use]
    pub fn rule_name(&self) -> String {
        format!("{}: {}", self.domain, self.rule)
    }

    /// Returns the name by which texts call the limit, for example `api: user_id, limit per_user`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}, limit {}", self.rule_name(), self.label())
    }

    /// Returns the name of the limit, or its [size](LimitDescription::size) if it has no name.
    #[must_use]
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.size())
    }

    /// Returns how much the limit allows, as [`limit_size`] writes it.
    #[must_use]
    pub fn size(&self) -> String {
        limit_size(self.limit, self.window_ns)
    }

    /// Returns what the limit allows, with all options that change it, for example
    /// `100 per minute, token bucket, burst 20, refusals charged, penalty 5m, shadow mode`.
    #[must_use]
    pub fn summary(&self) -> String {
        let options = &self.options;
        let duration = |ns| format_duration(Duration::from_nanos(ns));
        let mut parts = vec![self.size()];
        match self.algorithm.as_str() {
            // "3 at once" already names the algorithm.
            "concurrency" => parts.push(format!("lease {}", duration(options.lease_ns))),
            algorithm => parts.push(algorithm.replace('_', " ")),
        }
        match self.algorithm.as_str() {
            "token_bucket" => parts.push(format!("burst {}", thousands(self.capacity))),
            "leaky_bucket" => parts.push(format!("queue {}", thousands(self.capacity.saturating_sub(1)))),
            _ => {}
        }
        if options.anchor.as_deref() == Some(Anchor::FirstHit.as_str()) {
            parts.push("from the first hit".to_owned());
        }
        if let Some(segments) = options.segments.filter(|segments| *segments > 1) {
            parts.push(format!("{segments} segments"));
        }
        if options.hard_capacity > self.capacity {
            parts.push(format!("soft up to {}", thousands(options.hard_capacity)));
        }
        if options.denied == Denied::Charged.as_str() {
            parts.push("refusals charged".to_owned());
        }
        if options.penalty_ns > 0 {
            parts.push(format!("penalty {}", duration(options.penalty_ns)));
        }
        if options.post_paid {
            parts.push("post-paid".to_owned());
        }
        if let Some(regions) = options.regions {
            let word = if options.across_regions == "split" { "split among" } else { "shared by" };
            parts.push(format!("{word} {regions} regions"));
        }
        if let Some(bytes) = self.sketch_bytes {
            parts.push(format!("in a sketch of {}", format_bytes(bytes as u64)));
        }
        if !options.exposed {
            parts.push("not shown to clients".to_owned());
        }
        if let Some(binding) = options.passing() {
            parts.push(format!("{binding} mode"));
        }
        parts.join(", ")
    }
}

impl QuotaOptions {
    /// Returns the mode in which requests over the limit pass: `shadow` or `quota`. `None` if the limit refuses them.
    #[must_use]
    pub fn passing(&self) -> Option<&str> {
        Some(self.binding.as_str()).filter(|binding| !binding.is_empty() && *binding != Binding::Enforce.as_str())
    }

    fn of(rule: &Rule, limit: &Limit) -> QuotaOptions {
        let quota = limit.written();
        let across = limit.quota.across_regions();
        let (anchor, segments) = match quota.algorithm() {
            Algorithm::FixedWindow(anchor) => (Some(anchor.as_str()), None),
            Algorithm::SlidingWindowCounter { segments } => (None, Some(segments)),
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::SlidingWindowLog | Algorithm::Concurrency => {
                (None, None)
            }
        };
        QuotaOptions {
            anchor: anchor.map(str::to_owned),
            segments,
            hard_capacity: quota.hard_capacity(),
            penalty_ns: quota.penalty_ns(),
            denied: quota.denied().as_str().to_owned(),
            lease_ns: quota.lease_ns(),
            post_paid: limit.post_paid,
            exposed: limit.exposed,
            across_regions: across.as_str().to_owned(),
            regions: across.regions().map(Regions::get),
            binding: rule.binding().as_str().to_owned(),
        }
    }
}

impl Serialize for LimitDescription {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Each field is named, so that a new field does not compile until it is in the JSON.
        let LimitDescription {
            domain,
            rule,
            name,
            algorithm,
            limit,
            window_ns,
            capacity,
            sketch_bytes,
            file,
            line,
            options,
        } = self;
        let mut fields = serializer.serialize_struct("LimitDescription", 13)?;
        fields.serialize_field("domain", domain)?;
        fields.serialize_field("rule", rule)?;
        fields.serialize_field("name", name)?;
        fields.serialize_field("label", &self.label())?;
        fields.serialize_field("summary", &self.summary())?;
        fields.serialize_field("algorithm", algorithm)?;
        fields.serialize_field("limit", limit)?;
        fields.serialize_field("window_ns", window_ns)?;
        fields.serialize_field("capacity", capacity)?;
        fields.serialize_field("sketch_bytes", sketch_bytes)?;
        fields.serialize_field("file", file)?;
        fields.serialize_field("line", line)?;
        fields.serialize_field("options", options)?;
        fields.end()
    }
}

/// Returns a number of units with their window, for example `30 per minute` or `150 per 2m`. Without a window, the
/// units are permits: `3 at once`.
///
/// ```
/// use spillgate::rules::limit_size;
/// assert_eq!(limit_size(2_000, Some(3_600_000_000_000)), "2,000 per hour");
/// ```
#[must_use]
pub fn limit_size(units: u64, window_ns: Option<u64>) -> String {
    let units = thousands(units);
    let Some(window) = window_ns.map(Duration::from_nanos) else { return format!("{units} at once") };
    match Unit::ALL.iter().find(|unit| unit.window() == window) {
        Some(unit) => format!("{units} per {}", unit.as_str()),
        None => format!("{units} per {}", format_duration(window)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rules, RulesFile};

    /// Returns the description of a limit. `limit` and `rule` are the YAML of the limit and of the rest of its rule.
    fn described(limit: &str, rule: &str) -> LimitDescription {
        let text = format!("domain: api\ndescriptors:\n- {{key: user{rule}, rate_limit: {limit}}}\n");
        let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text }]).expect("the rules are valid");
        let rule = rules.find("api", &[("user", "ann")]).expect("a rule");
        LimitDescription::of(rule, &rule.limits[0])
    }

    #[test]
    fn a_limit_in_words_has_all_options_that_change_what_it_refuses() {
        let cases = [
            ("{unit: minute, limit: 100}", "100 per minute, fixed window"),
            ("{window: 60s, limit: 100}", "100 per minute, fixed window"),
            ("{window: 90s, limit: 1500}", "1,500 per 1m30s, fixed window"),
            ("{unit: hour, limit: 5, anchor: first_hit}", "5 per hour, fixed window, from the first hit"),
            ("{unit: second, limit: 5, algorithm: token_bucket, burst: 20}", "5 per second, token bucket, burst 20"),
            ("{unit: second, limit: 5, algorithm: leaky_bucket, queue: 9}", "5 per second, leaky bucket, queue 9"),
            ("{limit: 3, algorithm: concurrency, lease: 30s}", "3 at once, lease 30s"),
            (
                "{unit: day, limit: 10, algorithm: token_bucket, denied: charged, penalty: 5m, expose: false}",
                "10 per day, token bucket, burst 10, refusals charged, penalty 5m, not shown to clients",
            ),
        ];
        for (limit, words) in cases {
            assert_eq!(described(limit, "").summary(), words, "{limit}");
        }
        let shadow = described("{unit: minute, limit: 1, name: slow}", ", shadow_mode: true");
        assert_eq!(
            (shadow.summary().as_str(), shadow.label().as_str()),
            ("1 per minute, fixed window, shadow mode", "slow")
        );
    }

    #[test]
    fn a_description_survives_json_and_says_its_words_there() {
        let bucket = described("{unit: second, limit: 1000, algorithm: token_bucket, burst: 2000, name: fast}", "");
        let json = serde_json::to_value(&bucket).expect("a description becomes JSON");
        assert_eq!(
            (&json["label"], &json["summary"]),
            (&"fast".into(), &"1,000 per second, token bucket, burst 2,000".into())
        );
        assert_eq!(
            (&json["file"], &json["line"], &json["window_ns"]),
            (&"api.yaml".into(), &3.into(), &1_000_000_000_u64.into())
        );
        assert_eq!(serde_json::from_value::<LimitDescription>(json).expect("the same description"), bucket);
        let permits = serde_json::to_value(described("{limit: 3, algorithm: concurrency, lease: 30s}", ""));
        assert!(permits.expect("JSON")["window_ns"].is_null());
    }
}
