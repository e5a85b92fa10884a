//! Draws the pictures of the book. The decisions in them are real decisions of the library, with a clock that the test
//! sets.
//!
//! The test fails if a committed picture differs from the drawn picture. If `WRITE_DOCS` is set, the test writes the drawn
//! picture instead.

use std::fs;
use std::time::Duration;

use spillgate::sketch::Sketch;
use spillgate::{Anchor, Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, Time};

use super::svg::{BLUE, DARK, GREY, RED, Svg};
use super::{diagrams, page};
use crate::support::root;

type Draw = fn() -> String;

const PICTURES: [(&str, Draw); 9] = [
    ("algorithms", algorithms),
    ("window-or-bucket", window_or_bucket),
    ("bound", bound),
    ("cut-limit", cut_limit),
    ("sketch-errors", sketch_errors),
    ("memory-bucket", diagrams::memory_bucket),
    ("script", diagrams::script),
    ("one-call", diagrams::one_call),
    ("server", diagrams::server),
];

#[test]
fn generated_pictures_are_what_the_code_draws() {
    for (name, draw) in PICTURES {
        let path = format!("docs/src/pictures/{name}.svg");
        let drawn = draw();
        if std::env::var_os("WRITE_DOCS").is_some() {
            fs::write(root().join(&path), drawn).expect("the picture can be written");
        } else {
            assert!(page::read(&path) == drawn, "{path} is not what the code draws: run `make docs-tables`");
        }
    }
}

/// The time of a request, and whether the request was allowed.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at_ms: u64,
    allowed: bool,
}

/// Sends a request for one unit every `every_ms` milliseconds, from the time `from_ms` to the time `to_ms`. `quota`
/// returns the quota for each time.
fn ask<'q>(quota: impl Fn(u64) -> &'q Quota, (from_ms, to_ms): (u64, u64), every_ms: u64) -> Vec<Asked> {
    let clock = ManualClock::at(Time::from_nanos(0));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock);
    let times = (from_ms..to_ms).step_by(usize::try_from(every_ms).expect("the pause fits into a usize"));
    let ask = |at_ms| {
        // The clock begins at 0, because a window of every length begins at this time.
        limiter.clock().set(Time::from_nanos(0).after(Duration::from_millis(at_ms)));
        Asked { at_ms, allowed: limiter.take_now(quota(at_ms), ("picture", "key"), 1).allowed }
    };
    times.map(ask).collect()
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const LEFT: f64 = 190.0;

fn x(at_ms: u64) -> f64 {
    LEFT + at_ms as f64 * 0.02
}

/// Draws one row of requests. An allowed request is blue, and a refused request is grey.
fn row(svg: &mut Svg, y: f64, name: &str, asked: &[Asked]) {
    svg.end((LEFT - 12.0, y + 4.0), name);
    for Asked { at_ms, allowed } in asked {
        match allowed {
            true => svg.bar((x(*at_ms), y - 10.0), (3.0, 20.0), BLUE),
            false => svg.bar((x(*at_ms), y - 3.0), (3.0, 6.0), GREY),
        }
    }
}

/// Draws a dashed line where each window of ten seconds begins, and writes the time below the line.
fn edges(svg: &mut Svg, height: f64, until_s: u64) {
    for second in (0..=until_s).step_by(10) {
        svg.dashes((x(second * 1000), 30.0), (x(second * 1000), height), GREY);
        svg.middle((x(second * 1000), height + 16.0), &format!("{second} s"));
    }
}

fn legend(svg: &mut Svg, text: &str) {
    svg.bar((LEFT, 8.0), (3.0, 14.0), BLUE);
    svg.text((LEFT + 8.0, 20.0), "allowed");
    svg.bar((LEFT + 70.0, 12.0), (3.0, 6.0), GREY);
    svg.text((LEFT + 78.0, 20.0), "refused");
    svg.text((LEFT + 160.0, 20.0), text);
}

fn algorithms() -> String {
    let window = seconds(10);
    let quotas = [
        ("fixed_window", Quota::fixed_window(10, window)),
        ("fixed_window, first_hit", Quota::fixed_window(10, window).anchor(Anchor::FirstHit)),
        ("token_bucket", Quota::token_bucket(10, window)),
        ("token_bucket, burst 3", Quota::token_bucket(10, window).burst(3)),
        ("sliding_window_counter", Quota::sliding_window_counter(10, window)),
        ("sliding_window_log", Quota::sliding_window_log(10, window)),
    ];
    let mut svg = Svg::new(880, 300);
    legend(&mut svg, "a client asks three times a second from 4 s on; the limit is 10 in 10 s");
    edges(&mut svg, 270.0, 30);
    for (number, (name, quota)) in quotas.into_iter().enumerate() {
        let quota = quota.build().expect("the quota is valid");
        row(&mut svg, 54.0 + 38.0 * number as f64, name, &ask(|_| &quota, (4_000, 32_000), 333));
    }
    svg.finish()
}

fn window_or_bucket() -> String {
    let window = Quota::fixed_window(5, seconds(10)).build().expect("the quota is valid");
    let bucket = Quota::token_bucket(5, seconds(10)).build().expect("the quota is valid");
    let mut svg = Svg::new(880, 160);
    legend(&mut svg, "a client asks five times a second from 9 s on; the limit is 5 in 10 s");
    edges(&mut svg, 128.0, 30);
    row(&mut svg, 58.0, "fixed_window", &ask(|_| &window, (9_000, 32_000), 200));
    row(&mut svg, 102.0, "token_bucket", &ask(|_| &bucket, (9_000, 32_000), 200));
    svg.finish()
}

