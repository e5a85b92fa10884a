//! Tests replies of random bytes: some can be read as a decision, the others are errors, and none causes a panic. Also
//! tests requests that come too late, and requests that scripts cannot serve.

use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, Op, Quota, Receipt, StoreError, StoreErrorKind, Time};
use spillgate_redis::{Decoded, ScriptCall};
use spillgate_testkit::Random;

use crate::support::client::{RedisServer, bytes, call};

const CASES: u32 = 200_000;

fn quotas() -> Vec<Quota> {
    let second = Duration::from_secs(1);
    let builders = [
        Quota::token_bucket(5, second),
        Quota::leaky_bucket(5, second),
        Quota::fixed_window(5, second),
        Quota::sliding_window_counter(5, second),
        Quota::sliding_window_counter(5, second).segments(4),
        Quota::sliding_window_log(5, second),
        Quota::concurrency(5),
    ];
    builders.map(|builder| builder.build().expect("the quota is valid")).into()
}

#[test]
fn no_reply_makes_a_request_panic() {
    let (quotas, mut random) = (quotas(), Random(11));
    let (mut decided, mut again, mut refused) = (0, 0, 0);
    for _ in 0..CASES {
        let receipt = Receipt::new(Time::from_nanos(random.below(1 << 62)), random.below(3));
        let hits: Vec<Hit<'_>> = (0..random.below(3))
            .map(|key| {
                let op = match random.below(5) {
                    0 => Op::Refund { cost: 1, receipt: Some(receipt) },
                    1 => Op::Renew { receipt },
                    2 => Op::settle(2, random.below(5), receipt),
                    _ => Op::take(1 + random.below(6)),
                };
                Hit::new(key.into(), random.pick(&quotas), op, Binding::Enforce)
            })
            .collect();
        let mut request = ScriptCall::new(None, &hits).expect("the request is well formed");
        // The lengths are those of usual replies or near them. Half of the replies contain only the bytes 0 and 1.
        let length = *random.pick(&[0, 8, 9, 10, 14, 25, 27, 30, 31, 36, 40, 45, 60, 90]);
        let most = *random.pick(&[2, 256]);
        let mut reply: Vec<u8> = (0..length).map(|_| random.below(most) as u8).collect();
        if length == 36 || length == 40 {
            // A reply of the general script (for requests of every kind) with one state: the byte 1 (allowed), and the
            // length of the state.
            reply[9..14].copy_from_slice(&[1, 0, 0, 0, length as u8 - 14]);
        }
        let mut decisions = vec![Decision::default(); hits.len()];
        match request.decode(&reply, &mut decisions) {
            Ok(Decoded::Verdict(_)) => decided += 1,
            Ok(Decoded::CallAgain) => again += 1,
            Err(error) if error.kind() == StoreErrorKind::Garbled => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        decided > 1000 && again > 1000 && refused > 1000,
        "{decided} replies are decisions, {again} ask for a second call, {refused} are errors"
    );
}

/// A request can have a latest time, after which the script does nothing and its reply is no decision. Until then, the
/// request is decided as usual.
#[test]
fn a_request_that_comes_after_its_latest_time_does_nothing() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let now = Time::from_nanos(1_790_000_000_000_001_000);
    for (key, quota) in (1u128..).zip(&quotas()) {
        let hits = [Hit::new(key, quota, Op::Take { cost: 1, max_wait_ns: u64::MAX }, Binding::Enforce)];
        let mut ask = |latest: u64| {
            let mut request = ScriptCall::new(Some(now), &hits).expect("the request is well formed");
            request.not_after(Time::from_nanos(latest));
            let reply = client.ask_one(call(&request));
            let mut decisions = [Decision::default()];
            request.decode(bytes(&reply), &mut decisions).map(|_| decisions[0].remaining)
        };
        let first = ask(now.as_nanos()).expect("the request is in time");
        for late_ns in [1, 1_000_000_000] {
            let late = ask(now.as_nanos() - late_ns);
            assert!(late.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Garbled), "{late:?}");
        }
        assert_eq!(ask(now.as_nanos() + 1), Ok(first - 1), "the late requests charged nothing: {quota:?}");
    }
}

#[test]
fn what_scripts_cannot_serve_is_malformed() {
    let quota = |window| Quota::fixed_window(5, window).build().expect("the quota is valid");
    let of = |quota: &Quota| ScriptCall::new(None, &[Hit::new(1, quota, Op::Peek, Binding::Enforce)]).map(|_| ());
    let years = |n: u64| Duration::from_secs(n * 365 * 86_400);
    assert_eq!(of(&quota(Duration::from_micros(7))), Ok(()));
    assert_eq!(of(&quota(years(71))), Ok(()));
    let wrong = Err(StoreError::malformed("a quota that scripts cannot serve"));
    assert_eq!(of(&quota(Duration::from_nanos(7_001))), wrong);
    assert_eq!(of(&quota(years(72))), wrong);
    let plain = quota(years(1));
    let many = vec![Hit::new(1, &plain, Op::Peek, Binding::Enforce); 257];
    assert_eq!(ScriptCall::new(None, &many).err(), Some(StoreError::malformed("too many hits")));
}
