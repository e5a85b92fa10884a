//! What a rules file says: domains, rules and their limits.
//!
//! Everything here was checked when it was read. The rest of the program can rely on it and needs to know nothing of
//! YAML.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use spillgate_core::{Algorithm, Anchor, Binding, Denied, OnStoreFailure, OpKind, Quota, QuotaBuilder};

use super::pattern::Pattern;

/// One domain: the rules of one file. [`Rules::domains`](super::Rules::domains) lists them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Domain {
    /// The name, as in requests.
    pub name: Box<str>,
    /// The name of the file.
    pub file: Arc<str>,
    /// Whether it behaves as the reference server does (`compat: envoy`).
    pub compat_envoy: bool,
}

/// Where a rule or a limit was written. It is shown as `file:line`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The name of the file.
    pub file: Arc<str>,
    /// The line, counted from 1.
    pub line: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One level of a rule's path: which entry a request must have there. [`Rule::steps`] has them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleStep {
    /// The key of the entry.
    pub key: Arc<str>,
    /// The value or the wildcard as written. `None` matches any value.
    pub value: Option<Arc<str>>,
    /// Whether all values that the wildcard matches share one counter (`share_threshold`).
    pub shared: bool,
    /// Whether metrics of the rule have the value of this entry (`value_to_metric`).
    pub value_to_metric: bool,
}

impl RuleStep {
    /// Whether an entry with this key and `value` matches the step.
    #[must_use]
    pub fn fits(&self, value: &str) -> bool {
        self.value.as_deref().is_none_or(|own| Pattern::new(own).map_or(own == value, |pattern| pattern.fits(value)))
    }
}

/// One descriptor of a rules file: which requests it matches, and what limits them.
///
/// A rule may have no limits. It still matches, and limits nothing. [`Rules::find`](super::Rules::find) has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rule {
    /// The name of the domain.
    pub domain: Arc<str>,
    /// The path as text: `user_id=vip* > path`.
    pub path: Box<str>,
    /// The levels of the path. A descriptor matches only if it has as many entries.
    pub steps: Box<[RuleStep]>,
    /// Where the rule was written.
    pub origin: Origin,
    /// The limits, at most [`MAX_LIMITS`](super::MAX_LIMITS). A request passes only if all of them allow it.
    pub limits: Box<[Limit]>,
    /// Whether matching requests pass without being counted (`unlimited: true`).
    pub unlimited: bool,
    /// Whether the limits are counted but never refuse (`shadow_mode: true`).
    pub shadow_mode: bool,
    /// Whether the rule refuses only together with all other such rules of the request (`quota_mode: true`).
    pub quota_mode: bool,
    /// Whether metrics of the rule have all values of the request (`detailed_metric: true`).
    pub detailed_metric: bool,
    /// Whether metrics of the rule have the value of its last entry (`value_to_metric: true`).
    pub value_to_metric: bool,
    /// The data that the file attaches to the rule (`metadata`).
    pub metadata: Option<Metadata>,
    /// The name of the rule's `unlimited` limit, which another rule may replace.
    pub(super) unlimited_name: Option<Box<str>>,
    /// Names of limits that this rule's `unlimited` limit replaces.
    pub(super) unlimited_replaces: Box<[Box<str>]>,
    /// The index in [`Rules::rules`](super::Rules::rules).
    pub(super) index: u32,
}

impl Rule {
    /// The index of the rule in [`Rules::rules`](super::Rules::rules). It does not change within one load, so a table of
    /// counters, for example, can be indexed by it.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    /// What a refusal by this rule means for the request.
    #[must_use]
    pub const fn binding(&self) -> Binding {
        match (self.shadow_mode, self.quota_mode) {
            (true, _) => Binding::Shadow,
            (false, true) => Binding::Quota,
            (false, false) => Binding::Enforce,
        }
    }

    /// The names of the limits that this rule replaces, of all its limits.
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

/// One limit of a rule. [`Limit::overriding`] makes one without a file; [`Rules::parse_with`](super::Rules::parse_with)
/// reads them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limit {
    /// The name. Clients see it, and `replaces` refers to it.
    pub name: Option<Box<str>>,
    /// How much is allowed in which time.
    pub quota: Quota,
    /// The named unit of the window. `None` if the file has a `window`, and for concurrency.
    pub unit: Option<Unit>,
    /// The units of each window as written. For a concurrency limit, the permits.
    pub requests_per_unit: u64,
    /// Names of limits that this limit replaces: if both match a request, those are left out.
    pub replaces: Box<[Box<str>]>,
    /// Whether requests are charged after the work. A take is then never refused, only a peek is.
    pub post_paid: bool,
    /// The key of the entry whose value picks the slot of a Redis Cluster.
    ///
    /// All limits with the same value of this entry are in one slot, and are decided in one step. The counter's name
    /// depends on it: a limit that gets or loses it starts to count from zero.
    pub slot_by: Option<Box<str>>,
    /// Whether clients see the limit. With `expose: false` it is enforced, and neither its name nor its numbers are
    /// shown.
    pub exposed: bool,
    /// Where the limit was written. `None` for a limit that came with a request.
    pub origin: Option<Origin>,
    /// The same quota with charged refusals, for a limit that comes with a request in a domain with `compat: envoy`.
    pub(super) charged: Option<Box<Quota>>,
}

