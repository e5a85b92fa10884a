//! What a rules file says, once it is checked: rules and their limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use spillgate_core::{Algorithm, Anchor, Binding, Denied, OnStoreFailure, OpKind, Quota, QuotaBuilder};

use super::pattern::Pattern;

/// One domain: the rules of one file.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Its name, as requests give it.
    pub name: Box<str>,
    /// The file it was read from.
    pub file: Arc<str>,
    /// Whether it keeps the reference server's habits (`compat: envoy`).
    pub compat_envoy: bool,
}

/// Where a rule was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file's name.
    pub file: Arc<str>,
    /// The line, counted from 1.
    pub line: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One level of a rule's path: what the request's entry at this depth has to be.
#[derive(Clone, Debug)]
pub struct RuleStep {
    /// The entry's key.
    pub key: Arc<str>,
    /// The value or wildcard pattern as written; `None` matches any value.
    pub value: Option<Arc<str>>,
    /// All values of the wildcard share one counter (`share_threshold`).
    pub shared: bool,
    /// The entry's value is to be part of the metric's name (`value_to_metric`).
    pub value_to_metric: bool,
}

impl RuleStep {
    /// Whether an entry of this key with this value is what the step asks for.
    #[must_use]
    pub fn fits(&self, value: &str) -> bool {
        self.value.as_deref().is_none_or(|own| Pattern::new(own).map_or(own == value, |pattern| pattern.fits(value)))
    }
}

/// One descriptor of a rules file: which requests it matches, and what limits them.
///
/// A rule without limits that is not `unlimited` matches too, and limits nothing.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The domain's name.
    pub domain: Arc<str>,
    /// The path for people: `user_id=vip* > path`.
    pub path: Box<str>,
    /// The path level by level; a request matches only with as many entries.
    pub steps: Box<[RuleStep]>,
    /// Where the rule was written.
    pub origin: Origin,
    /// The limits, all of which have to let a request pass; at most eight.
    pub limits: Box<[Limit]>,
    /// Matching requests pass without being counted (`unlimited: true`).
    pub unlimited: bool,
    /// Judged and counted, never refused.
    pub shadow_mode: bool,
    /// Refuses only if every quota-mode rule of the request refuses.
    pub quota_mode: bool,
    /// Metrics are kept for this rule with its whole path.
    pub detailed_metric: bool,
    /// Metrics carry the value of this rule's last entry.
    pub value_to_metric: bool,
    /// Whatever the file attaches to the rule.
    pub metadata: Option<Metadata>,
    /// The name of the rule's `unlimited` limit, which another rule may replace.
    pub(super) unlimited_name: Option<Box<str>>,
    /// Names of limits that this rule's `unlimited` limit replaces.
    pub(super) unlimited_replaces: Box<[Box<str>]>,
    /// The rule's number in [`Rules::rules`](super::Rules::rules).
    pub(super) index: u32,
}

impl Rule {
    /// The rule's number in the order of [`Rules::rules`](super::Rules::rules), from 0: stable
    /// for one load, so that a table beside the rules can be indexed by it.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    /// How refusals of this rule count in the verdict.
    #[must_use]
    pub const fn binding(&self) -> Binding {
        match (self.shadow_mode, self.quota_mode) {
            (true, _) => Binding::Shadow,
            (false, true) => Binding::Quota,
            (false, false) => Binding::Enforce,
        }
    }

    /// The names that this rule takes out of the request, of all its limits.
    pub(super) fn replaces(&self) -> impl Iterator<Item = &str> {
        let limits = self.limits.iter().flat_map(|limit| limit.replaces.iter());
        self.unlimited_replaces.iter().chain(limits).map(|name| &**name)
    }

    /// The names of all its limits.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let limits = self.limits.iter().filter_map(|limit| limit.name.as_deref());
        self.unlimited_name.as_deref().into_iter().chain(limits)
    }
}

/// One limit of a rule.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Returned to the client, and what `replaces` refers to.
    pub name: Option<Box<str>>,
    /// How much in how long.
    pub quota: Quota,
    /// The named unit it was written with; `None` where a `window` was given, or for concurrency.
    pub unit: Option<Unit>,
    /// Units in each window, as written (places of a concurrency limit).
    pub requests_per_unit: u64,
    /// Names of limits that are left out of the request where this one matches.
    pub replaces: Box<[Box<str>]>,
    /// Charged after the fact: takes are forced, and only looks can be refused.
    pub post_paid: bool,
    /// The entry key whose value picks the slot of a Redis Cluster, so that limits of several descriptors are
    /// decided in one step: those with it, and that of the descriptor which has this entry alone. It is part of
    /// the counter's name: a limit that gets or loses it counts anew.
    pub slot_by: Option<Box<str>>,
    /// Clients are shown it (`expose: false`: enforced all the same, and never named to those who ask).
    pub exposed: bool,
    /// The file and line of the limit; `None` for a limit that came with a request.
    pub origin: Option<Origin>,
    /// The same with refusals charged: for an override in a domain with `compat: envoy`.
    pub(super) charged: Option<Box<Quota>>,
}

