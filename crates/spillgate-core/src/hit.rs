//! A hit: one operation on one limit, for one key.
//!
//! A hit contains everything that the decision needs, so a store does not have to know the rules.

use crate::{Op, Quota};

/// The maximum number of hits in one request. Stores reject a request with more hits as
/// [malformed](crate::StoreErrorKind::Malformed).
pub const MAX_HITS: usize = 256;

/// How the refusal of a hit affects the verdict on its request.
///
/// ```
/// use core::time::Duration;
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, State, Time, decide};
///
/// let none = Quota::fixed_window(0, Duration::from_secs(1)).build()?; // a limit of 0 refuses every take
/// for (binding, allowed) in [(Binding::Enforce, false), (Binding::Shadow, true), (Binding::Quota, false)] {
///     let hits = [Hit::new(7, &none, Op::take(1), binding)];
///     let (mut states, mut decisions) = ([State::default()], [Decision::default()]);
///     let verdict = decide(&mut states, &[0], &hits, Time::EPOCH, &mut decisions);
///     assert_eq!((verdict.allowed, decisions[0].allowed), (allowed, false));
/// }
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Binding {
    /// If this hit is refused, the request is refused.
    #[default]
    Enforce,
    /// This hit is decided and charged, but its refusal never refuses the request.
    Shadow,
    /// The request is refused if all of its hits with this binding are refused.
    Quota,
}

impl Binding {
    /// Returns the name of the binding in rules files and answers: `enforce`, `shadow` or `quota`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Binding::Enforce => "enforce",
            Binding::Shadow => "shadow",
            Binding::Quota => "quota",
        }
    }
}

/// One operation on one limit, for one key.
///
/// ```
/// use spillgate_core::{Binding, Hit, Op, Quota};
///
/// let quota = Quota::per_minute(100).build()?;
/// let take = Hit::new(7, &quota, Op::take(1), Binding::Enforce);
/// let peek = take.with_op(Op::Peek);
/// assert_eq!(take.state_key(), peek.state_key());
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Hit<'q> {
    /// The key: a hash of 128 bits that identifies what is counted, for example one user. The hash has to be made with
    /// a secret, so that clients cannot find two keys that share a state.
    pub key: u128,
    /// The quota under which the key is counted. Several quotas can share a state: see [`state_key`](Hit::state_key).
    pub quota: &'q Quota,
    /// What to do; [`Op::take`] is the usual operation.
    pub op: Op,
    /// How a refusal of this hit affects the verdict on the request.
    pub binding: Binding,
}

impl<'q> Hit<'q> {
    /// In a Redis Cluster, the hash slot depends only on the bits of [`key`](Hit::key) from this bit upwards, whatever
    /// the quota is. These are 30 bits: the name of a Redis key contains them as five base64url digits of 6 bits each.
    pub const SLOT_SHIFT: u32 = 98;

    /// Builds a hit that applies `op` to `quota` for `key`.
    #[must_use]
    pub const fn new(key: u128, quota: &'q Quota, op: Op, binding: Binding) -> Hit<'q> {
        Hit { key, quota, op, binding }
    }

    /// Returns the same hit with another operation.
    #[must_use]
    pub const fn with_op(self, op: Op) -> Hit<'q> {
        Hit { op, ..self }
    }

    /// Returns the same hit with another binding.
    #[must_use]
    pub const fn with_binding(self, binding: Binding) -> Hit<'q> {
        Hit { binding, ..self }
    }

    /// Returns the same hit on another quota. The other quota may have a shorter Rust lifetime.
    #[must_use]
    pub const fn with_quota<'r>(self, quota: &'r Quota) -> Hit<'r> {
        let Hit { key, op, binding, .. } = self;
        Hit { key, quota, op, binding }
    }

    /// Returns the key of the state that this hit is counted in. The state key combines the key of the hit with the
    /// [identity](Quota::identity) of the quota.
    ///
    /// So a quota whose limit was changed continues with the units that were used before, except in a queue
    /// (`leaky_bucket`).
    #[must_use]
    pub const fn state_key(&self) -> u128 {
        self.key ^ self.quota.identity()
    }

    /// Sums the costs of all takes among `hits`. The sum saturates.
    ///
    /// A store passes all hits that count in one state. Their takes are allowed only if this sum fits.
    ///
    /// ```
    /// use spillgate_core::{Binding, Hit, Op, Quota};
    ///
    /// let quota = Quota::per_minute(100).build()?;
    /// let hits = [Op::take(2), Op::Force { cost: 9 }, Op::take(3)].map(|op| Hit::new(7, &quota, op, Binding::Enforce));
    /// assert_eq!(Hit::cost_of_takes(&hits), 5);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn cost_of_takes<'h>(hits: impl IntoIterator<Item = &'h Hit<'q>>) -> u64
    where
        'q: 'h,
    {
        hits.into_iter().fold(0, |sum, hit| match hit.op {
            Op::Take { cost, .. } => sum.saturating_add(cost),
            Op::Peek | Op::Force { .. } | Op::Refund { .. } | Op::Renew { .. } | Op::Settle { .. } | Op::Reset => sum,
        })
    }

    /// Returns one hit that replaces this hit and `other`, or `None` if anything except their costs is different.
    ///
    /// A caller merges hits before it passes them to a store. The merged hit is checked once, is charged once and has
    /// one decision.
    #[must_use]
    pub fn merged(&self, other: &Hit<'q>) -> Option<Hit<'q>> {
        let same = self.key == other.key && self.binding == other.binding && self.quota == other.quota;
        let op = if same { self.op.merged(other.op)? } else { return None };
        Some(self.with_op(op))
    }
}
