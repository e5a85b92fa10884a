//! Tests how much memory a key uses, and how long it lives.

use std::time::Duration;

use redis::Value;
use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Denied, Hit, Op, OpKind, Quota, QuotaBuilder, Time, Verdict,
};
use spillgate_redis::{Decoded, LogForm, RedisKey, ScriptCall, decode_state};

use crate::support::client::{Client, RedisServer, bytes, call};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn build(builder: QuotaBuilder) -> Quota {
    builder.build().expect("the quota is valid")
}

/// Sends the request. If `now` is `None`, the clock of Redis sets the time of the decision.
fn ask(client: &mut Client, now: Option<Time>, hits: &[Hit<'_>]) -> Verdict {
    ask_with(client, now, hits, LogForm::Packed)
}

fn ask_with(client: &mut Client, now: Option<Time>, hits: &[Hit<'_>], log: LogForm) -> Verdict {
    let mut decisions = vec![Decision::default(); hits.len()];
    let mut request = ScriptCall::with(now, hits, log).expect("the request is well formed");
    loop {
        let reply = client.ask_one(call(&request));
        if let Decoded::Verdict(verdict) = request.decode(bytes(&reply), &mut decisions).expect("the reply is valid") {
            return verdict;
        }
    }
}

fn integer(reply: &Value) -> u64 {
    match reply {
        Value::Int(number) => u64::try_from(*number).expect("the number is not negative"),
        other => panic!("not a number: {other:?}"),
    }
}

fn about(command: &[&str], hit: &Hit<'_>) -> redis::Cmd {
    about_with(command, hit, LogForm::Packed)
}

fn about_with(command: &[&str], hit: &Hit<'_>, log: LogForm) -> redis::Cmd {
    let mut cmd = redis::cmd(command[0]);
    for word in &command[1..] {
        cmd.arg(*word);
    }
    cmd.arg(RedisKey::with(hit, log).as_bytes());
    cmd
}

#[test]
fn a_small_state_takes_20_bytes_and_a_key_180_all_in() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let quotas = [
        build(Quota::token_bucket(1000, YEAR)),
        build(Quota::leaky_bucket(1000, YEAR)),
        build(Quota::fixed_window(1000, YEAR)),
        build(Quota::fixed_window(1000, YEAR).anchor(Anchor::FirstHit)),
        build(Quota::sliding_window_counter(1000, YEAR)),
    ];
    for quota in &quotas {
        client.ask_one(redis::cmd("FLUSHALL"));
        let hits: Vec<[Hit<'_>; 1]> = (0..10_000u128)
            .map(|i| {
                [Hit::new(
                    i.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
                    quota,
                    Op::take(7),
                    Binding::Enforce,
                )]
            })
            .collect();
        let requests: Vec<ScriptCall<'_, '_>> =
            hits.iter().map(|hit| ScriptCall::new(None, hit).expect("the request is well formed")).collect();
        client.ask(requests.iter().map(call));
        let sizes = client.ask(hits.iter().map(|[hit]| about(&["MEMORY", "USAGE"], hit)));
        let used: u64 = sizes.iter().map(integer).sum();
        let lengths = client.ask(hits.iter().map(|[hit]| about(&["STRLEN"], hit)));
        let longest = lengths.iter().map(integer).max().expect("there are keys");
        let name = quota.algorithm().as_str();
        assert!((1..=20).contains(&longest), "{name}: the longest state has {longest} bytes");
        assert!(used <= 180 * 10_000, "{name}: a key takes {} bytes", used / 10_000);
    }
}

#[test]
fn a_log_takes_600_bytes_and_12_a_further_hit() {
    const HITS: usize = 3000;
    let server = RedisServer::start();
    let mut client = server.connect();
    let quota = build(Quota::sliding_window_log(2000, MINUTE));
    let hits = [Hit::new(3 << 101, &quota, Op::take(1), Binding::Enforce)];
    // The times are 30 ms apart, so a minute has 2000 hits. During the last thousand hits, the first thousand expire.
    let times = (0..HITS as u64).map(|i| Time::from_nanos(1_790_000_000_000_000_000 + i * 30_000_001));
    let requests: Vec<ScriptCall<'_, '_>> =
        times.clone().map(|now| ScriptCall::new(Some(now), &hits).expect("the request is well formed")).collect();
    let commands = requests.iter().flat_map(|request| {
        let usage = about(&["MEMORY", "USAGE"], &hits[0]).arg("SAMPLES").arg(0).clone();
        [call(request), about(&["LLEN"], &hits[0]), usage]
    });
    let replies = client.ask(commands);
    for reported in replies.chunks(3) {
        let (units, used) = (integer(&reported[1]), integer(&reported[2]));
        assert!(used <= 600 + 12 * (units - 1), "a log of {units} hits takes {used} bytes");
    }
    assert_eq!(integer(&replies[HITS * 3 - 2]), 2000, "the log has only the hits of the last minute");
}

#[test]
fn a_log_in_a_sorted_set_takes_60_bytes_a_hit_and_160_beyond_128_hits() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let quota = build(Quota::sliding_window_log(2000, MINUTE));
    let hits = [Hit::new(3 << 101, &quota, Op::take(1), Binding::Enforce)];
    for units in 1..=2000 {
        assert!(ask_with(&mut client, None, &hits, LogForm::Zset).allowed);
        let usage = about_with(&["MEMORY", "USAGE"], &hits[0], LogForm::Zset).arg("SAMPLES").arg(0).clone();
        let used = integer(&client.ask_one(usage));
        // Redis stores up to 128 members as a packed list, and more members as a tree.
        let most = if units <= 128 { 120 + 60 * units } else { 160 * units };
        assert!(used <= most, "a log of {units} hits takes {used} bytes");
    }
}

/// Returns one quota for each way to compute the life of a key.
fn lives() -> Vec<Quota> {
    let builders = [
        Quota::token_bucket(7, MINUTE),
        Quota::leaky_bucket(7, MINUTE),
        Quota::fixed_window(7, MINUTE),
        Quota::fixed_window(7, MINUTE).anchor(Anchor::FirstHit),
        Quota::sliding_window_counter(7, MINUTE),
        Quota::sliding_window_counter(7, MINUTE).segments(6),
        Quota::sliding_window_log(7, MINUTE),
    ];
    let all = builders.into_iter().flat_map(|builder| {
        let penalty = builder.penalty(10 * MINUTE);
        [builder, builder.denied(Denied::Charged), penalty, penalty.denied(Denied::Charged)]
    });
    let leases = Quota::concurrency(7).lease(MINUTE);
    all.chain([leases, leases.penalty(10 * MINUTE)]).map(build).collect()
}

fn is_string(quota: &Quota) -> bool {
    !matches!(quota.algorithm(), Algorithm::SlidingWindowLog | Algorithm::Concurrency)
}

#[test]
fn logs_and_leases_live_until_their_states_end() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let quotas = lives();
    let both = [LogForm::Packed, LogForm::Zset];
    let all = both.iter().flat_map(|log| quotas.iter().filter(|quota| !is_string(quota)).map(|quota| (*log, quota)));
    for (i, (log, quota)) in (1u128..).zip(all) {
        let hit = |op| [Hit::new(i << 100 | i, quota, op, Binding::Enforce)];
        let mut ends = 0;
        for op in [Op::take(1), Op::take(5), Op::take(7), Op::take(1), Op::Refund { cost: 1, receipt: None }] {
            let verdict = ask_with(&mut client, None, &hit(op), log);
            let now = verdict.now.as_nanos();
            let refused = !verdict.allowed;
            let charged = refused && quota.denied() == Denied::Charged;
            if verdict.allowed && op.kind() == OpKind::Take || charged {
                ends = ends.max(now + quota.window_ns() + quota.lease_ns());
            }
            if refused && quota.penalty_ns() > 0 && (charged || ends < now + quota.penalty_ns() / 2) {
                ends = now + quota.penalty_ns();
            }
            let found = integer(&client.ask_one(about_with(&["PEXPIRETIME"], &hit(op)[0], log)));
            assert_eq!(found, ends.div_ceil(1_000_000), "{log:?}, {quota:?} after {op:?}");
        }
    }
}

