//! Compares forecasts and `wrong_refusals` with real sketches that get more and more new keys. Each key comes once, at
//! a random time.

use std::time::Duration;

use spillgate_core::{Binding, Hit, Op, Quota, QuotaBuilder, Time};
use spillgate_testkit::Random;

use super::common::SECOND;
use crate::sketch::size::in_buckets;
use crate::sketch::{MIN_BYTES, Sketch};

/// The number of cells in each row of a sketch of buckets.
const WIDTH: u64 = 256;

fn build(builder: QuotaBuilder) -> Quota {
    builder.build().expect("the quota is valid")
}

fn new_key(random: &mut Random) -> u128 {
    u128::from(random.below(u64::MAX)) << 64 | u128::from(random.below(u64::MAX))
}

/// Returns a random time until the next key. The mean of these times is `mean`.
fn pause(random: &mut Random, mean: f64) -> f64 {
    let uniform = (1 + random.below(1 << 40)) as f64 / (1_u64 << 40) as f64;
    -uniform.ln() * mean
}

/// Sends new keys to a sketch of buckets. `load` is the number of keys in the time between two units, divided by
/// [`WIDTH`]. Returns how many keys came after the debts had risen to their final height, and how many of these keys
/// were refused.
fn sent_to_buckets(random: &mut Random, load: f64, burst: u64) -> (f64, f64) {
    let quota = build(Quota::token_bucket(10, Duration::from_secs(1)).burst(burst));
    let sketch = Sketch::with_cells(&quota, WIDTH as usize * 32);
    let interval_ns = quota.interval_ns() as f64;
    let risen = (3.0 * burst as f64 + 10.0) * interval_ns;
    let (mut now, mut sent, mut refused) = (0.0, 0.0, 0.0);
    while now < risen + 50.0 * interval_ns {
        now += pause(random, interval_ns / (load * WIDTH as f64));
        let at = Time::from_nanos(1_000 * SECOND + now as u64);
        let is_refused = !sketch.take_now(at, &quota, new_key(random), 1).allowed;
        if now > risen {
            sent += 1.0;
            refused += f64::from(u8::from(is_refused));
        }
    }
    (sent, refused)
}

#[test]
fn buckets_refuse_no_more_new_keys_than_their_forecast_says() {
    let mut random = Random(15);
    for burst in [1, 2, 4, 10, 100] {
        for load in [0.5, 1.0, 2.0, 2.4, 3.0] {
            let (sent, refused) = sent_to_buckets(&mut random, load, burst);
            let (forecast, measured) = (in_buckets(load, burst), refused / sent);
            let case = format!("B = {burst}, a = {load}: forecast {forecast}, measured {measured}");
            // The sketch has a new secret in each run, so the number of refusals is random. Refusals may be above the
            // forecast by five standard deviations, plus three requests for the case of a small forecast.
            assert!(refused <= forecast * sent + 5.0 * (forecast * sent).sqrt() + 3.0, "{case}");
            assert!(burst > 1 || measured > forecast / 2.0, "{case}");
            assert!(burst < 10 || load > 2.0 || refused < 1.0, "{case}");
            assert!(load < 3.0 || load * (1.0 - measured) < 2.2, "{case}");
        }
    }
}

#[test]
fn a_forecast_of_buckets_rises_with_the_load_and_falls_with_the_burst() {
    let loads = [0.0, 0.01, 0.06, 0.3, 0.7, 0.99, 1.5, 1.99, 2.01, 3.0, 3.5, 10.0, 1e9, f64::INFINITY];
    let mut before = [0.0; 14];
    for burst in [1_000_000, 1_000, 64, 63, 10, 5, 4, 3, 2, 1] {
        let forecasts = loads.map(|load| in_buckets(load, burst));
        assert!(forecasts.is_sorted() && forecasts.iter().all(|share| (0.0..=1.0).contains(share)), "{forecasts:?}");
        assert!(forecasts.iter().zip(before).all(|(share, before)| *share >= before), "B = {burst}");
        before = forecasts;
    }
}

/// Returns the share of new keys that a take of one unit would refuse. The keys only peek, so the sketch does not
/// change.
fn refused(random: &mut Random, sketch: &Sketch, quota: &Quota, at: Time) -> f64 {
    const KEYS: u32 = 5_000;
    let mut is_refused =
        || sketch.hit_now(at, &Hit::new(new_key(random), quota, Op::Peek, Binding::Enforce)).remaining == 0;
    f64::from((0..KEYS).map(|_| u32::from(is_refused())).sum::<u32>()) / f64::from(KEYS)
}

