//! A guide to the library: one page for each task.
//!
//! The book in the repository (`docs`) has longer pages.

use crate::{Decision, FallbackStore, Limiter, ManualClock, Quota, TickingClock};

/// Which algorithm to choose.
///
/// | what you want | quota | most in any span of length `s` |
/// |---|---|---|
/// | a rate, with short bursts | [`Quota::token_bucket`], or [`Quota::per_second`] and so on | `B + s/T` |
/// | windows that a contract defines, such as each hour | [`Quota::fixed_window`] | `L * (ceil(s/W) + 1)` |
/// | never more than `L` in any window | [`Quota::sliding_window_log`] | `L * (floor(s/W) + 1)` |
/// | about `L` in any window, with less memory | [`Quota::sliding_window_counter`] | `L + L*s/W` |
/// | requests that wait for their turn | [`Quota::leaky_bucket`] | `c + s/T` leave the queue |
/// | requests in progress at the same time | [`Quota::concurrency`] | `N` at any time |
///
/// `L` is the limit, `W` its window, `B` the burst, `T` the time in which a unit comes back, `c` the largest cost of a
/// request, and `N` the number of permits. The bounds of the fixed window and of the counter are those of their default
/// settings. A span of length `s` includes its first and its last instant. A window does not include the instant at
/// which it ends.
///
/// ```
/// use std::time::Duration;
/// use spillgate::{Limiter, Quota};
///
/// const HOUR: Duration = Duration::from_secs(3_600);
/// const LOGIN: Quota = Quota::sliding_window_log(3, HOUR).constant();
///
/// let limiter = Limiter::in_memory();
/// for _ in 0..3 {
///     assert!(limiter.take_now(&LOGIN, ("login", "ann"), 1).allowed);
/// }
/// assert!(!limiter.take_now(&LOGIN, ("login", "ann"), 1).allowed);
/// ```
pub mod algorithms {}

/// Limit the requests of an axum, tonic or hyper service.
///
/// The feature `tower` adds a layer. The documentation of `tower::RateLimitLayer` says what happens to a request, and
/// `tower::key` lists what a request can be counted by. The features `axum` and `tonic` let the layer find the client's
/// address, which these servers add to a request.
///
#[cfg_attr(
    feature = "axum",
    doc = r#"
```
use std::net::SocketAddr;
use axum::Router;
use axum::routing::get;
use spillgate::tower::{RateLimitLayer, key};
use spillgate::{Limiter, Quota};

const PER_CLIENT: Quota = Quota::per_second(10).burst(20).constant();

let limits = RateLimitLayer::new(Limiter::in_memory()).limit("client", &PER_CLIENT, key::address());
let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limits);
let service = app.into_make_service_with_connect_info::<SocketAddr>();
# let _ = service;
```
"#
)]
pub mod middleware {}

/// Share limits among all instances of a program.
///
/// The crate `spillgate-redis` has a store that counts in Redis or Valkey. All programs with the same Redis and the
/// same `secret` share their counts. A [`FallbackStore`] decides while Redis fails.
///
/// ```no_run
/// use std::num::NonZeroU32;
/// use spillgate::{FallbackStore, KeyHasher, Limiter, MemoryOptions, MemoryStore, Quota, SystemClock};
/// use spillgate_redis::{RedisStore, Settings};
///
/// const LOGIN: Quota = Quota::per_minute(5).constant();
///
/// # async fn example(secret: [u8; 16]) -> Result<(), Box<dyn std::error::Error>> {
/// let redis = RedisStore::new(&Settings::new("redis://10.0.0.7/"))?;
/// // Three programs: each admits a third of a limit while Redis fails.
/// let programs = NonZeroU32::new(3).ok_or("no programs")?;
/// let store = FallbackStore::new(redis, MemoryStore::new(MemoryOptions::default()), programs);
/// let limiter = Limiter::with_keys(store, SystemClock::start(), KeyHasher::with_secret(secret));
/// let decision = limiter.take(&LOGIN, ("login", "ann"), 1).await?;
/// # let _ = decision;
/// # Ok(())
/// # }
/// ```
pub mod fleet {}

/// Test a program with limits, without waiting.
///
/// A limiter reads the time from its [clock](crate::clock). With a [`ManualClock`], the test sets the time.
/// `TokioClock` (feature `tokio`) follows the time of tokio, which a test can pause.
///
/// ```
/// use std::time::Duration;
/// use spillgate::{Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, Time};
///
/// const MAIL: Quota = Quota::per_minute(1).constant();
///
/// let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), ManualClock::at(Time::EPOCH));
/// assert!(limiter.take_now(&MAIL, "ann", 1).allowed);
/// assert!(!limiter.take_now(&MAIL, "ann", 1).allowed);
/// limiter.clock().advance(Duration::from_secs(60));
/// assert!(limiter.take_now(&MAIL, "ann", 1).allowed);
/// ```
pub mod testing {}

/// Coming from governor or tower_governor.
///
/// | governor, tower_governor | spillgate |
/// |---|---|
/// | `RateLimiter::direct`, `RateLimiter::keyed` | one [`Limiter`] for all quotas and all kinds of keys |
/// | `const Q: Quota = Quota::per_second(NonZeroU32::new(10).unwrap());` | `const Q: Quota = Quota::per_second(10).constant();` |
/// | `check`, `check_key`, `check_n` | [`take_now`](Limiter::take_now) |
/// | `Err(NotUntil)` and `wait_time_from` | [`Decision::retry_after`] |
/// | `StateInformationMiddleware` | [`Decision::remaining`] |
/// | `until_ready` | `pace::Pacer::acquire` |
/// | `retain_recent` | not needed: expired keys are removed |
/// | `FakeRelativeClock` | [`ManualClock`] |
/// | quanta's upkeep clock | [`TickingClock`] |
/// | `GovernorLayer` | `tower::RateLimitLayer` |
/// | `SmartIpKeyExtractor` | `tower::key::address` with `trusted_proxies` |
///
/// The book shows five tasks, each written with both libraries.
pub mod from_governor {}