impl Limit {
    /// The limit that a request brings with it (RLS `limit`): a fixed window at the epoch.
    ///
    /// ```
    /// use spillgate::rules::{Limit, Unit};
    /// assert_eq!(Limit::overriding(Unit::Hour, 10).quota.window_ns(), 3_600_000_000_000);
    /// ```
    ///
    /// # Panics
    /// Never: every `u32` in every named unit is a valid fixed window.
    #[must_use]
    pub fn overriding(unit: Unit, requests_per_unit: u32) -> Limit {
        let algorithm = Algorithm::FixedWindow(Anchor::Epoch);
        let builder = QuotaBuilder::new(algorithm, u64::from(requests_per_unit), unit.window());
        let build = |denied| builder.denied(denied).build().expect("invariant: any u32 fits a fixed window");
        Limit {
            name: None,
            quota: build(Denied::Free),
            unit: Some(unit),
            requests_per_unit: u64::from(requests_per_unit),
            replaces: Box::default(),
            post_paid: false,
            slot_by: None,
            exposed: true,
            origin: None,
            charged: Some(Box::new(build(Denied::Charged))),
        }
    }
}

impl Limit {
    /// The same limit with another answer for while a shared store fails.
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: OnStoreFailure) -> Limit {
        if self.quota.on_store_failure() == on_store_failure {
            return self;
        }
        self.quota = self.quota.with_on_store_failure(on_store_failure);
        self.charged = self.charged.map(|charged| Box::new(charged.with_on_store_failure(on_store_failure)));
        self
    }

    /// What can be asked of this limit, so that whoever loads rules can ask whether a store
    /// [supports](spillgate_core::Store::supports) all of it.
    pub fn operations(&self) -> impl Iterator<Item = OpKind> {
        let take = if self.post_paid { OpKind::Force } else { OpKind::Take };
        let all = [take, OpKind::Peek, OpKind::Refund, OpKind::Reset, OpKind::Renew];
        all.into_iter().filter(|op| self.quota.supports(*op))
    }
}

/// Whether the permits of a [concurrency](Algorithm::Concurrency) limit are taken where nobody can release them, so that
/// they come back with the end of their lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreleased {
    /// All callers that can take them can release them.
    Never,
    /// Some callers that can take them cannot release them.
    Sometimes,
    /// Some callers that do take them cannot release them.
    Always,
}

/// A window with a name. Windows begin at multiples of their length since the epoch (1970, UTC): days at midnight UTC and
/// weeks on Thursdays. Months have 30 days and years 365, and begin on no calendar's dates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    /// All units, the shortest first.
    pub const ALL: [Unit; 7] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Its name in rules files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// How long it is.
    #[must_use]
    pub const fn window(self) -> Duration {
        Duration::from_secs(match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week => 604_800,
            Unit::Month => 2_592_000,
            Unit::Year => 31_536_000,
        })
    }
}

/// Free-form data attached to a rule (`metadata:`).
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Metadata {
    Null,
    Bool(bool),
    Number(f64),
    Text(Box<str>),
    List(Box<[Metadata]>),
    Map(Box<[(Box<str>, Metadata)]>),
}

/// How an entry was matched at one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// The rule names this very value.
    Exact,
    /// The rule's pattern fits the value.
    Wildcard(String),
    /// The rule names no value.
    KeyAlone,
    /// No rule at this level fits.
    Nothing,
}

/// What came of one attempt at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It fitted and has nested descriptors: the next entry was tried below it.
    WentDeeper,
    /// It fitted, but nothing below it did, and the search went back up.
    WentBack,
    /// It fitted the last entry: this is the rule.
    Matched,
    /// Nothing fitted, or what fitted has nothing below it for the next entry.
    Failed,
}

/// One step of the search for a rule, in the order it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The level, counted from 0: the entry's place in the request.
    pub level: usize,
    /// The entry's key.
    pub key: String,
    /// The entry's value.
    pub value: String,
    /// How it was matched.
    pub how: How,
    /// What came of it.
    pub outcome: Outcome,
    /// Where the descriptor that fitted was written.
    pub origin: Option<Origin>,
}

/// A descriptor's value in the index: the wildcard with its pattern.
#[derive(Clone, Debug)]
pub(super) struct Wildcard {
    pub(super) pattern: Pattern,
    pub(super) node: u32,
}
