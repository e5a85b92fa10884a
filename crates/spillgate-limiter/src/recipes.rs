//! Two tasks that many programs have. For each task, one function call is enough.
//!
//! Each call makes a [`Quota`] from its arguments. A program that makes the same call often should make the quota once,
//! and call the [`Limiter`] itself.
//!
//! The recipes count separately: the key of [`is_action_allowed`] is `("action", action, user)`, and that of [`hit`] is
//! `("hit", bucket, key)`. A program that makes this key itself can peek at the count or reset it.

use std::time::Duration;

use spillgate_core::{Decision, Denied, Quota, QuotaBuilder, Store, StoreError, StoreErrorKind};

use crate::{Clock, Key, Limiter, MemoryStore};

/// Returns whether `user` may do `action` now: at most `max` times in any `period`.
///
/// Every attempt counts, even a refused one. So a user who keeps trying is refused until there are fewer than `max`
/// attempts in the last `period`. `max` is at most 65,536, because the time of each attempt is stored.
///
/// ```
/// use std::time::Duration;
/// use spillgate::{Limiter, recipes};
///
/// # async fn example() -> Result<(), spillgate::StoreError> {
/// let limiter = Limiter::in_memory();
/// if recipes::is_action_allowed(&limiter, "ann", "reply", Duration::from_secs(60), 5).await? {
///     // Accept the reply.
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The store failed, as for [`Limiter::decide`], or `period` or `max` is not valid for a quota.
pub async fn is_action_allowed<S: Store, C: Clock>(
    limiter: &Limiter<S, C>,
    user: impl Key,
    action: impl Key,
    period: Duration,
    max: u64,
) -> Result<bool, StoreError> {
    let quota = checked(Quota::sliding_window_log(max, period).denied(Denied::Charged))?;
    Ok(limiter.take(&quota, ("action", action, user), 1).await?.allowed)
}

/// Does what [`is_action_allowed`] does, in memory and without a future.
///
/// ```
/// use std::time::Duration;
/// use spillgate::{Limiter, recipes};
///
/// let limiter = Limiter::in_memory();
/// let minute = Duration::from_secs(60);
/// assert!(recipes::is_action_allowed_now(&limiter, "ann", "reply", minute, 1)?);
/// assert!(!recipes::is_action_allowed_now(&limiter, "ann", "reply", minute, 1)?);
/// assert!(recipes::is_action_allowed_now(&limiter, "ann", "like", minute, 1)?);
/// # Ok::<(), spillgate::StoreError>(())
/// ```
///
/// # Errors
/// `period` or `max` is not valid for a quota.
pub fn is_action_allowed_now<C: Clock>(
    limiter: &Limiter<MemoryStore, C>,
    user: impl Key,
    action: impl Key,
    period: Duration,
    max: u64,
) -> Result<bool, StoreError> {
    let quota = checked(Quota::sliding_window_log(max, period).denied(Denied::Charged))?;
    Ok(limiter.take_now(&quota, ("action", action, user), 1).allowed)
}

/// Counts one hit of `key`: at most `limit` hits in any `window`. A refused hit does not count. `bucket` is the name of
/// a group: the hits of a key in different groups count separately.
///
/// The decision says how many hits are left. `limit` can differ from call to call, for example for a premium user, and
/// the earlier hits still count. With another `window`, a key counts from zero. `limit` is at most 65,536.
///
/// ```
/// use std::time::Duration;
/// use spillgate::{Limiter, recipes};
///
/// # async fn example() -> Result<(), spillgate::StoreError> {
/// let limiter = Limiter::in_memory();
/// let hit = recipes::hit(&limiter, "search", "ann", 5, Duration::from_secs(1)).await?;
/// println!("allowed: {}, {} left", hit.allowed, hit.remaining);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The store failed, as for [`Limiter::decide`], or `limit` or `window` is not valid for a quota.
pub async fn hit<S: Store, C: Clock>(
    limiter: &Limiter<S, C>,
    bucket: impl Key,
    key: impl Key,
    limit: u64,
    window: Duration,
) -> Result<Decision, StoreError> {
    let quota = checked(Quota::sliding_window_log(limit, window))?;
    limiter.take(&quota, ("hit", bucket, key), 1).await
}

/// Does what [`hit`] does, in memory and without a future.
///
/// ```
/// use std::time::Duration;
/// use spillgate::{Limiter, recipes};
///
/// let limiter = Limiter::in_memory();
/// let second = Duration::from_secs(1);
/// assert_eq!(recipes::hit_now(&limiter, "search", "ann", 5, second)?.remaining, 4);
/// assert_eq!(recipes::hit_now(&limiter, "search", "ann", 50, second)?.remaining, 48); // ann upgrades
/// # Ok::<(), spillgate::StoreError>(())
/// ```
///
/// # Errors
/// `limit` or `window` is not valid for a quota.
pub fn hit_now<C: Clock>(
    limiter: &Limiter<MemoryStore, C>,
    bucket: impl Key,
    key: impl Key,
    limit: u64,
    window: Duration,
) -> Result<Decision, StoreError> {
    let quota = checked(Quota::sliding_window_log(limit, window))?;
    Ok(limiter.take_now(&quota, ("hit", bucket, key), 1))
}

/// Builds the quota. If a value is not valid, the error has the same kind as for a malformed request.
fn checked(builder: QuotaBuilder) -> Result<Quota, StoreError> {
    builder.build().map_err(|error| StoreError::new(StoreErrorKind::Malformed, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipes_count_separately_and_a_program_peeks_by_their_tuples() {
        const MINUTE: Duration = Duration::from_secs(60);
        const QUOTA: Quota = Quota::sliding_window_log(2, MINUTE).constant();
        let limiter = Limiter::in_memory();
        assert!(hit_now(&limiter, "search", "ann", 1, MINUTE).is_ok_and(|hit| hit.allowed));
        assert_eq!(limiter.peek_now(&QUOTA, ("hit", "search", "ann")).remaining, 1);
        assert_eq!(is_action_allowed_now(&limiter, "ann", "search", MINUTE, 1), Ok(true));
        assert_eq!(limiter.peek_now(&QUOTA, ("action", "search", "ann")).remaining, 1);
        assert_eq!(limiter.peek_now(&QUOTA, ("search", "ann")).remaining, 2);
    }
}
