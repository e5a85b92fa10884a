//! Draws the diagrams of the book: boxes and arrows that show how parts of spillgate work together.

use super::svg::{BLUE, DARK, PALE, SAND, Svg};

/// Draws the two layouts of a bucket of the memory store. Such a bucket is 128 bytes with slots for several keys.
pub(crate) fn memory_bucket() -> String {
    let mut svg = Svg::new(880, 230);
    let word = 50.0;
    for (row, (title, slots, words)) in
        [("token buckets, queues, fixed windows", 5, 3), ("sliding counters of one segment", 3, 5)]
            .into_iter()
            .enumerate()
    {
        let top = 46.0 + 88.0 * row as f64;
        svg.text((30.0, top - 10.0), &format!("{title}: {slots} slots of {words} words"));
        svg.labelled((30.0 + 15.0 * word, top), (word, 40.0), SAND, &["lock"]);
        for slot in 0..slots {
            let (left, width) = (30.0 + f64::from(slot * words) * word, f64::from(words) * word);
            let lines: &[&str] =
                if words == 3 { &["fingerprint", "time, payload"] } else { &["fingerprint", "time, counters"] };
            svg.labelled((left, top), (width, 40.0), PALE, lines);
        }
    }
    svg.arrow((30.0, 192.0), (30.0 + 16.0 * word, 192.0));
    svg.middle((30.0 + 8.0 * word, 214.0), "16 words of 8 bytes: two neighbouring cache lines");
    svg.finish()
}

/// Draws one request to the Redis store. The script returns states, from which the kernel computes the answer.
pub(crate) fn script() -> String {
    let mut svg = Svg::new(880, 270);
    let parts = [
        (30.0, SAND, ["the kernel", "decide(states, hits, now)"]),
        (335.0, PALE, ["spillgate", "the Redis store"]),
        (640.0, PALE, ["Redis", "one script, one atomic step"]),
    ];
    for (left, color, lines) in parts {
        svg.labelled((left, 20.0), (210.0, 44.0), color, &lines);
        svg.line((left + 105.0, 64.0), (left + 105.0, 255.0), DARK);
    }
    svg.arrow((440.0, 96.0), (745.0, 96.0));
    svg.middle((590.0, 90.0), "keys, quotas, costs");
    svg.labelled((665.0, 106.0), (160.0, 40.0), SAND, &["read, check,", "charge if all fit"]);
    svg.arrow((745.0, 170.0), (440.0, 170.0));
    svg.middle((590.0, 164.0), "states before the charge, time");
    svg.arrow((440.0, 204.0), (135.0, 204.0));
    svg.middle((290.0, 198.0), "these states, this time");
    svg.arrow((135.0, 238.0), (440.0, 238.0));
    svg.middle((290.0, 232.0), "allowed, remaining, retry_after");
    svg.finish()
}

/// Draws how several takes that arrive together share one command to Redis.
pub(crate) fn one_call() -> String {
    let mut svg = Svg::new(880, 210);
    for number in 0..5 {
        let top = 20.0 + 34.0 * f64::from(number);
        let name = if number == 4 { "take 32".to_owned() } else { format!("take {}", number + 1) };
        svg.labelled((30.0, top), (110.0, 26.0), PALE, &[&name]);
        svg.arrow((140.0, top + 13.0), (296.0, 95.0));
    }
    svg.labelled((300.0, 66.0), (180.0, 58.0), SAND, &["one command", "one write"]);
    svg.arrow((480.0, 95.0), (616.0, 95.0));
    svg.labelled(
        (620.0, 50.0),
        (220.0, 90.0),
        PALE,
        &["Redis runs the script once", "and decides each take", "by itself, in order"],
    );
    svg.text((300.0, 190.0), "The overhead of a script is paid once for all takes.");
    svg.finish()
}

/// Draws the way of a request from its connection to its decision.
pub(crate) fn server() -> String {
    let mut svg = Svg::new(880, 270);
    svg.labelled((20.0, 100.0), (110.0, 50.0), SAND, &["acceptor"]);
    svg.labelled((20.0, 200.0), (110.0, 50.0), SAND, &["admin thread"]);
    svg.text((142.0, 230.0), "serves metrics, rules and reset, not on a worker");
    for (top, name) in [(40.0, "worker 1"), (140.0, "worker 2")] {
        svg.arrow((130.0, 125.0), (186.0, top + 25.0));
        svg.labelled((190.0, top), (110.0, 50.0), SAND, &[name]);
        svg.arrow((300.0, top + 25.0), (346.0, 115.0));
    }
    svg.text((190.0, 24.0), "each worker is one thread with its own runtime");
    let steps =
        [["protocol", "gRPC, HTTP"], ["service", "bounds, plan"], ["limiter", "one clock"], ["store", "decides"]];
    for (number, lines) in steps.iter().enumerate() {
        let left = 350.0 + 130.0 * number as f64;
        svg.labelled((left, 90.0), (104.0, 50.0), PALE, lines);
        if number > 0 {
            svg.arrow((left - 26.0, 115.0), (left - 4.0, 115.0));
        }
    }
    svg.bar((350.0, 160.0), (494.0, 3.0), BLUE);
    svg.middle((597.0, 182.0), "calls that were read together: one timestamp, and one write for all answers");
    svg.finish()
}
