//! Calls another service (the far side) at its pace, and obeys what its answers say.
//!
//! A service often says in its answers how much its callers may still send. A [`FarSide`] sends calls at an even pace,
//! and changes the pace as the answers say. [`ClientLayer`] does this for the requests of an HTTP client.

mod fields;
mod layer;
mod reset;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use spillgate_core::{Quota, Store, StoreError, Time};

pub use layer::{ClientError, ClientLayer, ClientService};

use crate::pace::learned::{Change, Learned};
use crate::pace::{PaceError, Pacer};
use fields::Said;
use spillgate_limiter::{Clock, Key, Limiter, MemoryStore, SystemClock};

/// The default of [`FarSide::headroom_percent`].
const HEADROOM: u64 = 5;
/// The default of [`FarSide::longest_pause`].
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// Lets calls to another service (the far side) go at a pace that this service accepts.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use spillgate::client::FarSide;
/// use spillgate::{Limiter, Quota};
///
/// // Never more than ten calls a second, even if the answers allow more:
/// let api = FarSide::new(Limiter::in_memory(), &Quota::per_second(10).constant());
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let turn = api.acquire("api.example.com").await?;
/// // Call the service here. It answers:
/// let (status, mut headers) = (StatusCode::OK, HeaderMap::new());
/// headers.insert("ratelimit-policy", "\"calls\";q=300;w=60".parse()?);
/// turn.answered(status, &headers).await?; // From now on, at most five calls a second.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # The pace
///
/// Each key has a pace of its own. The pace begins at the fastest pace that you set, without a burst, and never becomes
/// faster. These fields of an answer change it:
///
/// | answer | what changes |
/// |---|---|
/// | a limit and its window | the pace becomes this limit, minus the headroom |
/// | units that are left, and a time, but no window | the pace spreads these units over this time, if it is long enough |
/// | a limit, and a time, but no window | the pace becomes at most this limit in this time, minus the headroom |
/// | no units are left | no call is sent until the time that the answer says |
/// | 429 or 503 with one of the first two rows | the pace is also at least 20 % slower than that of the refused call |
/// | 429 or 503 without them | the pace is at most half as fast as that of the refused call |
/// | 429 or 503 with `Retry-After` | no call is sent for this time too. A longer pause replaces a shorter one |
///
/// The page "Keep the limits of another service" of the book says which fields are read, and how a time is read. If
/// several calls that were under way at the same time are refused, the pace becomes slower only once.
///
/// The pace rises by 1 % each second, until the next answer says something else. Some refusals are not explained by the
/// answer: it names no limit, or only limits that the pace of the call has kept. After two such refusals within 25
/// seconds, no answer makes the pace rise faster than by 1 % a second for 25 seconds.
///
/// The store keeps the pace of each key. So all programs on one Redis have one pace, and one program learns from the
/// answers of the others. This needs a Redis that allows scripts. While the store fails, a call gets an error, even
/// with a [`FallbackStore`](spillgate_limiter::FallbackStore). Make its store with `Settings::for_calls`, which waits
/// for Redis as long as such calls can.
///
/// All clones share their queues.
pub struct FarSide<S = MemoryStore, C = SystemClock> {
    pacer: Pacer<S, C>,
    limiter: Arc<Limiter<S, C>>,
    learned: Learned,
    longest_pause: Duration,
}

impl<S: Store + 'static, C: Clock + 'static> FarSide<S, C> {
    /// Paces the calls to another service. `fastest` is the fastest pace. Only its limit and its window are used.
    ///
    /// If you know the limit of the far side, take this limit. If you do not, take the highest rate at which you want
    /// to send calls.
    ///
    /// # Panics
    /// Panics if `fastest` is less than one call a day, or more than a million calls a second.
    #[must_use]
    pub fn new(limiter: impl Into<Arc<Limiter<S, C>>>, fastest: &Quota) -> FarSide<S, C> {
        let (limiter, learned) = (limiter.into(), Learned::new(fastest, HEADROOM));
        let pacer = Pacer::learning(Arc::clone(&limiter), learned.clone());
        FarSide { pacer, limiter, learned, longest_pause: LONGEST_PAUSE }
    }

    /// Sets the headroom: how much slower than the limit the pace is, in percent. The default is 5.
    ///
    /// The far side counts with its own clock, and calls take different times to reach it. The headroom keeps the calls
    /// within the limit nevertheless.
    ///
    /// # Panics
    /// Panics if `percent` is above 1,000.
    #[must_use]
    pub fn headroom_percent(self, percent: u64) -> FarSide<S, C> {
        assert!(percent <= 1_000, "a headroom of more than 1,000 percent is no headroom; choose a slower pace");
        let learned = self.learned.with_headroom(percent);
        FarSide { pacer: self.pacer.with_learned(learned.clone()), learned, ..self }
    }

