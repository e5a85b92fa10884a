//! One limit in several regions: each region counts in a shared store of its own.
//!
//! A limit that is shared by regions is decided in each region as if it were alone there. What a region admitted is
//! forced onto the states of the others a moment later. So a shared bucket can owe more than a bucket of one region: all
//! regions together can admit the whole burst before one of them knows of the others. The debt has to be kept until it is
//! paid. If it were cut, as that of an ordinary bucket, regions that burst together would admit more than the limit for
//! ever.

use core::num::NonZeroU32;
use core::time::Duration;

use super::identity::guaranteed_identity;
use super::{Algorithm, Anchor, Denied, MAX_SPAN_NS, Quota, QuotaError};
use crate::Time;

const CUT_OFF_NS: u64 = Regions::CUT_OFF.as_nanos() as u64;

/// The shortest span of a bucket: twice the time after which a region is cut off.
const SHORTEST_SPAN_NS: u64 = 2 * CUT_OFF_NS;

/// A number of regions: 2 to 8.
///
/// ```
/// use spillgate_core::Regions;
///
/// assert_eq!(Regions::new(3).map(Regions::get), Some(3));
/// assert_eq!((Regions::new(1), Regions::new(9)), (None, None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Regions(u8);

impl Regions {
    /// The largest number of regions.
    pub const MAX: u8 = 8;

    /// A region is cut off if something was sent to it and it has accepted nothing for this time: 5 seconds. The depth of
    /// a shared bucket has room for what is admitted meanwhile.
    pub const CUT_OFF: Duration = Duration::from_secs(5);

    /// Returns this number of regions, or `None` if it is below 2 or above [`Regions::MAX`].
    #[must_use]
    pub const fn new(regions: u8) -> Option<Regions> {
        if matches!(regions, 2..=Regions::MAX) { Some(Regions(regions)) } else { None }
    }

    /// Returns the number, 2 to 8.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    const fn times(self) -> u64 {
        self.0 as u64
    }
}

impl From<Regions> for NonZeroU32 {
    fn from(regions: Regions) -> NonZeroU32 {
        NonZeroU32::new(regions.0.into()).unwrap_or(NonZeroU32::MIN)
    }
}

/// What a limit means for all regions together. [`Quota::across`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum AcrossRegions {
    /// Each region admits the whole limit.
    #[default]
    Each,
    /// Each region admits its [share](Quota::share), so all regions together never admit more than the limit.
    Split(Regions),
    /// All regions have one limit. Each region decides at once, and tells the others soon.
    Shared(Regions),
}

impl AcrossRegions {
    /// Returns how many regions split or share the limit. `None` if each region has it for itself.
    #[must_use]
    pub const fn regions(self) -> Option<Regions> {
        match self {
            AcrossRegions::Each => None,
            AcrossRegions::Split(regions) | AcrossRegions::Shared(regions) => Some(regions),
        }
    }

    /// Returns the name that rules files and settings use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            AcrossRegions::Each => "each",
            AcrossRegions::Split(_) => "split",
            AcrossRegions::Shared(_) => "shared",
        }
    }
}

/// A part of time in which the units of a state are added up, before other regions are told.
///
/// ```
/// use core::time::Duration;
/// use spillgate_core::{Quota, Time};
///
/// let window = Quota::fixed_window(10, Duration::from_secs(60)).build()?;
/// let span = window.span(Time::from_nanos(90_000_000_000));
/// assert_eq!((span.start_ns, span.length_ns), (60_000_000_000, 60_000_000_000));
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// When the span begins, in nanoseconds since the epoch: a multiple of the length.
    pub start_ns: u64,
    /// How long the span is, in nanoseconds: at least 1.
    pub length_ns: u64,
}

impl Span {
    /// Returns when the span ends, in nanoseconds since the epoch.
    #[must_use]
    pub const fn end_ns(self) -> u64 {
        self.start_ns.saturating_add(self.length_ns)
    }
}

impl Quota {
    /// Returns the quota that one of several regions uses.
    ///
    /// * `Each`: the same quota.
    /// * `Split`: the [share](Quota::share) of one region.
    /// * `Shared`: the same quota, in the same state. A bucket keeps a greater debt, `(R*B + max(B, R)) * T` and 5 seconds
    ///   for each region, because the units of other regions are charged without a check.
    ///
    /// ```
    /// use spillgate_core::{AcrossRegions, Quota, Regions};
    ///
    /// let three = Regions::new(3).unwrap();
    /// let quota = Quota::per_minute(60).build()?;
    /// assert_eq!(quota.across(AcrossRegions::Split(three))?.capacity(), 20);
    /// assert_eq!(quota.across(AcrossRegions::Shared(three))?.capacity(), 60);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    ///
    /// # Errors
    /// * [`QuotaError::NotShared`]: only a token bucket, a fixed window that is anchored at the epoch, and a sliding
    ///   window counter with one segment can be shared, without a soft share, a penalty or charged refusals.
    /// * [`QuotaError::TooDeepForRegions`]: the greatest debt of a shared bucket would be longer than 2^62 ns.
    /// * [`QuotaError::NothingToSplit`]: a concurrency limit has fewer permits than there are regions.
    pub fn across(&self, across: AcrossRegions) -> Result<Quota, QuotaError> {
        match across {
            AcrossRegions::Each => Ok(self.clone()),
            AcrossRegions::Split(regions) => {
                if self.algorithm == Algorithm::Concurrency && self.limit > 0 && self.limit < regions.times() {
                    return Err(QuotaError::NothingToSplit { limit: self.limit, regions: regions.get() });
                }
                let share = self.share(regions.into());
                Ok(Quota { across, ..share })
            }
            AcrossRegions::Shared(regions) => {
                if let Some(what) = self.why_not_shared() {
                    return Err(QuotaError::NotShared { what });
                }
                // The debt of the guaranteed share is at most this product for all units, and that of the shared bucket is at
                // most this and the seconds.
                let deepest = u128::from(MAX_SPAN_NS).saturating_sub(u128::from(regions.times() * CUT_OFF_NS));
                let each = u128::from(2 * regions.times()) * u128::from(self.interval_ns);
                if self.algorithm == Algorithm::TokenBucket && u128::from(self.capacity) * each > deepest {
                    let capacity = u64::try_from(deepest / each).unwrap_or(u64::MAX);
                    return Err(QuotaError::TooDeepForRegions { capacity, regions: regions.get() });
                }
                Ok(Quota { across, ..self.clone() }.with_bucket())
            }
        }
    }