#[test]
fn windows_refuse_no_more_new_keys_than_their_forecast_says() {
    let (mut random, minute) = (Random(16), Duration::from_secs(60));
    for limit in [1, 2, 3, 30] {
        for builder in [Quota::fixed_window(limit, minute), Quota::sliding_window_counter(limit, minute)] {
            for keys in [500.0, 4_000.0, 16_000.0] {
                let quota = build(builder);
                let sketch = Sketch::new(&quota, MIN_BYTES).expect("a window can have a sketch");
                let forecast = Sketch::forecast(&quota, MIN_BYTES, keys / 60.0);
                let (mut now, mut looks) = (600e9, [655e9, 662e9, 690e9].into_iter().peekable());
                while let Some(look) = looks.peek().copied() {
                    now += pause(&mut random, 60e9 / keys);
                    let _ = sketch.take_now(Time::from_nanos(now as u64), &quota, new_key(&mut random), 1);
                    if now > look {
                        looks.next();
                        let at = Time::from_nanos(now as u64);
                        let (measured, said) =
                            (refused(&mut random, &sketch, &quota, at), sketch.wrong_refusals(at, &quota, 1));
                        let case =
                            format!("{keys} keys, {measured} refused, {said} said, {forecast} forecast: {quota:?}");
                        assert!(measured <= forecast * 1.05 + 0.002, "{case}");
                        assert!((measured - said).abs() < 0.02 + 0.05 * said, "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn two_windows_that_are_below_the_limit_refuse_together_as_often_as_the_sketch_says() {
    let mut random = Random(17);
    for limit in [3, 10, 100] {
        let quota = build(Quota::sliding_window_counter(limit, Duration::from_secs(60)));
        let sketch = Sketch::new(&quota, MIN_BYTES).expect("a window can have a sketch");
        for at in [659 * SECOND, 661 * SECOND] {
            for _ in 0..20_000 {
                let _ = sketch.take_now(Time::from_nanos(at), &quota, new_key(&mut random), limit * 6 / 10);
            }
        }
        let at = Time::from_nanos(661 * SECOND);
        let (measured, said) = (refused(&mut random, &sketch, &quota, at), sketch.wrong_refusals(at, &quota, 1));
        assert!(measured > 0.01, "{limit}: {measured}");
        assert!((measured - said).abs() < 0.02 + 0.05 * said, "{limit}: {measured} refused, {said} said");
    }
}

#[test]
fn new_keys_of_a_queue_that_do_not_wait_are_refused_as_often_as_the_sketch_says() {
    let mut random = Random(18);
    let quota = build(Quota::leaky_bucket(10, Duration::from_secs(1)).queue(9));
    let sketch = Sketch::new(&quota, MIN_BYTES).expect("a queue can have a sketch");
    let at = Time::from_nanos(1_000 * SECOND);
    for _ in 0..2_000 {
        let _ = sketch.take_now(at, &quota, new_key(&mut random), 1);
    }
    let said = sketch.wrong_refusals(at, &quota, 1);
    // Each of these takes raises cells, so only 1,000 keys are sent.
    let refused = (0..1_000).filter(|_| !sketch.take_now(at, &quota, new_key(&mut random), 1).allowed).count();
    let (least, most) = (1_000.0 * said, 1_000.0 * sketch.wrong_refusals(at, &quota, 1));
    assert!(least > 100.0, "{least}");
    assert!((least - 100.0..most + 100.0).contains(&(refused as f64)), "{refused}: {least} to {most}");
}

#[test]
fn the_highest_rate_and_the_size_are_inverses_of_the_forecast() {
    let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
    let builders = [
        Quota::token_bucket(10, second).burst(1),
        Quota::token_bucket(10, second),
        Quota::token_bucket(100, day),
        Quota::token_bucket(1_000, day).burst(1_000_000),
        Quota::leaky_bucket(10, second).queue(5),
        Quota::fixed_window(1, second),
        Quota::fixed_window(2, day),
        Quota::sliding_window_counter(10, second),
        Quota::sliding_window_counter(1_000_000, day),
    ];
    for quota in builders.map(build) {
        for bytes in [0, MIN_BYTES, 1 << 20, 64 << 20] {
            let rate = Sketch::highest_rate(&quota, bytes);
            let forecast = |part: f64| Sketch::forecast(&quota, bytes, rate * part);
            assert!(forecast(1.0) <= Sketch::FEW_WRONG_REFUSALS, "{rate}: {quota:?}");
            assert!(forecast(1.01) > Sketch::FEW_WRONG_REFUSALS, "{rate}: {quota:?}");
            let needed = Sketch::bytes_for(&quota, rate);
            assert!(needed <= bytes.max(MIN_BYTES), "{needed} of {bytes}: {quota:?}");
            assert!(Sketch::highest_rate(&quota, needed) > 0.999 * rate, "{needed} of {bytes}: {quota:?}");
        }
    }
    let none = build(Quota::token_bucket(0, second));
    assert_eq!((Sketch::highest_rate(&none, 1 << 20), Sketch::bytes_for(&none, 1.0)), (0.0, usize::MAX));
    assert_eq!(Sketch::bytes_for(&build(Quota::token_bucket(1, day)), 1e30), usize::MAX);
}

#[test]
fn a_rate_that_is_no_number_or_negative_counts_as_0() {
    for quota in super::common::quotas(5, SECOND) {
        for rate in [f64::NAN, -1.0, f64::NEG_INFINITY, 0.0] {
            assert_eq!(Sketch::forecast(&quota, 1 << 20, rate), 0.0, "{rate}: {quota:?}");
            assert_eq!(Sketch::bytes_for(&quota, rate), MIN_BYTES, "{rate}: {quota:?}");
        }
        assert!(Sketch::forecast(&quota, 1 << 20, f64::INFINITY) > 0.99, "{quota:?}");
    }
}
