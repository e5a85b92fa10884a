//! Rebuilds with spillgate a function that many programs have: "may this user do this action now?". Each call passes
//! the user, the action, the period and the limit.

use super::*;
use spillgate::{Denied, KeyHasher, Limiter, Reason, Wait, recipes};

/// Decides only by the arguments of the call, without configured rules.
struct Actions<'s, S> {
    store: &'s S,
    keys: KeyHasher,
    penalty: Duration,
}

impl<'s, S: Store> Actions<'s, S> {
    fn new(store: &'s S) -> Actions<'s, S> {
        Actions { store, keys: KeyHasher::random(), penalty: Duration::ZERO }
    }

    /// Charges every attempt, also a refused one.
    async fn ask(&self, now: Option<Time>, user: &str, action: &str, period: Duration, max_count: u64) -> Decision {
        let quota = Quota::sliding_window_log(max_count, period).denied(Denied::Charged).penalty(self.penalty);
        let key = self.keys.start().part(user.as_bytes()).part(action.as_bytes()).finish();
        take(self.store, now, key, &build(quota), 1).await.1
    }
}

async fn who_hammers_stays_out(store: &impl Store) {
    let actions = Actions::new(store);
    // There are five attempts a second, and the limit is three. If refusals were free, three attempts would be allowed
    // in every second.
    for i in 0..300 {
        let decision = actions.ask(at(i * 200), "ann", "post", SECOND, 3).await;
        assert_eq!(decision.allowed, i < 3, "attempt {i}");
        assert!(decision.allowed || decision.retry_after > Wait::After(0));
    }
    let last = 299 * 200;
    let decision = actions.ask(at(last + 599), "ann", "post", SECOND, 3).await;
    assert!(!decision.allowed, "each attempt counts for a second, even if it was refused");
    let decision = actions.ask(at(last + 599 + 1000), "ann", "post", SECOND, 3).await;
    assert_eq!(
        (decision.allowed, decision.remaining),
        (true, 2),
        "after a second without attempts, an attempt is allowed"
    );
}

#[tokio::test]
async fn every_attempt_is_charged_and_who_hammers_stays_out() {
    let server = Server::start();
    who_hammers_stays_out(&redis(&server)).await;
    who_hammers_stays_out(&memory()).await;
}

async fn the_reported_wait_is_enough(store: &impl Store) {
    let (actions, mut t_ms) = (Actions::new(store), 0);
    for attempt in 0..50 {
        let decision = actions.ask(at(t_ms), "ann", "post", SECOND, 3).await;
        match decision.retry_after.millis_ceil() {
            Some(0) => t_ms += 10,
            Some(wait_ms) => {
                // An attempt that comes before the retry time is charged, so it postpones the retry.
                let early = actions.ask(at(t_ms + wait_ms - 1), "ann", "post", SECOND, 3).await;
                assert!(!early.allowed, "attempt {attempt}");
                t_ms += wait_ms - 1 + early.retry_after.millis_ceil().expect("the wait is finite");
                assert!(actions.ask(at(t_ms), "ann", "post", SECOND, 3).await.allowed, "attempt {attempt}");
            }
            None => panic!("{decision:?}"),
        }
    }
}

#[tokio::test]
async fn a_user_who_waits_as_long_as_reported_is_allowed() {
    let server = Server::start();
    the_reported_wait_is_enough(&redis(&server)).await;
    the_reported_wait_is_enough(&memory()).await;
}

async fn users_and_actions_count_apart(store: impl Store) {
    let limiter = Limiter::new(store);
    for (user, action) in [("ann", "post"), ("ann", "vote"), ("bob", "post"), ("annp", "ost"), ("an", "npost")] {
        for expected in [true, true, false] {
            let allowed = recipes::is_action_allowed(&limiter, user, action, SECOND * 3600, 2).await;
            assert_eq!(allowed, Ok(expected), "{user} {action}");
        }
    }
    // Different periods have different counters.
    assert_eq!(recipes::is_action_allowed(&limiter, "ann", "post", SECOND * 86_400, 2).await, Ok(true));
    let error =
        recipes::is_action_allowed(&limiter, "ann", "post", SECOND * 60, 65_537).await.expect_err("too many to store");
    assert_eq!(error.detail(), "limit is 65537; it has to be at most 65536");
}

#[tokio::test]
async fn users_actions_and_periods_count_apart() {
    let server = Server::start();
    users_and_actions_count_apart(redis(&server)).await;
    users_and_actions_count_apart(memory()).await;
}

async fn an_offender_is_shut_out(store: &impl Store) {
    let actions = Actions { penalty: SECOND * 60, ..Actions::new(store) };
    for expected in [true, true, false] {
        assert_eq!(actions.ask(at(0), "ann", "post", SECOND, 2).await.allowed, expected);
    }
    let decision = actions.ask(at(59_999), "ann", "post", SECOND, 2).await;
    assert_eq!(
        (decision.allowed, decision.reason),
        (false, Reason::Penalty),
        "the penalty lasts longer than the window"
    );
    // A refused attempt is charged too, so it starts the penalty again.
    assert!(!actions.ask(at(60_000), "ann", "post", SECOND, 2).await.allowed);
    assert!(!actions.ask(at(119_999), "ann", "post", SECOND, 2).await.allowed);
    assert!(actions.ask(at(119_999 + 60_000), "ann", "post", SECOND, 2).await.allowed);
    assert!(actions.ask(at(0), "bob", "post", SECOND, 2).await.allowed);
}

#[tokio::test]
async fn an_offender_is_shut_out_for_the_penalty_and_for_longer_if_it_goes_on() {
    let server = Server::start();
    an_offender_is_shut_out(&redis(&server)).await;
    an_offender_is_shut_out(&memory()).await;
}

#[tokio::test]
async fn keys_expire_after_the_period() {
    let server = Server::start();
    let store = redis(&server);
    let actions = Actions::new(&store);
    for user in ["ann", "bob", "cy"] {
        for _ in 0..5 {
            actions.ask(None, user, "post", Duration::from_millis(300), 2).await;
        }
    }
    let left: Vec<i64> = keys(&server).iter().map(|key| reply_to(&server, &["PTTL", key])).collect();
    // A key expires up to a millisecond after the end of its state. The reply -2 means that the key has expired, and -1
    // would mean that it never expires.
    assert!(left.iter().all(|left| (0..=301).contains(left) || *left == -2), "{left:?}");
    until_empty(&server).await;
}
