//! How a limit of the rules is named in output: where it is, and what it allows.
//!
//! The pages of the admin listener, `spillgate insight` and `spillgate replay` name limits in the same way.

use serde::{Deserialize, Serialize};
use spillgate::rules::{Limit, Rule};
use spillgate::{Algorithm, Anchor, Binding, Denied};

/// How a limit is named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitName {
    /// The domain of its rule.
    pub domain: String,
    /// The keys and values of its rule.
    pub rule: String,
    /// The name that the rules give to it.
    pub name: Option<String>,
    /// The rules file.
    pub file: String,
    /// The line in the rules file.
    pub line: u32,
    /// The name of the algorithm.
    pub algorithm: String,
    /// The units of each window, or the permits of a concurrency limit.
    pub limit: u64,
    /// `None` for a concurrency limit.
    pub window_ns: Option<u64>,
    /// The burst of a token bucket, the queue length plus 1 of a leaky bucket, or otherwise the limit.
    pub capacity: u64,
    /// The other options.
    pub options: QuotaOptions,
}

/// The other options of a limit that change what it refuses. Only limits with the same ones are the same limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QuotaOptions {
    /// For a fixed window: `epoch` or `first_hit`.
    pub anchor: Option<String>,
    /// For a sliding window counter: the segments of a window.
    pub segments: Option<u8>,
    /// The most units that can be used, with the soft share.
    pub hard_capacity: u64,
    /// How long a refused caller is refused.
    pub penalty_ns: u64,
    /// What a refused request costs: `free` or `charged`.
    pub denied: String,
    /// How long a permit is held at most.
    pub lease_ns: u64,
    /// Whether a request is charged after its work.
    pub post_paid: bool,
    /// `enforce`, `shadow` or `quota`.
    pub binding: String,
}

/// Returns the word for what a refusal by a limit does to its request.
pub(crate) fn binding_text(binding: Binding) -> &'static str {
    match binding {
        Binding::Enforce => "enforce",
        Binding::Shadow => "shadow",
        Binding::Quota => "quota",
    }
}

impl LimitName {
    /// Names `limit` of `rule`.
    #[must_use]
    pub fn of(rule: &Rule, limit: &Limit) -> LimitName {
        let (quota, origin) = (&limit.quota, limit.origin.as_ref().unwrap_or(&rule.origin));
        LimitName {
            domain: rule.domain.to_string(),
            rule: rule.path.to_string(),
            name: limit.name.as_deref().map(str::to_owned),
            file: origin.file.to_string(),
            line: origin.line,
            algorithm: quota.algorithm().as_str().to_owned(),
            limit: quota.limit(),
            window_ns: Some(quota.window_ns()).filter(|window_ns| *window_ns > 0),
            capacity: quota.capacity(),
            options: QuotaOptions::of(rule, limit),
        }
    }
}

impl QuotaOptions {
    /// Returns why requests that are over the limit pass. Returns `None` if the limit refuses them.
    pub fn passing(&self) -> Option<&str> {
        Some(self.binding.as_str()).filter(|binding| *binding != "enforce")
    }

    fn of(rule: &Rule, limit: &Limit) -> QuotaOptions {
        let quota = &limit.quota;
        let (anchor, segments) = match quota.algorithm() {
            Algorithm::FixedWindow(Anchor::Epoch) => (Some("epoch"), None),
            Algorithm::FixedWindow(Anchor::FirstHit) => (Some("first_hit"), None),
            Algorithm::SlidingWindowCounter { segments } => (None, Some(segments)),
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::SlidingWindowLog | Algorithm::Concurrency => {
                (None, None)
            }
        };
        let denied = match quota.denied() {
            Denied::Free => "free",
            Denied::Charged => "charged",
        };
        QuotaOptions {
            anchor: anchor.map(str::to_owned),
            segments,
            hard_capacity: quota.hard_capacity(),
            penalty_ns: quota.penalty_ns(),
            denied: denied.to_owned(),
            lease_ns: quota.lease_ns(),
            post_paid: limit.post_paid,
            binding: binding_text(rule.binding()).to_owned(),
        }
    }
}
