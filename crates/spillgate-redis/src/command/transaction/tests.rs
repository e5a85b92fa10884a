use std::time::Duration;

use redis::Value;
use spillgate_core::{Anchor, Binding, Decision, Denied, Hit, Op, OpKind, Quota, Reason, StoreErrorKind, Time, Wait};

use super::{Transaction, numbers, supports};
use crate::command::Encoder;
use crate::command::key::RedisKey;
use crate::command::request::Decoded;
use crate::settings::Settings;

const SECOND: Duration = Duration::from_secs(1);
const SECOND_NS: u64 = 1_000_000_000;
const NOW_S: u64 = 1_790_000_000;

fn first_hit(limit: u64) -> Quota {
    Quota::fixed_window(limit, SECOND).anchor(Anchor::FirstHit).build().expect("the quota is valid")
}

fn epoch(limit: u64) -> Quota {
    Quota::fixed_window(limit, SECOND).build().expect("the quota is valid")
}

fn take(quota: &Quota, cost: u64) -> [Hit<'_>; 1] {
    [Hit::new(7, quota, Op::take(cost), Binding::Enforce)]
}

/// Returns the reply of a Redis server whose time is `us` microseconds after `NOW_S`.
fn reply(numbers: &[i64], us: u64) -> Vec<u8> {
    let time = [NOW_S.cast_signed(), us.cast_signed()];
    numbers.iter().chain(&time).flat_map(|number| number.to_be_bytes()).collect()
}

fn encoder() -> Encoder {
    Encoder::new(&Settings { scripts: false, ..Settings::new("redis://127.0.0.1/") })
}

fn report(encoder: &Encoder, ns: u64) {
    encoder.clock.report(Time::from_nanos(NOW_S * SECOND_NS + ns));
}

fn decide(transaction: &mut Transaction<'_, '_, '_>, reply: &[u8]) -> Decision {
    let mut decisions = [Decision::default()];
    match transaction.decode(reply, &mut decisions) {
        Ok(Decoded::Verdict(verdict)) => assert_eq!(verdict.allowed, decisions[0].allowed),
        other => panic!("{other:?}"),
    }
    decisions[0]
}