/// Draws how much a token bucket admits if a client sends more than the limit. Also draws the bound `B + s/T`: `B` is
/// the burst, `s` is the time since the start, and `T` is the time until one more unit is there.
fn bound() -> String {
    let quota = Quota::token_bucket(10, seconds(10)).burst(5).build().expect("the quota is valid");
    let asked = ask(|_| &quota, (0, 30_000), 100);
    let y = |units: f64| 260.0 - units * 6.0;
    let mut svg = Svg::new(880, 300);
    svg.text((LEFT, 20.0), "token_bucket of 10 in 10 s with burst 5: T is 1 s, and a client asks ten times a second");
    for second in (0..=30).step_by(10) {
        svg.line((x(second * 1000), 260.0), (x(second * 1000), 264.0), DARK);
        svg.middle((x(second * 1000), 280.0), &format!("{second} s"));
    }
    for units in (0..=35).step_by(5) {
        svg.line((LEFT - 4.0, y(f64::from(units))), (LEFT, y(f64::from(units))), DARK);
        svg.end((LEFT - 8.0, y(f64::from(units)) + 4.0), &units.to_string());
    }
    svg.line((LEFT, 260.0), (x(30_000), 260.0), DARK);
    svg.line((LEFT, 40.0), (LEFT, 260.0), DARK);
    svg.dashes((x(0), y(5.0)), (x(30_000), y(35.0)), RED);
    svg.end((x(12_000), y(19.0)), "the bound: 5 + s / 1 s");
    let mut admitted = 0.0;
    for asked in asked.iter().filter(|asked| asked.allowed) {
        admitted += 1.0;
        svg.dot((x(asked.at_ms), y(admitted)), 3.0, BLUE);
    }
    svg.text((x(17_000), y(17.0)), "admitted so far");
    svg.finish()
}

/// Draws a limit that is lowered for a while and then restored. Units that were used stay used through both changes.
fn cut_limit() -> String {
    let large = Quota::token_bucket(20, seconds(10)).build().expect("the quota is valid");
    let small = Quota::token_bucket(2, seconds(10)).build().expect("the quota is valid");
    let quota = |at_ms| if (8_000..16_000).contains(&at_ms) { &small } else { &large };
    let mut svg = Svg::new(880, 120);
    legend(&mut svg, "a token bucket; a client asks four times a second");
    edges(&mut svg, 88.0, 30);
    svg.dashes((x(8_000), 34.0), (x(8_000), 86.0), RED);
    svg.dashes((x(16_000), 34.0), (x(16_000), 86.0), RED);
    svg.middle((x(4_000), 44.0), "20 in 10 s");
    svg.middle((x(12_000), 44.0), "2 in 10 s");
    svg.middle((x(23_000), 44.0), "20 in 10 s again");
    row(&mut svg, 68.0, "one key", &ask(quota, (0, 32_000), 250));
    svg.finish()
}

/// Draws the share of wrong refusals of sketches of 1 MiB to 1 GiB, as the library computes it. Both axes are logarithmic.
fn sketch_errors() -> String {
    const RATE: f64 = 1e6;
    let quotas = [
        ("burst 1", Quota::per_second(10).burst(1).constant(), RED),
        ("burst 10", Quota::per_second(10).burst(10).constant(), BLUE),
    ];
    let counter = Quota::sliding_window_counter(10, seconds(1)).build().expect("the quota is valid");
    let lines = quotas.into_iter().chain([("sliding_window_counter", counter, DARK)]);
    // Twice the memory is 64 pixels further right, and ten times the errors is 22 pixels higher.
    let x = |octaves: f64| 120.0 + 64.0 * octaves;
    let y = |share: f64| 40.0 - 22.0 * share.log10().max(-10.0);
    let mut svg = Svg::new(880, 310);
    svg.text(
        (120.0, 20.0),
        "share of wrong refusals, at most: 10 units a second for each key, a million new keys each second",
    );
    for octave in (0..=10).step_by(2) {
        svg.line((x(f64::from(octave)), y(1e-10)), (x(f64::from(octave)), y(1e-10) + 4.0), DARK);
        svg.middle((x(f64::from(octave)), y(1e-10) + 20.0), &format!("{} MiB", 1 << octave));
    }
    for (share, label) in
        [(1.0, "1"), (1e-2, "1 in 100"), (1e-4, "1 in 10^4"), (1e-6, "1 in 10^6"), (1e-8, "1 in 10^8")]
    {
        svg.dashes((x(0.0), y(share)), (x(10.0), y(share)), GREY);
        svg.end((x(0.0) - 8.0, y(share) + 4.0), label);
    }
    svg.line((x(0.0), y(1e-10)), (x(10.0), y(1e-10)), DARK);
    svg.line((x(0.0), y(1.0)), (x(0.0), y(1e-10)), DARK);
    for (number, (name, quota, color)) in lines.enumerate() {
        let share = |octaves: f64| Sketch::forecast(&quota, (f64::from(1 << 20) * octaves.exp2()) as usize, RATE);
        let points: Vec<(f64, f64)> = (0..=100).map(|step| f64::from(step) / 10.0).map(|at| (at, share(at))).collect();
        for pair in points.windows(2).filter(|pair| pair[1].1 > 1e-10) {
            svg.line((x(pair[0].0), y(pair[0].1)), (x(pair[1].0), y(pair[1].1)), color);
        }
        svg.bar((640.0, 50.0 + 20.0 * number as f64), (14.0, 4.0), color);
        svg.text((660.0, 56.0 + 20.0 * number as f64), name);
    }
    svg.finish()
}
