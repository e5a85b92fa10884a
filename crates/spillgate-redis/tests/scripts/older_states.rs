//! During an upgrade, Redis contains states that older versions of spillgate wrote. The tests show that these states
//! keep their meaning, and that an older version never misreads a state that this version writes.
//!
//! In the names of the tests, an older server is a spillgate server of an older version.

use std::time::Duration;

use redis::Value;
use spillgate_core::{Anchor, Binding, Decision, Denied, Hit, Op, Quota, QuotaBuilder, State, Time, decide};
use spillgate_redis::{Decoded, LogForm, RedisKey, ScriptCall, decode_state};

use crate::support::client::{Client, RedisServer, bytes, call};

const NOW_S: u64 = 1_790_000_000;
const SECOND: Duration = Duration::from_secs(1);

fn build(builder: QuotaBuilder) -> Quota {
    builder.build().expect("the quota is valid")
}

fn number<const N: usize>(value: u64) -> Vec<u8> {
    value.to_be_bytes()[8 - N..].to_vec()
}

/// Encodes a time as five bytes of seconds and four bytes of nanoseconds (`I5I4` in the scripts).
fn time(ms: u64) -> Vec<u8> {
    [number::<5>(ms / 1000), number::<4>(ms % 1000 * 1_000_000)].concat()
}

fn at(ms: u64) -> Time {
    Time::from_nanos((NOW_S * 1000 + ms) * 1_000_000)
}

fn ask(client: &mut Client, now: Time, hit: Hit<'_>, log: LogForm) -> Decision {
    let (hits, mut decisions) = ([hit], [Decision::default()]);
    let mut request = ScriptCall::with(Some(now), &hits, log).expect("the request is well formed");
    loop {
        let reply = client.ask_one(call(&request));
        if let Decoded::Verdict(_) = request.decode(bytes(&reply), &mut decisions).expect("the reply is valid") {
            return decisions[0];
        }
    }
}

fn stored(client: &mut Client, hit: &Hit<'_>) -> Vec<u8> {
    let mut get = redis::cmd("GET");
    bytes(&client.ask_one(get.arg(RedisKey::with(hit, LogForm::Packed).as_bytes()).clone())).to_vec()
}

/// Sends the same requests to the kernel and to Redis, and compares the decisions. Both begin with the state `written`.
fn go_on(client: &mut Client, quota: &Quota, written: &[u8]) {
    let hit = |op| Hit::new(7, quota, op, Binding::Enforce);
    let mut kernel = decode_state(written, quota).expect("the value is a state");
    let mut set = redis::cmd("SET");
    client.ask_one(set.arg(RedisKey::with(&hit(Op::Peek), LogForm::Packed).as_bytes()).arg(written).clone());
    let ops = [Op::Peek, Op::take(1), Op::take(2), Op::Force { cost: 1 }, Op::take(5), Op::Peek];
    for (i, op) in (0..).zip(ops.into_iter().cycle().take(24)) {
        let now = at(i * 70);
        let mut decisions = [Decision::default()];
        decide(std::slice::from_mut(&mut kernel), &[0], &[hit(op)], now, &mut decisions);
        assert_eq!(
            ask(client, now, hit(op), LogForm::Packed),
            decisions[0],
            "{op:?} in step {i}, beginning with {written:?}"
        );
        let value = stored(client, &hit(op));
        assert_eq!(
            words(&decode_state(&value, quota).expect("the value is a state")),
            words(&kernel),
            "the state after {op:?} in step {i}, beginning with {written:?}"
        );
        if i == 0 {
            assert_eq!(value, written, "a peek writes nothing");
        }
    }
}

fn words(state: &State) -> Vec<u64> {
    let mut words = Vec::new();
    state.encode(&mut words);
    words
}

#[test]
fn states_of_older_servers_are_read_as_they_were_meant() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let now_ms = NOW_S * 1000;
    let (tat, shut) = (time(now_ms + 700), time(now_ms + 300));
    let bucket = [&tat[..], &time(200)].concat();
    let window = [&time(now_ms - 400)[..], &number::<7>(3)].concat();
    let counter = [&number::<5>(NOW_S)[..], &number::<3>(0), &number::<5>(2), &number::<5>(1)].concat();
    let wide = [&number::<5>(NOW_S)[..], &number::<3>(0), &number::<7>(2), &number::<7>(1 << 41)].concat();
    for limit in [5, 8] {
        let plain = [
            (Quota::token_bucket(limit, SECOND), &bucket),
            (Quota::fixed_window(limit, SECOND).anchor(Anchor::FirstHit), &window),
            (Quota::sliding_window_counter(limit, SECOND), &counter),
            (Quota::sliding_window_counter(limit, SECOND), &wide),
        ];
        for (of, body) in plain {
            go_on(&mut client, &build(of), body);
            // The value is a state, a state and a penalty, or only a penalty.
            for quota in [of, of.penalty(SECOND), of.penalty(SECOND).denied(Denied::Charged)] {
                let quota = build(quota);
                go_on(&mut client, &quota, body);
                go_on(&mut client, &quota, &[&body[..], &shut].concat());
                go_on(&mut client, &quota, &shut);
            }
        }
    }
}

