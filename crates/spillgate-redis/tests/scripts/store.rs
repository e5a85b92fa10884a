//! Tests the store as a program uses it: many tasks, several connections, one state.

use std::collections::BTreeSet;
use std::time::Duration;

use spillgate_core::{Anchor, Binding, Decision, Hit, Op, OpKind, Quota, Store, Time, Timing, Wait};
use spillgate_redis::{Decoded, LogForm, RedisStore, SCRIPT_COMMANDS, Script, ScriptCall, Settings};

use crate::support::client::{Client, RedisServer, bytes, call};

const TASKS: usize = 64;
const TAKES: usize = 40;

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns settings with timeouts so long that even a busy machine does not reach them.
fn with_long_timeouts(server: &RedisServer) -> Settings {
    let url = format!("redis://127.0.0.1:{}/", server.port());
    Settings { timeout: PATIENCE, connect_timeout: PATIENCE, ..Settings::new(url) }
}

/// Returns quotas of a thousand units, which become free again only long after the test.
fn quotas() -> Vec<Quota> {
    let day = Duration::from_secs(86_400);
    let builders = [
        Quota::token_bucket(1, day).burst(1000),
        Quota::leaky_bucket(1, day).queue(999),
        Quota::fixed_window(1000, day * 365),
        Quota::fixed_window(1000, day).anchor(Anchor::FirstHit),
        Quota::sliding_window_log(1000, day),
        Quota::sliding_window_counter(1000, day * 365),
        Quota::sliding_window_counter(1000, day * 360).segments(10),
        Quota::concurrency(1000).lease(day),
    ];
    builders.map(|builder| builder.build().expect("the quota is valid")).into()
}

async fn admitted(store: &RedisStore, quota: &Quota, key: u128) -> usize {
    let mut admitted = 0;
    for _ in 0..TAKES {
        let hits = [Hit::new(key, quota, Op::Take { cost: 1, max_wait_ns: u64::MAX }, Binding::Enforce)];
        let verdict = store.decide(Timing::BY_STORE, &hits, &mut [Decision::default()]).await.expect("Redis answers");
        admitted += usize::from(verdict.allowed);
    }
    admitted
}

#[tokio::test]
async fn many_tasks_on_one_key_are_admitted_exactly_the_limit() {
    let server = RedisServer::start();
    let stores = [(); 2].map(|()| RedisStore::new(&with_long_timeouts(&server)).expect("the URL is valid"));
    for (key, quota) in (1u128..).zip(quotas()) {
        let tasks: Vec<_> = (0..TASKS)
            .map(|i| {
                let (store, quota) = (stores[i % 2].clone(), quota.clone());
                tokio::spawn(async move { admitted(&store, &quota, key).await })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("no task panics");
        }
        assert_eq!(sum, 1000, "the units that were admitted by {} takes under {quota:?}", TASKS * TAKES);
    }
}

#[tokio::test]
async fn a_user_who_may_do_no_more_than_is_said_can_do_everything() {
    let server = RedisServer::start();
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "limiter", "on", ">secret", "~sg:*", "-@all", "+evalsha", "+script|load"]);
    for command in SCRIPT_COMMANDS {
        user.arg(format!("+{}", command.to_lowercase()));
    }
    server.connect().ask_one(user);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let lists = Settings { url, ..with_long_timeouts(&server) };
    let sets = Settings { log: LogForm::Zset, ..lists.clone() };
    let stores = [RedisStore::new(&lists), RedisStore::new(&sets)];
    let [lists, sets] = stores.map(|store| store.expect("the URL is valid"));
    lists.wait_connected().await.expect("the user has the rights");
    sets.wait_connected().await.expect("the user has the rights");
    for (store, quota) in [&lists, &sets].into_iter().flat_map(|store| quotas().into_iter().map(move |q| (store, q))) {
        let mut receipt = None;
        for turn in 0..4 {
            let mut decisions = [Decision::default()];
            let op = match (turn, receipt) {
                (1, Some(receipt)) if quota.supports(OpKind::Renew) => Op::Renew { receipt },
                (1, _) => Op::Force { cost: 2000 },
                (2, receipt) => Op::Refund { cost: 1, receipt },
                (3, _) => Op::Reset,
                _ => Op::take(1),
            };
            let hits = [Hit::new(1, &quota, op, Binding::Enforce)];
            store.decide(Timing::BY_STORE, &hits, &mut decisions).await.expect("the user has the rights");
            // If the caller sets the time of the decision, the scripts for logs and leases call PEXPIRE instead of
            // PEXPIREAT.
            store
                .decide(Timing::at(Time::from_nanos(7)), &hits, &mut decisions)
                .await
                .expect("the user has the rights");
            receipt = receipt.or(decisions[0].receipt);
        }
    }
}

#[test]
fn the_commands_are_those_of_the_scripts() {
    for command in SCRIPT_COMMANDS {
        let called = format!("'{command}'");
        assert!(Script::ALL.iter().any(|script| script.source.contains(&called)), "no script calls {command}");
    }
    let calls = Script::ALL.iter().flat_map(|script| script.source.split("redis.call('").skip(1));
    let called: BTreeSet<&str> = calls.filter_map(|rest| rest.split('\'').next()).collect();
    assert!(called.len() > 10, "{called:?}");
    assert!(called.iter().all(|command| SCRIPT_COMMANDS.contains(command)), "{called:?}");
}