fn commands(transaction: &Transaction<'_, '_, '_>) -> String {
    let mut all = redis::Pipeline::new();
    transaction.write(&mut all);
    String::from_utf8(all.get_packed_pipeline())
        .expect("the commands are text")
        .split("\r\n")
        .filter(|word| !word.starts_with(['*', '$']))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn a_take_is_one_transaction() {
    let (quota, encoder) = (first_hit(5), encoder());
    let hits = take(&quota, 3);
    let name = RedisKey::of_counter(&hits[0], 0);
    let transaction = Transaction::new(None, &hits, &encoder.clock).expect("plain commands serve the hits");
    let expected = format!("MULTI INCRBY {name} 3 PEXPIRE {name} 1000 NX PTTL {name} TIME EXEC ");
    assert_eq!(commands(&transaction), expected);
    assert_eq!(transaction.key().map(|key| key.slot()), Some(name.slot()));
    for hits in [take(&quota, 0), take(&quota, 6), [hits[0].with_op(Op::Peek)]] {
        let transaction = Transaction::new(None, &hits, &encoder.clock).expect("plain commands serve the hits");
        assert_eq!(commands(&transaction), format!("MULTI GET {name} PTTL {name} TIME EXEC "), "nothing is charged");
    }
}

#[test]
fn windows_since_the_epoch_are_numbered_once_the_server_has_reported_the_time() {
    let (quota, encoder) = (epoch(5), encoder());
    let hits = take(&quota, 1);
    let mut transaction = Transaction::new(None, &hits, &encoder.clock).expect("plain commands serve the hits");
    assert_eq!(commands(&transaction), "MULTI TIME EXEC ");
    let again = transaction.decode(&reply(&[], 0), &mut [Decision::default()]);
    assert!(matches!(again, Ok(Decoded::CallAgain)), "{again:?}");
    let name = RedisKey::of_counter(&hits[0], NOW_S);
    // The counter lives for one more window. So a store finds it even if its estimate of the time of Redis is behind.
    assert_eq!(commands(&transaction), format!("MULTI INCRBY {name} 1 PEXPIRE {name} 2000 NX PTTL {name} TIME EXEC "));
    assert_ne!(name, RedisKey::of_counter(&hits[0], NOW_S + 1));
    assert_ne!(name, RedisKey::of(&hits[0]));
    let day = Quota::fixed_window(5, SECOND * 86_400).build().expect("the quota is valid");
    let transaction = [take(&day, 1)];
    let transaction = Transaction::new(None, &transaction[0], &encoder.clock).expect("plain commands serve the hits");
    assert!(commands(&transaction).contains(" 86460000 NX "), "{}", commands(&transaction));
}

#[test]
fn a_time_that_was_reported_too_long_ago_is_asked_for_again() {
    let (mut encoder, quota) = (encoder(), epoch(5));
    report(&encoder, 0);
    encoder.clock.age_by(SECOND * 2);
    let hits = take(&quota, 1);
    let mut transaction = Transaction::new(None, &hits, &encoder.clock).expect("plain commands serve the hits");
    assert_eq!(commands(&transaction), "MULTI TIME EXEC ");
    let again = transaction.decode(&reply(&[], 0), &mut [Decision::default()]);
    assert!(matches!(again, Ok(Decoded::CallAgain)), "{again:?}");
    assert!(commands(&transaction).contains(&RedisKey::of_counter(&hits[0], NOW_S).to_string()));
}

#[test]
fn a_window_by_the_first_hit_ends_when_its_counter_does() {
    let (quota, encoder) = (first_hit(5), encoder());
    let hits = take(&quota, 2);
    let mut transaction = Transaction::new(None, &hits, &encoder.clock).expect("plain commands serve the hits");
    let fresh = decide(&mut transaction, &reply(&[2, 1, 1000], 500));
    assert_eq!((fresh.allowed, fresh.remaining, fresh.reset_after_ns), (true, 3, SECOND_NS));
    let second = decide(&mut transaction, &reply(&[4, 0, 250], 500));
    assert_eq!((second.allowed, second.remaining, second.reset_after_ns), (true, 1, 251_000_000));
    let third = decide(&mut transaction, &reply(&[6, 0, 249], 500));
    assert_eq!((third.allowed, third.remaining, third.reason), (false, 0, Reason::Exceeded));
    assert_eq!((third.retry_after, third.limit, third.receipt), (Wait::After(250_000_000), 5, None));
    // The counter is about to expire, or PTTL reports no expiry. Its count is used in both cases.
    for left in [0, -1, -2] {
        let refused = decide(&mut transaction, &reply(&[8, 0, left], 500));
        assert_eq!((refused.allowed, refused.retry_after), (false, Wait::After(1_000_000)), "PTTL returns {left}");
    }
    // First the counter is far over its limit, then exactly at the limit.
    let most = decide(&mut transaction, &reply(&[i64::MAX, 0, 9], 0));
    assert_eq!((most.allowed, most.remaining), (false, 0));
    let full = decide(&mut transaction, &reply(&[5, 0, 9], 0));
    assert_eq!((full.allowed, full.remaining), (true, 0));
}

#[test]
fn a_window_that_the_server_has_left_or_not_entered_keeps_its_limit() {
    let (quota, encoder) = (epoch(5), encoder());
    let hits = take(&quota, 1);
    report(&encoder, 0);
    let mut transaction = Transaction::new(None, &hits, &encoder.clock).expect("plain commands serve the hits");
    assert_eq!(transaction.counters[0].start, Some(NOW_S * SECOND_NS));
    for (us, retry_ns) in [(0, SECOND_NS), (999_999, 1_000), (1_000_000, 1), (3_000_000, 1)] {
        assert!(decide(&mut transaction, &reply(&[5, 0, 2000], us)).allowed);
        let refused = decide(&mut transaction, &reply(&[6, 0, 2000], us));
        assert_eq!(
            (refused.allowed, refused.retry_after),
            (false, Wait::After(retry_ns)),
            "the server is {us} us after the start of the window"
        );
    }
    // The current window of Redis keeps its limit too.
    report(&encoder, 5 * SECOND_NS);
    let mut transaction = Transaction::new(None, &hits, &encoder.clock).expect("plain commands serve the hits");
    assert_eq!(decide(&mut transaction, &reply(&[6, 0, 2000], 0)).retry_after, Wait::After(SECOND_NS));
}

#[test]
fn a_cost_that_never_fits_is_charged_nothing() {
    let encoder = encoder();
    for (quota, cost, count) in [(first_hit(5), 6, 3), (first_hit(0), 1, 0), (first_hit(5), u64::MAX, 5)] {
        let hits = take(&quota, cost);
        let mut transaction = Transaction::new(None, &hits, &encoder.clock).expect("plain commands serve the hits");
        let refused = decide(&mut transaction, &reply(&[count, 7], 0));
        assert_eq!((refused.allowed, refused.retry_after), (false, Wait::Never), "a take of cost {cost} on {quota:?}");
        assert_eq!(refused.remaining, quota.limit() - count.unsigned_abs());
    }
}

#[test]
fn only_free_takes_and_peeks_on_fixed_windows_are_served() {
    let ops = [OpKind::Take, OpKind::Peek, OpKind::Force, OpKind::Refund, OpKind::Renew, OpKind::Reset];
    for quota in [first_hit(5), epoch(5)] {
        assert_eq!(ops.map(|op| supports(&quota, op)), [true, true, false, false, false, false]);
    }
    let short = |us| Quota::fixed_window(5, Duration::from_micros(us));
    let others = [
        Quota::token_bucket(5, SECOND),
        Quota::leaky_bucket(5, SECOND),
        Quota::sliding_window_log(5, SECOND),
        Quota::sliding_window_counter(5, SECOND),
        Quota::concurrency(5),
        Quota::fixed_window(5, SECOND).denied(Denied::Charged),
        Quota::fixed_window(5, SECOND).penalty(SECOND),
        short(1_500).anchor(Anchor::FirstHit),
    ];
    for quota in others.map(|builder| builder.build().expect("the quota is valid")) {
        assert!(ops.iter().all(|op| !supports(&quota, *op)), "{quota:?}");
        let refused = Transaction::new(None, &take(&quota, 1), &encoder().clock).map(drop);
        assert!(refused.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Malformed), "{refused:?}");
    }
    assert!(supports(&short(1_500).build().expect("the quota is valid"), OpKind::Take));
    let (quota, encoder) = (first_hit(5), encoder());
    let hits = take(&quota, 1);
    assert!(
        Transaction::new(Some(Time::EPOCH), &hits, &encoder.clock)
            .is_err_and(|error| error.kind() == StoreErrorKind::Malformed)
    );
}