#[test]
fn a_key_lives_until_its_state_ends_rounded_up_to_a_millisecond() {
    let server = RedisServer::start();
    let mut client = server.connect();
    for (i, quota) in (1u128..).zip(lives().iter().filter(|quota| is_string(quota))) {
        let hit = |op| [Hit::new(i << 100 | i, quota, op, Binding::Enforce)];
        let ops = [Op::take(1), Op::take(5), Op::take(7), Op::Force { cost: 2 }, Op::Refund { cost: 1, receipt: None }];
        for op in ops {
            ask(&mut client, None, &hit(op));
            let found = client.ask([about(&["GET"], &hit(op)[0]), about(&["PEXPIRETIME"], &hit(op)[0])]);
            let state = decode_state(bytes(&found[0]), quota).expect("the value is a state");
            let ends_ms = state.expires_at(quota).div_ceil(1_000_000);
            assert!(ends_ms > 0, "{quota:?}: {op:?} leaves no state");
            assert_eq!(integer(&found[1]), ends_ms, "{quota:?} after {op:?}");
        }
    }
}

#[test]
fn a_state_that_has_ended_is_no_key() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let quota = build(Quota::token_bucket(10, SECOND));
    let hits: Vec<[Hit<'_>; 1]> =
        (1..100u128).map(|i| [Hit::new(i << 64, &quota, Op::take(1), Binding::Enforce)]).collect();
    for hit in &hits {
        assert!(ask(&mut client, None, hit).allowed);
    }
    // A read never finds a key that has expired, so the keys are read until none is found. All of them expire within
    // 100 ms.
    let mut left = hits.len();
    for _ in 0..1_000_000 {
        left = client.ask(hits.iter().map(|[hit]| about(&["EXISTS"], hit))).iter().map(|it| integer(it) as usize).sum();
        if left == 0 {
            break;
        }
    }
    assert_eq!(left, 0, "all keys must expire, because their states end after 100 ms");
}