impl Limit {
    /// A limit that comes with a request (`limit` in Envoy's RLS). It is a fixed window that begins at the epoch.
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
    /// The same limit with another answer while a shared store fails.
    ///
    /// ```
    /// use spillgate::OnStoreFailure;
    /// use spillgate::rules::{Limit, Unit};
    /// let limit = Limit::overriding(Unit::Hour, 10).on_store_failure(OnStoreFailure::Deny);
    /// assert_eq!(limit.quota.on_store_failure(), OnStoreFailure::Deny);
    /// ```
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: OnStoreFailure) -> Limit {
        if self.quota.on_store_failure() == on_store_failure {
            return self;
        }
        self.quota = self.quota.with_on_store_failure(on_store_failure);
        self.charged = self.charged.map(|charged| Box::new(charged.with_on_store_failure(on_store_failure)));
        self
    }

    /// The operations that this limit can need. With them a program can check at start whether a store
    /// [supports](spillgate_core::Store::supports) its rules.
    pub fn operations(&self) -> impl Iterator<Item = OpKind> {
        let take = if self.post_paid { OpKind::Force } else { OpKind::Take };
        let all = [take, OpKind::Peek, OpKind::Refund, OpKind::Reset, OpKind::Renew];
        all.into_iter().filter(|op| self.quota.supports(*op))
    }
}

/// Whether callers that take permits of a [concurrency](Algorithm::Concurrency) limit can release them. A permit that
/// is not released returns when its lease ends. [`Rules::warn_of_unreleased`](super::Rules::warn_of_unreleased) uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreleased {
    /// All callers that can take them can release them.
    Never,
    /// Some callers that can take them cannot release them.
    Sometimes,
    /// Some callers that do take them cannot release them.
    Always,
}

/// A window with a name.
///
/// Windows begin at multiples of their length since the epoch (1970, UTC). Days begin at midnight UTC, and weeks on
/// Thursdays. Months and years do not follow the calendar.
///
/// ```
/// use spillgate::rules::Unit;
/// assert_eq!((Unit::Month.as_str(), Unit::Month.window().as_secs()), ("month", 30 * 86_400));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours, from midnight UTC.
    Day,
    /// 7 days, from Thursday.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All units. The shortest is first.
    pub const ALL: [Unit; 7] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// The name in rules files.
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

    /// The length of the window.
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

/// Data of any form that is attached to a rule (`metadata:`).
///
/// ```
/// use spillgate::rules::{Metadata, Rules, RulesFile};
/// let text = "domain: api\ndescriptors: [{key: user_id, metadata: {team: payments}}]";
/// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
/// let metadata = rules.rules().next().and_then(|rule| rule.metadata.as_ref());
/// assert_eq!(metadata, Some(&Metadata::Map([("team".into(), Metadata::Text("payments".into()))].into())));
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Metadata {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A finite number.
    Number(f64),
    /// Any other scalar, and everything in quotes.
    Text(Box<str>),
    /// A list.
    List(Box<[Metadata]>),
    /// Keys and values, in the order of the file.
    Map(Box<[(Box<str>, Metadata)]>),
}

/// How an entry matched at one level. [`Step`] has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// The rule has exactly this value.
    Exact,
    /// The value fits this wildcard of the rule.
    Wildcard(String),
    /// The rule has a key and no value.
    KeyAlone,
    /// No rule of this level fits.
    Nothing,
}

/// The outcome of one attempt at one level. [`Step`] has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rule fits and has nested descriptors. The next entry was searched below it.
    WentDeeper,
    /// The rule fits, but nothing below it does. The search went back up.
    WentBack,
    /// The rule fits the last entry: it is the rule of the request.
    Matched,
    /// No rule fits, or the rule that fits has nothing nested for the next entry.
    Failed,
}

/// One step of the search for a rule. [`Rules::explain`](super::Rules::explain) returns them in order.
///
/// ```
/// use spillgate::rules::{How, Outcome, Rules, RulesFile};
/// let text = "domain: api\ndescriptors: [{key: path, value: /login*}]";
/// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
/// let steps = rules.explain("api", &[("path", "/login/sso")]);
/// assert_eq!((&steps[0].how, steps[0].outcome), (&How::Wildcard("/login*".into()), Outcome::Matched));
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The level, counted from 0. It is also the index of the entry in the descriptor.
    pub level: usize,
    /// The key of the entry.
    pub key: String,
    /// The value of the entry.
    pub value: String,
    /// How it matched.
    pub how: How,
    /// The outcome.
    pub outcome: Outcome,
    /// Where the rule that fits was written.
    pub origin: Option<Origin>,
}

/// A wildcard in the index, with its node.
#[derive(Clone, Debug)]
pub(super) struct Wildcard {
    pub(super) pattern: Pattern,
    pub(super) node: u32,
}