    /// Adds a quota that all calls have to keep too, for example a number of calls a day.
    ///
    /// # Panics
    /// As [`Pacer::and`] does.
    #[must_use]
    pub fn and(self, quota: Quota) -> FarSide<S, C> {
        FarSide { pacer: self.pacer.and(quota), ..self }
    }

    /// Sets how many callers can wait at the same time, for all keys together. The default is 100,000.
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> FarSide<S, C> {
        FarSide { pacer: self.pacer.max_waiters(max_waiters), ..self }
    }

    /// Sets the longest pause that an answer can cause. The default is an hour.
    #[must_use]
    pub fn longest_pause(self, longest_pause: Duration) -> FarSide<S, C> {
        FarSide { longest_pause, ..self }
    }

    /// Waits until a call for `key` may go. The far side counts calls by this key, for example by the host.
    ///
    /// The future may be dropped at any time.
    ///
    /// # Errors
    /// Too many callers wait, or the store failed.
    ///
    /// # Panics
    /// As [`Pacer::acquire`] does.
    pub async fn acquire(&self, key: impl Key) -> Result<Turn<S, C>, PaceError> {
        let key = self.limiter.keys().start().key(&key).finish();
        self.turn(key, None).await
    }

    /// Waits until a call for `key` may go, but at most for `longest`.
    ///
    /// # Errors
    /// As for [`acquire`](FarSide::acquire), and [`TooLate`](PaceError::TooLate) if the turn does not come in time.
    ///
    /// # Panics
    /// As [`Pacer::acquire`] does.
    pub async fn acquire_within(&self, key: impl Key, longest: Duration) -> Result<Turn<S, C>, PaceError> {
        let key = self.limiter.keys().start().key(&key).finish();
        self.turn(key, Some(longest)).await
    }

    async fn turn(&self, key: u128, longest: Option<Duration>) -> Result<Turn<S, C>, PaceError> {
        let level = self.pacer.turn(key, 1, longest).await?;
        Ok(Turn { far_side: self.clone(), key, level, taken: self.limiter.now() })
    }

    /// Returns the pacer, which says how many callers wait.
    #[must_use]
    pub const fn pacer(&self) -> &Pacer<S, C> {
        &self.pacer
    }
}

impl<S, C> Clone for FarSide<S, C> {
    fn clone(&self) -> Self {
        FarSide {
            pacer: self.pacer.clone(),
            limiter: Arc::clone(&self.limiter),
            learned: self.learned.clone(),
            longest_pause: self.longest_pause,
        }
    }
}

impl<S, C> fmt::Debug for FarSide<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FarSide").field("pacer", &self.pacer).finish_non_exhaustive()
    }
}

/// The right to make one call now. Report the answer of the far side with [`answered`](Turn::answered).
pub struct Turn<S = MemoryStore, C = SystemClock> {
    far_side: FarSide<S, C>,
    key: u128,
    /// How slow the pace was when the turn was taken: each level is 1 % slower than the level before.
    level: u64,
    taken: Time,
}

impl<S: Store + 'static, C: Clock + 'static> Turn<S, C> {
    /// Changes the pace as an answer says. If the answer says nothing new, the store is usually not asked.
    ///
    /// # Errors
    /// The store failed. The answer may have changed the pace, or not.
    pub async fn answered(self, status: StatusCode, headers: &HeaderMap) -> Result<(), StoreError> {
        let FarSide { limiter, learned, longest_pause, .. } = &self.far_side;
        let now = limiter.now();
        let said = Said::read(headers, Duration::from_nanos(now.as_nanos()));
        let is_refusal = is_refusal(status);
        // `Retry-After` counts only in a refusal. Any other answer causes a pause only if it says that no units are
        // left.
        let pause = said.retry_after.filter(|_| is_refusal).or_else(|| said.used_up(is_refusal));
        let pause = pause.map(|pause| pause.min(*longest_pause)).filter(|pause| !pause.is_zero());
        let elapsed = Duration::from_nanos(now.as_nanos().saturating_sub(self.taken.as_nanos()));
        let pace = said.pace(elapsed);
        let named = pace.map(|pace| learned.level_of(pace.interval));
        // The level falls by one each second. So this is the level of the pace now, if no other answer has changed it.
        let level = self.level.saturating_sub(elapsed.as_secs());
        let named = named.filter(|named| is_refusal || named.abs_diff(level) > 1);
        let is_bound = pace.is_some_and(|pace| pace.is_bound);
        learned.change(limiter, self.key, &Change { taken_at: self.level, named, is_bound, is_refusal, pause }).await
    }
}

/// Returns whether the far side has refused a call because it gets too many.
fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

impl<S, C> fmt::Debug for Turn<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("level", &self.level).finish_non_exhaustive()
    }
}