#[test]
fn under_a_time_that_is_passed_a_key_lives_an_hour() {
    let server = RedisServer::start();
    let mut client = server.connect();
    for (quota, log) in lives().iter().flat_map(|quota| [(quota, LogForm::Packed), (quota, LogForm::Zset)]) {
        let hits = [Hit::new(3 << 99, quota, Op::take(1), Binding::Enforce)];
        ask_with(&mut client, Some(Time::from_nanos(1_000_000_007)), &hits, log);
        let left = integer(&client.ask_one(about_with(&["PTTL"], &hits[0], log)));
        assert!((1..=3_600_000).contains(&left), "the key of {quota:?} expires in {left} ms");
    }
}

#[test]
fn the_server_tells_the_time() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let quotas = [build(Quota::token_bucket(5, MINUTE)), build(Quota::fixed_window(5, MINUTE))];
    let reported = |reply: &Value| match reply {
        Value::Array(parts) => {
            let number = |i: usize| {
                String::from_utf8_lossy(bytes(&parts[i])).parse::<u64>().expect("the parts of a time are digits")
            };
            number(0) * 1_000_000_000 + number(1) * 1000
        }
        other => panic!("not a time: {other:?}"),
    };
    let hits = [0, 1].map(|i| Hit::new(5, &quotas[i], Op::take(1), Binding::Enforce));
    for hits in [&hits[..1], &hits[1..], &hits] {
        let before = reported(&client.ask_one(redis::cmd("TIME")));
        let now = ask(&mut client, None, hits).now.as_nanos();
        let after = reported(&client.ask_one(redis::cmd("TIME")));
        assert!((before..=after).contains(&now), "the decision's time {now} is not between {before} and {after}");
        assert_eq!(now % 1000, 0, "the decision's time is in whole microseconds");
    }
}

#[test]
fn names_distinguish_states_and_share_their_slot() {
    let quotas = lives();
    let hit = |key, quota| Hit::new(key, quota, Op::take(1), Binding::Enforce);
    let of = |key: u128, quota| RedisKey::of(&hit(key, quota)).to_string();
    let (a, b) = (of(1 << 127 | 5, &quotas[0]), of(1 << 127 | 5, &quotas[8]));
    assert_eq!((a.len(), &a[..11]), (29, &b[..11]), "{a} {b}");
    assert!(a.starts_with("sg:{") && &a[9..11] == "}:" && a != b, "{a} {b}");
    for bit in 0..128 {
        assert_ne!(of(1 << bit, &quotas[0]), of(0, &quotas[0]), "bit {bit}");
    }
    assert_eq!(
        of(9, &quotas[0]),
        of(9, &build(Quota::token_bucket(9, MINUTE))),
        "quotas that differ only in their limit use the same key"
    );
}

#[test]
fn a_log_of_the_other_form_has_another_name() {
    for quota in &lives() {
        let hit = Hit::new(9, quota, Op::take(1), Binding::Enforce);
        let names = [LogForm::Packed, LogForm::Zset].map(|log| RedisKey::with(&hit, log));
        let is_log = quota.algorithm() == Algorithm::SlidingWindowLog;
        assert_eq!(names[0] != names[1], is_log, "{names:?}");
    }
}
