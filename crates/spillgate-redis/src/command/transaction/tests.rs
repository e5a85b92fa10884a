use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use spillgate_core::{Anchor, Binding, Decision, Denied, Hit, Op, OpKind, Quota, Reason, StoreError, Time, Wait};

use super::{Plain, numbers, supports};
use crate::command::key::Name;
use crate::command::request::Answer;
use crate::command::{Call, Forms};
use crate::settings::{FixedWindow, Settings};

const SECOND: Duration = Duration::from_secs(1);
const SECOND_NS: u64 = 1_000_000_000;
const NOW_S: u64 = 1_790_000_000;

fn first_hit(limit: u64) -> Quota {
    Quota::fixed_window(limit, SECOND).anchor(Anchor::FirstHit).build().expect("valid")
}

fn epoch(limit: u64) -> Quota {
    Quota::fixed_window(limit, SECOND).build().expect("valid")
}

fn take(quota: &Quota, cost: u64) -> [Hit<'_>; 1] {
    [Hit::new(7, quota, Op::take(cost), Binding::Enforce)]
}

/// What a server answers at that time.
fn reply(numbers: &[i64], us: u64) -> Vec<u8> {
    let time = [NOW_S.cast_signed(), us.cast_signed()];
    numbers.iter().chain(&time).flat_map(|number| number.to_be_bytes()).collect()
}

fn forms() -> Forms {
    Forms::new(&Settings { scripts: false, ..Settings::new("redis://127.0.0.1/") })
}

fn told(forms: &Forms, ns: u64) {
    forms.clock.told(Time::from_nanos(NOW_S * SECOND_NS + ns));
}

fn answer(plain: &mut Plain<'_, '_, '_>, reply: &[u8]) -> Decision {
    let mut decisions = [Decision::default()];
    match plain.answer(reply, &mut decisions) {
        Ok(Answer::Verdict(verdict)) => assert_eq!(verdict.allowed, decisions[0].allowed),
        other => panic!("{other:?}"),
    }
    decisions[0]
}