#[tokio::test]
async fn a_server_that_lost_its_scripts_gets_them_again() {
    let server = RedisServer::start();
    let store = RedisStore::new(&with_long_timeouts(&server)).expect("the URL is valid");
    let quota = Quota::per_day(10).build().expect("the quota is valid");
    let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    for left in (0..10).rev() {
        server.connect().ask_one(redis::cmd("SCRIPT").arg("FLUSH").clone());
        let mut decisions = [Decision::default()];
        let verdict = store.decide(Timing::BY_STORE, &hits, &mut decisions).await.expect("Redis answers");
        assert_eq!((verdict.allowed, decisions[0].remaining), (true, left));
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&format!("redis://127.0.0.1:{}/", server.port())).await.expect("the server is up");
    let quota = Quota::per_day(10).build().expect("the quota is valid");
    let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    let name = spillgate_redis::RedisKey::of(&hits[0]);
    server.connect().ask_one(redis::cmd("SADD").arg(name.as_bytes()).arg("foreign").clone());
    let verdict = store.decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut [Decision::default()]).await;
    assert!(verdict.as_ref().is_err_and(|error| error.detail().contains("WRONGTYPE")), "{verdict:?}");
}

/// Returns the number of calls for these hits, whether they are allowed, and their longest wait.
fn calls(client: &mut Client, now: Time, hits: &[Hit<'_>]) -> (usize, bool, Wait) {
    let mut request = ScriptCall::new(Some(now), hits).expect("the request is well formed");
    let (mut calls, mut decisions) = (0, vec![Decision::default(); hits.len()]);
    loop {
        calls += 1;
        let reply = client.ask_one(call(&request));
        match request.decode(bytes(&reply), &mut decisions).expect("the reply is valid") {
            Decoded::Verdict(verdict) => return (calls, verdict.allowed, verdict.retry_after),
            Decoded::CallAgain => {}
        }
    }
}

/// The state of a bucket contains `T`, the time in which one unit drains. A take first runs a short script, which
/// writes nothing if the take's quota has another `T`. If this quota refuses the take, nothing has to be written, so
/// one call is enough. If the quota allows the take, a second call runs the general script, which can decide every
/// request.
#[test]
fn a_refusal_under_another_quota_is_one_call_of_the_short_script() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let day = |limit| Quota::token_bucket(limit, Duration::from_secs(86_400));
    let [large, small, larger] = [1000, 10, 2000].map(|limit| day(limit).build().expect("the quota is valid"));
    let at = |ns: u64| Time::from_nanos(1_790_000_000_000_000_000 + ns);
    let hit = |key, quota, cost| Hit::new(key, quota, Op::take(cost), Binding::Enforce);
    let mut ask = |now, hits: &[Hit<'_>]| calls(&mut client, now, hits);
    assert_eq!(ask(at(0), &[hit(7, &large, 800)]), (1, true, Wait::NONE));
    // The debt is 800 units of 86.4 s each, and the small quota allows 10 units. So the take of one unit waits until
    // 800 - 10 + 1 = 791 units have drained.
    let wait = |units: u64, passed_ns| Wait::After(units * 86_400_000_000 - passed_ns);
    assert_eq!(ask(at(0), &[hit(7, &small, 1)]), (1, false, wait(791, 0)));
    assert_eq!(ask(at(5), &[hit(7, &small, 1)]), (1, false, wait(791, 5)));
    // 800 + 1201 - 2000 = 1 unit has to drain.
    assert_eq!(ask(at(5), &[hit(7, &larger, 1201)]), (1, false, wait(1, 5)));
    // The request also takes from another state. This state must stay as it is, because the request is refused.
    assert_eq!(ask(at(5), &[hit(8, &large, 1000), hit(7, &small, 1)]), (1, false, wait(791, 5)));
    assert_eq!(ask(at(5), &[hit(8, &large, 1000)]), (1, true, Wait::NONE));
    assert_eq!(ask(at(5), &[hit(7, &larger, 1200)]), (2, true, Wait::NONE));
    // The clock is set back by ten days. The general script refuses the take, but it lowers the debt and writes the
    // lower debt.
    let back = Time::from_nanos(1_790_000_000_000_000_000 - 864_000_000_000_000);
    let (count, allowed, cut) = ask(back, &[hit(8, &small, 1)]);
    assert_eq!((count, allowed), (2, false));
    assert_eq!(ask(back, &[hit(8, &small, 1)]), (1, false, cut));
    // A quota without penalties ignores the penalty of another quota on the same state.
    let punished = day(1000).penalty(Duration::from_secs(60)).build().expect("the quota is valid");
    assert!(!ask(at(0), &[hit(9, &punished, 1000), hit(9, &punished, 1)]).1);
    assert_eq!(ask(at(0), &[hit(9, &large, 1000)]), (2, true, Wait::NONE));
    assert_eq!(ask(at(0), &[hit(9, &large, 1)]), (1, false, wait(1, 0)));
}