#[test]
fn penalties_of_older_servers_beside_logs_and_leases_are_read_too() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let shut = time(NOW_S * 1000 + 300);
    let log = build(Quota::sliding_window_log(5, SECOND).penalty(SECOND));
    let permits = build(Quota::concurrency(5).penalty(SECOND));
    let hit = |quota| Hit::new(7, quota, Op::take(1), Binding::Enforce);
    let name = |quota, log| RedisKey::with(&hit(quota), log);
    let (packed, sorted, hash) =
        (name(&log, LogForm::Packed), name(&log, LogForm::Zset), name(&permits, LogForm::Packed));
    let until = format!("until {NOW_S:010}.300000000");
    client.ask([
        redis::cmd("RPUSH").arg(packed.as_bytes()).arg(&shut).clone(),
        redis::cmd("ZADD").arg(sorted.as_bytes()).arg("-inf").arg(until).clone(),
        redis::cmd("HSET").arg(hash.as_bytes()).arg("until").arg(&shut).clone(),
    ]);
    for (quota, form) in [(&log, LogForm::Packed), (&log, LogForm::Zset), (&permits, LogForm::Packed)] {
        let refused = ask(&mut client, at(100), hit(quota), form);
        assert_eq!((refused.allowed, refused.retry_after.nanos()), (false, Some(200_000_000)), "{quota:?} {form:?}");
        let allowed = ask(&mut client, at(300), hit(quota), form);
        assert_eq!((allowed.allowed, allowed.remaining), (true, 4), "{quota:?} {form:?}");
        assert!(
            ask(&mut client, at(300), Hit::new(7, quota, Op::take(9), Binding::Enforce), form)
                .retry_after
                .nanos()
                .is_none()
        );
        let refused = ask(&mut client, at(800), hit(quota), form);
        assert_eq!(
            refused.retry_after.nanos(),
            Some(500_000_000),
            "the take of 9 units starts a penalty of 1 s at 300 ms: {quota:?} {form:?}"
        );
    }
}

/// A server of an older version recognizes a value by its length: 18 bytes (a bucket), 16 (a window), `8+5n` or `8+7n`
/// bytes (a counter with `n` counts). A penalty makes a value 9 bytes longer.
#[test]
fn no_older_server_takes_a_bucket_or_a_penalty_of_ours_for_its_own() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let mut lengths = Vec::new();
    for penalty in [Duration::ZERO, SECOND] {
        for builder in [Quota::token_bucket(5, SECOND), Quota::leaky_bucket(5, SECOND), Quota::fixed_window(5, SECOND)]
        {
            let quota = build(builder.penalty(penalty));
            for (key, cost) in [(1, 9), (2, 2)] {
                for cost in [cost, 9] {
                    ask(&mut client, at(0), Hit::new(key, &quota, Op::take(cost), Binding::Enforce), LogForm::Packed);
                    let value = stored(&mut client, &Hit::new(key, &quota, Op::Peek, Binding::Enforce));
                    lengths.push(value.len());
                }
            }
        }
    }
    lengths.sort_unstable();
    lengths.dedup();
    assert_eq!(lengths, [0, 16, 19, 35, 37], "an older server reads only the window without a penalty (16 bytes)");
    for segments in 1..=128 {
        let counts = segments + 1;
        let [narrow, wide] = [8 + 5 * counts, 8 + 7 * counts];
        let under_a_penalty = wide + 19;
        assert!(![narrow, narrow + 9, wide, wide + 9].contains(&under_a_penalty), "{segments} segments");
    }
    assert!(matches!(client.ask_one(redis::cmd("PING")), Value::SimpleString(_)));
}

/// Only the length of a counter's value shows how to read it: each count has five or seven bytes, and a penalty can
/// follow.
#[test]
fn a_counter_of_any_number_of_segments_is_read_back_under_a_penalty() {
    let server = RedisServer::start();
    let mut client = server.connect();
    for segments in 1..=128 {
        let window = Duration::from_millis(10) * segments;
        for limit in [5, 1 << 41] {
            let quota = build(Quota::sliding_window_counter(limit, window).segments(segments as u8).penalty(SECOND));
            let hit = |op| Hit::new(segments.into(), &quota, op, Binding::Enforce);
            let mut kernel = State::default();
            // The first request takes the whole limit. The second request is refused and starts a penalty of 1 s. The
            // next two requests come during the penalty, and the last request comes after it.
            let ops = [(0, Op::take(limit)), (1, Op::take(1)), (2, Op::Peek), (3, Op::take(1)), (1002, Op::take(1))];
            for (ms, op) in ops {
                let mut decisions = [Decision::default()];
                decide(std::slice::from_mut(&mut kernel), &[0], &[hit(op)], at(ms), &mut decisions);
                let decision = ask(&mut client, at(ms), hit(op), LogForm::Packed);
                assert_eq!(decision, decisions[0], "{segments} segments, limit {limit}, at {ms} ms: {op:?}");
                let value = stored(&mut client, &hit(op));
                assert_eq!(
                    words(&decode_state(&value, &quota).expect("the value is a state")),
                    words(&kernel),
                    "{segments} segments"
                );
            }
            client.ask_one(redis::cmd("FLUSHALL"));
        }
    }
}