fn commands(plain: &Plain<'_, '_, '_>) -> String {
    let mut all = redis::Pipeline::new();
    plain.write(&mut all);
    String::from_utf8(all.get_packed_pipeline())
        .expect("text")
        .split("\r\n")
        .filter(|word| !word.starts_with(['*', '$']))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn a_take_is_one_transaction() {
    let (quota, forms) = (first_hit(5), forms());
    let hits = take(&quota, 3);
    let name = Name::of_counter(&hits[0], 0);
    let plain = Plain::new(None, &hits, &forms, false).expect("served");
    let asked = format!("MULTI INCRBY {name} 3 PEXPIRE {name} 1000 NX PTTL {name} TIME EXEC ");
    assert_eq!(commands(&plain), asked);
    assert_eq!(plain.key().map(|key| key.slot()), Some(name.slot()));
    for hits in [take(&quota, 0), take(&quota, 6), [hits[0].with_op(Op::Peek)]] {
        let plain = Plain::new(None, &hits, &forms, false).expect("served");
        assert_eq!(commands(&plain), format!("MULTI GET {name} PTTL {name} TIME EXEC "), "nothing is charged");
    }
}

#[test]
fn windows_since_the_epoch_are_numbered_once_the_server_has_told_the_time() {
    let (quota, forms) = (epoch(5), forms());
    let hits = take(&quota, 1);
    let mut plain = Plain::new(None, &hits, &forms, false).expect("served");
    assert_eq!(commands(&plain), "MULTI TIME EXEC ");
    let again = plain.answer(&reply(&[], 0), &mut [Decision::default()]);
    assert!(matches!(again, Ok(Answer::AskAgain)), "{again:?}");
    let name = Name::of_counter(&hits[0], NOW_S);
    // As long again as the window for those who are late.
    assert_eq!(commands(&plain), format!("MULTI INCRBY {name} 1 PEXPIRE {name} 2000 NX PTTL {name} TIME EXEC "));
    assert_ne!(name, Name::of_counter(&hits[0], NOW_S + 1));
    assert_ne!(name, Name::of(&hits[0]));
    let day = Quota::fixed_window(5, SECOND * 86_400).build().expect("valid");
    let plain = [take(&day, 1)];
    let plain = Plain::new(None, &plain[0], &forms, false).expect("served");
    assert!(commands(&plain).contains(" 86460000 NX "), "{}", commands(&plain));
}

#[test]
fn a_time_that_was_told_a_second_ago_counts_and_none_before() {
    let forms = forms();
    assert_eq!(forms.clock.now(), None);
    told(&forms, 0);
    let told_ns = forms.clock.told_ns.load(Ordering::Relaxed);
    let second_later = Time::from_nanos((NOW_S + 1) * SECOND_NS);
    assert_eq!(forms.clock.at(told_ns + SECOND_NS), Some(second_later));
    assert_eq!(forms.clock.at(told_ns + SECOND_NS + 1), None);
    // As it does for who looked at the clock just before.
    assert!(forms.clock.at(0).is_some());
}

#[test]
fn a_time_that_was_told_too_long_ago_is_asked_for_anew() {
    let (mut forms, quota) = (forms(), epoch(5));
    told(&forms, 0);
    forms.clock.start -= SECOND * 2;
    let hits = take(&quota, 1);
    let mut plain = Plain::new(None, &hits, &forms, false).expect("served");
    assert_eq!(commands(&plain), "MULTI TIME EXEC ");
    let again = plain.answer(&reply(&[], 0), &mut [Decision::default()]);
    assert!(matches!(again, Ok(Answer::AskAgain)), "{again:?}");
    assert!(commands(&plain).contains(&Name::of_counter(&hits[0], NOW_S).to_string()));
}

#[test]
fn a_window_by_the_first_hit_ends_when_its_counter_does() {
    let (quota, forms) = (first_hit(5), forms());
    let hits = take(&quota, 2);
    let mut plain = Plain::new(None, &hits, &forms, false).expect("served");
    let fresh = answer(&mut plain, &reply(&[2, 1, 1000], 500));
    assert_eq!((fresh.allowed, fresh.remaining, fresh.reset_after_ns), (true, 3, SECOND_NS));
    let second = answer(&mut plain, &reply(&[4, 0, 250], 500));
    assert_eq!((second.allowed, second.remaining, second.reset_after_ns), (true, 1, 251_000_000));
    let third = answer(&mut plain, &reply(&[6, 0, 249], 500));
    assert_eq!((third.allowed, third.remaining, third.reason), (false, 0, Reason::Exceeded));
    assert_eq!((third.retry_after, third.limit, third.receipt), (Wait::After(250_000_000), 5, None));
    // About to end, or without an end that could be told: the counter counts nevertheless.
    for left in [0, -1, -2] {
        let refused = answer(&mut plain, &reply(&[8, 0, left], 500));
        assert_eq!((refused.allowed, refused.retry_after), (false, Wait::After(1_000_000)), "{left}");
    }
    // Far over its limit, and at the limit.
    let most = answer(&mut plain, &reply(&[i64::MAX, 0, 9], 0));
    assert_eq!((most.allowed, most.remaining), (false, 0));
    let full = answer(&mut plain, &reply(&[5, 0, 9], 0));
    assert_eq!((full.allowed, full.remaining), (true, 0));
}

#[test]
fn a_window_that_the_server_has_left_or_not_begun_still_has_its_limit() {
    let (quota, forms) = (epoch(5), forms());
    let hits = take(&quota, 1);
    told(&forms, 0);
    let mut plain = Plain::new(None, &hits, &forms, false).expect("served");
    assert_eq!(plain.counters[0].start, Some(NOW_S * SECOND_NS));
    for (us, retry_ns) in [(0, SECOND_NS), (999_999, 1_000), (1_000_000, 1), (3_000_000, 1)] {
        assert!(answer(&mut plain, &reply(&[5, 0, 2000], us)).allowed);
        let refused = answer(&mut plain, &reply(&[6, 0, 2000], us));
        assert_eq!((refused.allowed, refused.retry_after), (false, Wait::After(retry_ns)), "at {us} us");
    }
    // And that one.
    told(&forms, 5 * SECOND_NS);
    let mut plain = Plain::new(None, &hits, &forms, false).expect("served");
    assert_eq!(answer(&mut plain, &reply(&[6, 0, 2000], 0)).retry_after, Wait::After(SECOND_NS));
}

#[test]
fn a_cost_that_never_fits_is_charged_nothing() {
    let forms = forms();
    for (quota, cost, count) in [(first_hit(5), 6, 3), (first_hit(0), 1, 0), (first_hit(5), u64::MAX, 5)] {
        let hits = take(&quota, cost);
        let mut plain = Plain::new(None, &hits, &forms, false).expect("served");
        let refused = answer(&mut plain, &reply(&[count, 7], 0));
        assert_eq!((refused.allowed, refused.retry_after), (false, Wait::Never), "{cost} of {quota:?}");
        assert_eq!(refused.remaining, quota.limit() - count.unsigned_abs());
    }
}

#[test]
fn only_free_takes_and_looks_on_fixed_windows_are_served() {
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
    for quota in others.map(|builder| builder.build().expect("valid")) {
        assert!(ops.iter().all(|op| !supports(&quota, *op)), "{quota:?}");
        let refused = Plain::new(None, &take(&quota, 1), &forms(), false).map(drop);
        assert!(matches!(refused, Err(StoreError::Malformed(_))), "{refused:?}");
    }
    assert!(supports(&short(1_500).build().expect("valid"), OpKind::Take));
    let (quota, forms) = (first_hit(5), forms());
    let hits = take(&quota, 1);
    assert!(matches!(Plain::new(Some(Time::EPOCH), &hits, &forms, false), Err(StoreError::Malformed(_))));
    let many = [hits[0]; 257];
    assert!(matches!(forms.call(None, &many), Err(StoreError::Malformed(_))));
}

#[test]
fn no_reply_makes_a_request_panic() {
    let quotas = [first_hit(5), epoch(5)];
    let forms = forms();
    let hits = [take(&quotas[0], 2)[0], take(&quotas[1], 1)[0], take(&quotas[0], 1)[0].with_op(Op::Peek)];
    let words = [0, 1, -1, -2, 5, 1000, i64::MAX, i64::MIN, 1 << 53, NOW_S.cast_signed()];
    let (mut seed, mut decided, mut failed) = (7u64, 0, 0);
    for _ in 0..200_000 {
        told(&forms, 0);
        let mut next = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % bound
        };
        let mut plain = Plain::new(None, &hits, &forms, false).expect("served");
        let length = if next(4) == 0 { next(100) } else { 80 };
        let mut reply: Vec<u8> = (0..13).flat_map(|_| words[next(words.len())].to_be_bytes()).collect();
        reply.truncate(length);
        match plain.answer(&reply, &mut [Decision::default(); 3]) {
            Ok(Answer::Verdict(_)) => decided += 1,
            Err(StoreError::Unavailable(_)) => failed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(decided > 1000 && failed > 1000, "{decided} decided, {failed} failed");
}

#[test]
fn values_that_are_no_numbers_are_no_answer() {
    let text = |text: &str| Value::BulkString(text.into());
    assert_eq!(numbers(&Value::Array(vec![Value::Int(-1), text("7"), Value::Nil])).map(|bytes| bytes.len()), Some(24));
    for value in [text("7.0"), text("-7"), text(""), text("a"), text("99999999999999999999"), Value::Okay] {
        assert_eq!(numbers(&value), None, "{value:?}");
        assert_eq!(numbers(&Value::Array(vec![value])), None);
    }
}

#[test]
fn a_native_take_raises_its_counter_no_further_than_the_limit() {
    let (quota, forms) = (first_hit(5), forms());
    let hits = take(&quota, 3);
    let name = Name::of_counter(&hits[0], 0);
    let mut plain = Plain::new(None, &hits, &forms, true).expect("served");
    let asked = format!("MULTI INCREX {name} BYINT 3 UBOUND 5 PX 1000 ENX PTTL {name} TIME EXEC ");
    assert_eq!(commands(&plain), asked);
    let first = answer(&mut plain, &reply(&[3, 3, 1000], 0));
    assert_eq!((first.allowed, first.remaining, first.reset_after_ns), (true, 2, SECOND_NS));
    let second = answer(&mut plain, &reply(&[3, 0, 700], 0));
    assert_eq!((second.allowed, second.remaining, second.retry_after), (false, 2, Wait::After(701_000_000)));
    // Above a limit that was lowered, and gone between the two commands.
    let lowered = answer(&mut plain, &reply(&[9, 0, 700], 0));
    assert_eq!((lowered.allowed, lowered.remaining), (false, 0));
    assert!(answer(&mut plain, &reply(&[5, 3, -2], 0)).allowed);
    let look = [hits[0].with_op(Op::Peek)];
    let plain = Plain::new(None, &look, &forms, true).expect("served");
    assert_eq!(commands(&plain), format!("MULTI GET {name} PTTL {name} TIME EXEC "));
}

#[test]
fn a_server_without_the_native_command_is_asked_as_before() {
    for scripts in [true, false] {
        let native = FixedWindow::Native;
        let forms = Forms::new(&Settings { scripts, fixed_window: native, ..Settings::new("redis://127.0.0.1/") });
        let quota = first_hit(5);
        let hits = take(&quota, 1);
        let mut call = forms.call(None, &hits).expect("served");
        assert!(matches!(&call, Call::Plain(plain) if plain.by_increx), "{call:?}");
        assert_eq!(forms.fixed_window(), FixedWindow::Native);
        let again = call.answer(&[], &mut [Decision::default()]);
        assert!(matches!(again, Ok(Answer::AskAgain)), "{again:?}");
        assert_eq!((matches!(call, Call::Script(_)), forms.fixed_window()), (scripts, FixedWindow::Script));
        let call = forms.call(None, &hits).expect("served");
        assert_eq!(matches!(&call, Call::Plain(plain) if !plain.by_increx), !scripts);
    }
}

/// Whether the server has the command or not.
#[test]
fn a_native_window_is_asked_about_alone_by_takes_and_looks() {
    let settings = Settings { fixed_window: FixedWindow::Native, ..Settings::new("redis://127.0.0.1/") };
    let forms = Forms::new(&settings);
    let (quota, other, nothing) = (first_hit(5), epoch(5), first_hit(0));
    let two = [take(&quota, 1)[0], take(&other, 1)[0]];
    let undo = [two[0].with_op(Op::Reset)];
    for _ in 0..2 {
        for hits in [&two[..], &undo] {
            let refused = forms.call(None, hits).map(drop);
            assert!(matches!(refused, Err(StoreError::Malformed(_))), "{refused:?}");
        }
        assert!(!forms.support(&quota, OpKind::Reset) && forms.support(&other, OpKind::Reset));
        assert!(matches!(forms.call(None, &two[1..]), Ok(Call::Script(_))), "others as ever");
        let nothing = [two[1], take(&nothing, 1)[0]];
        assert!(matches!(forms.call(None, &nothing), Ok(Call::Script(_))), "a limit of nothing counts nothing");
        let mut call = forms.call(None, &two[..1]).expect("served");
        let _ = call.answer(&[], &mut [Decision::default()]);
    }
}
