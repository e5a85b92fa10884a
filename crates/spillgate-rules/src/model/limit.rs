//! One limit of a rule: a quota with its name, its line in the file, and other options.
//!
//! A quota says how much is allowed in which time, and a store needs only the quota to decide. Other parts of the
//! program also need the rest of a limit: answers and reports show the name, the unit and the line.

use std::time::Duration;

use spillgate_core::{Algorithm, Anchor, Denied, OnStoreFailure, OpKind, Quota, QuotaBuilder};

use super::rule::Origin;
use super::sketch::LimitSketch;

/// One limit of a rule.
///
/// [`Rules::parse`](crate::Rules::parse) reads limits from files. [`Limit::overriding`] makes a limit without a
/// file, and has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limit {
    /// The name that clients see, and that `replaces` of other limits refers to.
    pub name: Option<Box<str>>,
    /// How much is allowed in which time, and by which algorithm. A store needs only this part of a limit.
    pub quota: Quota,
    /// The quota of all regions together, if `quota` is the part of one region (`across_regions: split`).
    pub whole: Option<Box<Quota>>,
    /// The named unit of the window. `None` for a limit with `window`, and for a concurrency limit.
    pub unit: Option<Unit>,
    /// The number that the rules give: the units that each window allows, or the permits of a concurrency limit.
    pub requests_per_unit: u64,
    /// Names of limits of other rules. If a request matches the rule of this limit, limits with these names are not
    /// checked for the request.
    pub replaces: Box<[Box<str>]>,
    /// Whether requests are charged after the work. If true, the limit refuses only requests of cost 0, which clients
    /// send before the work. It counts all other requests, even if the units do not fit.
    pub post_paid: bool,
    /// The key of an entry. In a Redis Cluster, the value of this entry chooses the hash slot of the counter.
    ///
    /// If two limits of a domain have the same `slot_by`, and a request has one value for this entry, both counters are
    /// in one slot. Redis can then decide both limits in one step. The Redis key of a counter depends on `slot_by`. If
    /// you add or remove `slot_by`, the limit therefore starts to count from zero.
    pub slot_by: Option<Box<str>>,
    /// Whether clients see the limit. If false (`expose: false`), the limit is enforced, but answers show neither its
    /// name nor its numbers.
    pub exposed: bool,
    /// The sketch in which the limit counts (`representation: sketch`). `None` if the limit has a state for each key.
    pub sketch: Option<LimitSketch>,
    /// The file and the line of the limit. `None` for a limit that comes with a request.
    pub origin: Option<Origin>,
    /// A copy of `quota` that also charges refused requests. A limit that comes with a request uses the copy if the
    /// domain has `compat: envoy`. `None` for a limit from a file.
    pub(in super::super) charged: Option<Box<Quota>>,
}

impl Limit {
    /// Makes a limit that comes with a request (`limit` in Envoy's rate limit protocol). Its algorithm is the fixed
    /// window. The windows begin at multiples of their length since the epoch.
    ///
    /// ```
    /// use spillgate::rules::{Limit, Unit};
    /// assert_eq!(Limit::overriding(Unit::Hour, 10).quota.window_ns(), 3_600_000_000_000);
    /// ```
    ///
    /// # Panics
    /// Never, because every `u32` with every named unit is a valid fixed window.
    #[must_use]
    pub fn overriding(unit: Unit, requests_per_unit: u32) -> Limit {
        let algorithm = Algorithm::FixedWindow(Anchor::Epoch);
        let builder = QuotaBuilder::new(algorithm, u64::from(requests_per_unit), unit.window());
        let build = |denied| builder.denied(denied).build().expect("invariant: any u32 fits a fixed window");
        Limit {
            name: None,
            quota: build(Denied::Free),
            whole: None,
            unit: Some(unit),
            requests_per_unit: u64::from(requests_per_unit),
            replaces: Box::default(),
            post_paid: false,
            slot_by: None,
            exposed: true,
            sketch: None,
            origin: None,
            charged: Some(Box::new(build(Denied::Charged))),
        }
    }

    /// Returns the same limit with another setting for the answer that clients get while a shared store fails.
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

    /// Returns the quota as the rules write it: that of all regions, if they split it, or else `quota`.
    #[must_use]
    pub fn written(&self) -> &Quota {
        self.whole.as_deref().unwrap_or(&self.quota)
    }

    /// Returns the operations that this limit can need. When a program starts, it can use this list to check whether a
    /// store [supports](spillgate_core::Store::supports) its rules.
    ///
    /// ```
    /// use spillgate::rules::{Limit, Unit};
    /// use spillgate::{MemoryOptions, MemoryStore, Store};
    /// let store = MemoryStore::new(MemoryOptions::default());
    /// let limit = Limit::overriding(Unit::Hour, 10);
    /// assert!(limit.operations().all(|op| store.supports(&limit.quota, op)));
    /// ```
    pub fn operations(&self) -> impl Iterator<Item = OpKind> {
        let take = if self.post_paid { OpKind::Force } else { OpKind::Take };
        let all = [take, OpKind::Peek, OpKind::Refund, OpKind::Reset, OpKind::Renew, OpKind::Settle];
        let sketch = self.sketch.is_some();
        let by_sketch = move |op: &OpKind| !sketch || matches!(op, OpKind::Take | OpKind::Force | OpKind::Peek);
        all.into_iter().filter(|op| self.quota.supports(*op)).filter(by_sketch)
    }
}

/// Whether callers that take permits of a [concurrency](Algorithm::Concurrency) limit can release them.
///
/// If a permit is not released, it becomes free when its lease ends. Until then no other caller can take the permit.
/// [`Rules::warn_of_unreleased`](crate::Rules::warn_of_unreleased) uses this type. Other cases do not
/// exist, so no variant will be added.
///
/// ```
/// use spillgate::rules::{Rules, RulesFile, Unreleased};
/// let text = "domain: api\ndescriptors: [{key: user, rate_limit: {algorithm: concurrency, limit: 2, lease: 1m}}]";
/// let files = [RulesFile { name: "api.yaml".into(), text: text.into() }];
/// let mut rules = Rules::parse(&files)?;
/// rules.warn_of_unreleased(&files, |_| Unreleased::Always);
/// assert_eq!(rules.warnings().len(), 1);
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreleased {
    /// All callers that can take permits can release them.
    Never,
    /// Some callers may take permits that they cannot release, but it is not known whether such callers exist.
    Sometimes,
    /// It is certain that some callers take permits that they cannot release.
    Always,
}

/// A window with a name.
///
/// No variant will be added, because these are all units of Envoy's protocol. A rule can have a window of another
/// length with `window`, for example `window: 90s`.
///
/// Fixed windows begin at multiples of their length since the epoch (1970, UTC), unless the limit has
/// `anchor: first_hit`. So days begin at midnight UTC, and weeks begin on Thursdays. Months and years do not follow the
/// calendar.
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
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All units, from the shortest to the longest.
    pub const ALL: [Unit; 7] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Returns the name in rules files, for example `minute`.
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

    /// Returns the length of the window, for example 30 days for a month.
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