#[test]
fn no_reply_makes_a_request_panic() {
    let quotas = [first_hit(5), epoch(5)];
    let encoder = encoder();
    let hits = [take(&quotas[0], 2)[0], take(&quotas[1], 1)[0], take(&quotas[0], 1)[0].with_op(Op::Peek)];
    let words = [0, 1, -1, -2, 5, 1000, i64::MAX, i64::MIN, 1 << 53, NOW_S.cast_signed()];
    let (mut seed, mut decided, mut rejected) = (7u64, 0, 0);
    for _ in 0..200_000 {
        report(&encoder, 0);
        let mut next = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % bound
        };
        let mut transaction = Transaction::new(None, &hits, &encoder.clock).expect("plain commands serve the hits");
        let length = if next(4) == 0 { next(100) } else { 80 };
        let mut reply: Vec<u8> = (0..13).flat_map(|_| words[next(words.len())].to_be_bytes()).collect();
        reply.truncate(length);
        match transaction.decode(&reply, &mut [Decision::default(); 3]) {
            Ok(Decoded::Verdict(_)) => decided += 1,
            Err(error) if error.kind() == StoreErrorKind::Garbled => rejected += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(decided > 1000 && rejected > 1000, "{decided} decided, {rejected} rejected");
}

#[test]
fn values_that_are_not_numbers_are_rejected() {
    let text = |text: &str| Value::BulkString(text.into());
    assert_eq!(numbers(&Value::Array(vec![Value::Int(-1), text("7"), Value::Nil])).map(|bytes| bytes.len()), Some(24));
    for value in [text("7.0"), text("-7"), text(""), text("a"), text("99999999999999999999"), Value::Okay] {
        assert_eq!(numbers(&value), None, "{value:?}");
        assert_eq!(numbers(&Value::Array(vec![value])), None);
    }
}