    /// Returns what the limit means for all regions together.
    #[must_use]
    #[inline]
    pub const fn across_regions(&self) -> AcrossRegions {
        self.across
    }

    /// Returns whether regions have this limit together.
    #[must_use]
    #[inline]
    pub const fn is_shared(&self) -> bool {
        matches!(self.across, AcrossRegions::Shared(_))
    }

    /// Returns the share that a region always has of a shared bucket, whatever the others admit, as a take of `cost`
    /// units asks for it. Returns `None` for a quota that is no shared bucket, and for a cost of 0 or above the capacity.
    ///
    /// It is a bucket with an identity of its own. A unit takes `R*T`, for `R` regions, and the burst is eight takes of
    /// this cost, but at most `B/R`, and at least one take. The state and the bound of its debt are the same for every
    /// cost.
    ///
    /// ```
    /// use spillgate_core::{AcrossRegions, Quota, Regions};
    ///
    /// let shared = AcrossRegions::Shared(Regions::new(3).unwrap());
    /// let share = Quota::per_second(300).build()?.across(shared)?.guaranteed(2).unwrap();
    /// assert_eq!((share.capacity(), share.interval_ns()), (16, 3 * 3_333_334));
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn guaranteed(&self, cost: u64) -> Option<Quota> {
        let AcrossRegions::Shared(regions) = self.across else { return None };
        if self.algorithm != Algorithm::TokenBucket || !(1..=self.capacity).contains(&cost) {
            return None;
        }
        let regions = regions.times();
        let capacity = cost.max(cost.saturating_mul(8).min(self.capacity / regions));
        let share = Quota {
            across: AcrossRegions::Each,
            window_ns: self.window_ns.saturating_mul(regions).min(MAX_SPAN_NS),
            interval_ns: self.interval_ns * regions,
            capacity,
            hard_capacity: capacity,
            identity: guaranteed_identity(self.identity),
            ..self.clone()
        };
        Some(share.with_debt(2 * self.capacity * self.interval_ns * regions))
    }

    /// Returns the span of a take that was counted at `at`: its window, or for a bucket a period of `max(W, B*T, 10 s)`
    /// since the epoch. The units of a span are added up before other regions are told.
    #[must_use]
    pub fn span(&self, at: Time) -> Span {
        let length_ns = match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                self.window_ns.max(self.capacity.saturating_mul(self.interval_ns)).max(SHORTEST_SPAN_NS)
            }
            Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter { .. }
            | Algorithm::Concurrency => self.window_ns.max(1),
        };
        let at = at.as_nanos();
        Span { start_ns: at - at % length_ns, length_ns }
    }

    /// Returns how long the units of a span are told to other regions, in nanoseconds from the first of them: two lengths of
    /// the span, or for a fixed window its length and a second.
    #[must_use]
    pub const fn span_life_ns(&self, span: Span) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow(_) => span.length_ns.saturating_add(1_000_000_000),
            _ => span.length_ns.saturating_mul(2),
        }
    }

    /// Returns the greatest debt of the quota in nanoseconds, as far as its regions decide it: see [`Quota::across`].
    pub(super) const fn greatest_debt_ns(&self) -> u64 {
        if self.interval_ns == 0 {
            return 0;
        }
        match self.across {
            AcrossRegions::Shared(regions) => {
                let more = if self.capacity > regions.times() { self.capacity } else { regions.times() };
                (regions.times() * self.capacity + more) * self.interval_ns + regions.times() * CUT_OFF_NS
            }
            AcrossRegions::Each | AcrossRegions::Split(_) => 2 * self.hard_capacity * self.interval_ns,
        }
    }

    fn why_not_shared(&self) -> Option<&'static str> {
        match self.algorithm {
            Algorithm::SlidingWindowCounter { segments: 2.. } => return Some("a counter with several segments"),
            Algorithm::FixedWindow(Anchor::FirstHit) => return Some("a window that begins at its first hit"),
            Algorithm::SlidingWindowLog => return Some("a sliding window log"),
            Algorithm::LeakyBucket => return Some("a queue"),
            Algorithm::Concurrency => return Some("a concurrency limit"),
            Algorithm::TokenBucket | Algorithm::FixedWindow(Anchor::Epoch) | Algorithm::SlidingWindowCounter { .. } => {
            }
        }
        match (self.soft_ppm, self.penalty_ns, self.denied) {
            (1.., ..) => Some("a soft limit"),
            (_, 1.., _) => Some("a limit with a penalty"),
            (_, _, Denied::Charged) => Some("a limit whose refusals are charged"),
            (0, 0, Denied::Free) => None,
        }
    }
}
