//! Sends requests, and waits until a condition is true.

use std::time::Duration;

use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Store, Timing, Verdict};
use spillgate_redis::{Error, RedisStore, SCRIPT_COMMANDS, Settings, StoreErrorKind};
use tokio::time::{Instant, sleep};

/// A timeout that is longer than any test here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns settings with timeouts so long that even a busy machine does not reach them.
pub(crate) fn with_long_timeouts(url: &str) -> Settings {
    Settings { timeout: PATIENCE, connect_timeout: PATIENCE, ..Settings::new(url) }
}

/// Returns a limit for each window of a day. A window begins with its first take.
pub(crate) fn a_day(limit: u64) -> Quota {
    let day = Duration::from_secs(86_400);
    Quota::fixed_window(limit, day).anchor(Anchor::FirstHit).build().expect("the quota is valid")
}

/// Takes one unit of `key`, within the given time.
pub(crate) async fn take(
    store: &RedisStore,
    key: u128,
    quota: &Quota,
    timeout: Duration,
) -> Result<(Verdict, Decision), Error> {
    let hits = [Hit::new(key, quota, Op::take(1), Binding::Enforce)];
    let mut decisions = [Decision::default()];
    let verdict = store.decide(Timing::BY_STORE.within(timeout), &hits, &mut decisions).await?;
    Ok((verdict, decisions[0]))
}

/// Decides within a time that is so short that a busy machine may not even send the request: then asks once more.
pub(crate) async fn sent_within(
    store: &RedisStore,
    within: Duration,
    hits: &[Hit<'_>],
    decisions: &mut [Decision],
) -> Result<Verdict, StoreErrorKind> {
    loop {
        let decided = store.decide(Timing::BY_STORE.within(within), hits, decisions).await;
        match decided.map_err(|error| error.kind()) {
            Err(StoreErrorKind::NotSent) => sleep(Duration::from_millis(1)).await,
            decided => return decided,
        }
    }
}

/// Polls until the condition is true.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "this must become true: {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Sends requests until the store decides one.
pub(crate) async fn until_decided(store: &RedisStore, quota: &Quota) -> (Verdict, Decision) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match take(store, 1, quota, Duration::from_secs(1)).await {
            Ok(decided) => return decided,
            Err(error) => assert!(Instant::now() < deadline, "the store does not decide: {error}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// Returns the command that creates the user `limiter` with the password `secret`. The user may run the commands that
/// the store needs, and those in `more`.
pub(crate) fn limiter(more: &[&str]) -> Vec<String> {
    let usual = ["ACL", "SETUSER", "limiter", "on", ">secret", "~sg:*", "-@all", "+evalsha", "+script|load"];
    let words = usual.iter().chain(more).map(|&word| word.to_owned());
    words.chain(SCRIPT_COMMANDS.map(|command| format!("+{}", command.to_lowercase()))).collect()
}
