//! `spillgate size`: computes the memory of a limit in each representation, and what a sketch would refuse wrongly.
//!
//! A sketch that is too small for its traffic refuses clients that have used nothing. An operator has to see this
//! before the rule goes live.

use std::time::Duration;

use serde_json::{Value, json};
use spillgate::regions::Peers;
use spillgate::rules::LimitSketch;
use spillgate::sketch::{Sketch, SketchError};
use spillgate::units::{format_bytes, format_duration};
use spillgate::{AcrossRegions, Quota, QuotaBuilder, QuotaError, Regions, Time};

use super::terminal::{EXIT_DENIED, EXIT_OK, EXIT_USAGE, Problem, Problems, Table, Terminal, Tone, count, thousands};
use crate::cli::Size;

/// The bytes of a key in the memory store, for a token bucket or a fixed window. `bench/RESULTS.md` has the
/// measurements.
const BYTES_PER_KEY: f64 = 31.0;
/// The bytes of a key in the memory store, for a sliding window counter of one segment.
const BYTES_PER_COUNTER: f64 = 52.0;
/// The bytes of a key in Redis, for all algorithms except logs and permits.
const BYTES_IN_REDIS: f64 = 177.0;
/// The bytes of what a store knows of one key from servers of other regions (a hash with few fields), at most.
const BYTES_OF_HASH: f64 = 200.0;
/// How much longer such a hash lives than what is told of its span.
const HASH_OUTLIVES: Duration = Duration::from_secs(10);
/// The default of `regions.max_keys`.
const REMEMBERED_KEYS: u32 = 262_144;
/// The largest `sketch_memory` of a rule.
const MAX_SKETCH_BYTES: u64 = LimitSketch::MAX_BYTES;
/// Without `--memory`, an exact limit is recommended up to this memory. With the default of `memory.max_keys`, token
/// buckets use this many bytes at most.
const USUAL_BYTES: u64 = 310_000_000;

/// One representation of the limit.
struct Row {
    representation: &'static str,
    algorithm: &'static str,
    /// The keys that have a state at the same time, at most. `None` for a sketch, whose memory does not depend on keys.
    keys_at_once: Option<u64>,
    bytes: u64,
    wrong_refusals: f64,
    /// Why the representation cannot work.
    fault: Option<String>,
    /// Whether the limit needs no network.
    is_local: bool,
}

pub(super) fn run(size: &Size, terminal: &mut Terminal) -> u8 {
    match rows(size) {
        Ok(rows) => print(size, &rows, terminal),
        Err(problem) => {
            Problems::from(problem).print(size.json, terminal);
            EXIT_USAGE
        }
    }
}

fn rows(size: &Size) -> Result<Vec<Row>, Problem> {
    let wrong = if size.burst.is_some() { "correct --limit or --burst" } else { "correct --limit" };
    let invalid = |error: QuotaError| Problem::new(format!("this limit is not possible: {error}"), wrong);
    let build = |builder: QuotaBuilder| builder.build().map_err(invalid);
    let bucket = Quota::token_bucket(size.limit, size.window);
    let bucket = build(size.burst.map_or(bucket, |burst| bucket.burst(burst)))?;
    let counter = build(Quota::sliding_window_counter(size.limit, size.window))?;
    let (window, interval) = (size.window.as_secs_f64(), bucket.interval_ns() as f64 / 1e9);
    let rate = possible_rate(size);
    // A unit keeps the state of its key alive for some time. There are at most as many live keys as live units.
    let live = |life: f64| (rate * life).min(size.keys as f64);
    let exact = |algorithm, life: f64, bytes: f64| Row {
        representation: "exact",
        algorithm,
        keys_at_once: Some(live(life).ceil() as u64),
        bytes: (live(life) * bytes).ceil() as u64,
        wrong_refusals: 0.0,
        fault: None,
        is_local: true,
    };
    let redis = |algorithm, life: f64| Row {
        representation: "redis",
        is_local: false,
        ..exact(algorithm, life, BYTES_IN_REDIS)
    };
    let rows = [
        exact("token_bucket", interval, BYTES_PER_KEY),
        exact("fixed_window", window, BYTES_PER_KEY),
        exact("sliding_window_counter", 2.0 * window, BYTES_PER_COUNTER),
        sketch(size, "gcra sketch", "token_bucket", &bucket),
        sketch(size, "count-min", "sliding_window_counter", &counter),
        redis("token_bucket", interval),
        redis("fixed_window", window),
    ];
    // Only what is counted in a store can be shared.
    if let Some(regions) = size.regions.and_then(Regions::new) {
        let window = build(Quota::fixed_window(size.limit, size.window))?;
        return [(bucket, interval), (window, size.window.as_secs_f64()), (counter, 2.0 * size.window.as_secs_f64())]
            .map(|(quota, life)| shared(size, &quota, regions, live(life)).map_err(invalid))
            .into_iter()
            .collect();
    }
    Ok(rows.into_iter().map(|row| checked(size, row)).collect())
}

/// Returns the memory in the store of each region for a limit that regions share. A key has a state there, and a hash with
/// what the servers of the other regions have told, for each span in which it is used. `states` is how many states there are
/// at a time.
fn shared(size: &Size, quota: &Quota, regions: Regions, states: f64) -> Result<Row, QuotaError> {
    let quota = quota.across(AcrossRegions::Shared(regions))?;
    let span = quota.span(Time::EPOCH);
    let told = Duration::from_nanos(quota.span_life_ns(span)) + HASH_OUTLIVES;
    let begun_a_second = (size.rate as f64).min(size.keys as f64 / Duration::from_nanos(span.length_ns).as_secs_f64());
    let hashes = begun_a_second * told.as_secs_f64();
    Ok(Row {
        representation: "redis, each region",
        algorithm: quota.algorithm().as_str(),
        keys_at_once: Some(states.max(hashes.min(size.keys as f64)).ceil() as u64),
        bytes: (states * BYTES_IN_REDIS + hashes * BYTES_OF_HASH).ceil() as u64,
        wrong_refusals: 0.0,
        fault: None,
        is_local: false,
    })
}

/// Returns the units that all keys together can use in a second: the rate that was asked for, or less if the keys are
/// few.
fn possible_rate(size: &Size) -> f64 {
    (size.rate as f64).min(size.keys as f64 * size.limit as f64 / size.window.as_secs_f64())
}

fn sketch(size: &Size, representation: &'static str, algorithm: &'static str, quota: &Quota) -> Row {
    // A rules file can only have a sketch that is large enough for this rate.
    let rate = possible_rate(size).max(LimitSketch::LEAST_UNITS_PER_SECOND);
    let needed = Sketch::bytes_for(quota, rate) as u64;
    let bytes = size.memory.unwrap_or(needed).min(MAX_SKETCH_BYTES);
    let in_memory = usize::try_from(bytes).unwrap_or(usize::MAX);
    let wrong_refusals = Sketch::forecast(quota, in_memory, rate);
    let fault = match SketchError::check(quota) {
        Err(error) => Some(error.to_string()),
        Ok(()) if wrong_refusals > Sketch::FEW_WRONG_REFUSALS => Some(format!(
            "a sketch of {} is large enough for {} a second, not {:.0}; {}",
            format_bytes(bytes),
            units(Sketch::highest_rate(quota, in_memory)),
            rate.ceil(),
            match needed {
                needed if needed <= MAX_SKETCH_BYTES => format!("{} would be enough", whole_mib(needed)),
                _ => format!("it would need more than {}, the maximum", format_bytes(MAX_SKETCH_BYTES)),
            }
        )),
        Ok(()) => None,
    };
    Row { representation, algorithm, keys_at_once: None, bytes, wrong_refusals, fault, is_local: true }
}

/// Returns a number of units as text, rounded down.
fn units(number: f64) -> String {
    if number < 1.0 { "less than 1 unit".to_owned() } else { count(number as u64, "unit") }
}

/// Returns a size that a rules file can have: a whole number, rounded up.
fn whole_mib(bytes: u64) -> String {
    let mib = bytes.div_ceil(1 << 20);
    if mib.is_multiple_of(1 << 10) { format!("{}GiB", mib >> 10) } else { format!("{mib}MiB") }
}

/// Marks the representation if it needs more memory than allowed.
fn checked(size: &Size, mut row: Row) -> Row {
    if let (Some(memory), true, None) = (size.memory, row.is_local, &row.fault)
        && row.bytes > memory
    {
        row.fault = Some(format!("it needs more than {}", format_bytes(memory)));
    }
    row
}

/// Returns the best representation that works: an exact one if it is small, then a sketch, then the smallest one. Of a limit
/// that regions share, the bucket: only a bucket pays back what was too much, and has a guaranteed share.
fn recommended<'r>(size: &Size, rows: &'r [Row]) -> Option<&'r Row> {
    if size.regions.is_some() {
        return rows.iter().find(|row| row.algorithm == "token_bucket" && row.fault.is_none());
    }
    let usual = size.memory.unwrap_or(USUAL_BYTES);
    let working = || rows.iter().filter(|row| row.fault.is_none());
    let small = || working().filter(|row| row.is_local && row.bytes <= usual);
    let exact = small().find(|row| row.representation == "exact");
    let local = exact.or_else(|| small().min_by_key(|row| row.bytes));
    local.or_else(|| if size.memory.is_some() { None } else { working().min_by_key(|row| row.bytes) })
}

fn print(size: &Size, rows: &[Row], terminal: &mut Terminal) -> u8 {
    let best = recommended(size, rows);
    let is_best = |row: &Row| best.is_some_and(|best| std::ptr::eq(best, row));
    if size.json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| {
                json!({
                    "representation": row.representation,
                    "algorithm": row.algorithm,
                    "keys_at_once": row.keys_at_once,
                    "bytes": row.bytes,
                    "wrong_refusals": row.wrong_refusals,
                    "works": row.fault.is_none(),
                    "reason": row.fault,
                    "recommended": is_best(row),
                })
            })
            .collect();
        terminal.json(&json!({ "representations": rows }));
    } else {
        // Without this sentence, a few bytes for a million keys would look like a mistake.
        let heading = format!(
            "{} in {} for each key; {} a second from {}\n\
             A key needs memory only until its units have expired, so not all keys do at the same time.\n\n",
            count(size.limit, "unit"),
            format_duration(size.window),
            count(size.rate, "unit"),
            count(size.keys, "key"),
        );
        let text = heading + &table(rows, is_best, terminal) + &advice(size, best);
        terminal.print(&text);
    }
    if best.is_some() { EXIT_OK } else { EXIT_DENIED }
}

fn table(rows: &[Row], is_best: impl Fn(&Row) -> bool, terminal: &Terminal) -> String {
    let mut table = Table::new(0);
    let titles = ["representation", "algorithm", "keys at once", "memory", "new keys refused, at most", "verdict"];
    table.row(titles.map(|title| (Tone::Faint, title.to_owned())));
    for row in rows {
        let (tone, verdict) = match &row.fault {
            Some(fault) => (Tone::Bad, format!("cannot work: {fault}")),
            None if is_best(row) => (Tone::Good, "recommended".to_owned()),
            None => (Tone::Plain, "works".to_owned()),
        };
        table.row([
            (Tone::Title, row.representation.to_owned()),
            (Tone::Plain, row.algorithm.to_owned()),
            (Tone::Plain, row.keys_at_once.map_or_else(|| "any".to_owned(), |keys| thousands(keys as usize))),
            (Tone::Plain, format_bytes(row.bytes)),
            (Tone::Plain, share(row.wrong_refusals)),
            (tone, verdict),
        ]);
    }
    table.text(true, terminal)
}

/// Returns a share as text: none, 1 in 17000 or 12 in 100.
fn share(share: f64) -> String {
    match share {
        share if share <= 1e-12 => "none".to_owned(),
        share if share < 0.01 => format!("1 in {:.0}", 1.0 / share),
        share => format!("{:.0} in 100", 100.0 * share),
    }
}

fn advice(size: &Size, best: Option<&Row>) -> String {
    let Some(best) = best else {
        return "\nNothing fits into --memory. Raise it, shorten the window, or count in Redis.\n".to_owned();
    };
    let burst = size.burst.filter(|_| best.algorithm == "token_bucket");
    let algorithm = burst.map_or(best.algorithm.to_owned(), |burst| format!("{}, burst: {burst}", best.algorithm));
    let line = match best.representation {
        "exact" => format!("algorithm: {algorithm}, without `representation`"),
        "redis" => format!("algorithm: {algorithm}, with `--store redis://HOST:PORT`"),
        "redis, each region" => format!("algorithm: {algorithm}, across_regions: shared"),
        _ => {
            // A size in a rules file is a whole number. It must not be above --memory.
            let memory = match size.memory {
                Some(memory) if !memory.is_multiple_of(1 << 20) => format!("{}KiB", best.bytes >> 10),
                _ => whole_mib(best.bytes),
            };
            format!("algorithm: {algorithm}, representation: sketch, sketch_memory: {memory}")
        }
    };
    let note = match (best.representation, size.regions.and_then(Regions::new)) {
        ("exact", _) => {
            "While more keys come at once than `memory.max_keys` (10M), `memory.on_full` says what happens to new ones.\n"
                .to_owned()
        }
        ("redis", _) => String::new(),
        (_, Some(regions)) => format!(
            "The store of each region has the keys of all regions. Each server remembers up to {} entries for the others \
             (`regions.max_keys`), one for a key in a span, which takes {} at most.\n",
            thousands(REMEMBERED_KEYS as usize),
            format_bytes(Peers::memory_bytes(REMEMBERED_KEYS, regions)),
        ),
        _ => {
            "The refusals of new keys are those of an attack with keys that come once. Keys that use up their limits can \
             cause more of them.\n"
                .to_owned()
        }
    };
    format!("\nIn the rule: {line}\n{note}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 units a second for each key.
    const SIZE: Size = Size {
        limit: 10,
        window: Duration::from_secs(1),
        burst: None,
        rate: 1_000_000,
        keys: 1_000_000_000,
        memory: None,
        regions: None,
        json: false,
    };
    const DAY: Duration = Duration::from_secs(86_400);

    fn row<'r>(rows: &'r [Row], representation: &str, algorithm: &str) -> &'r Row {
        rows.iter().find(|row| (row.representation, row.algorithm) == (representation, algorithm)).expect("a row")
    }

    #[test]
    fn memory_grows_with_the_rate_and_the_time_that_a_unit_counts() {
        let rows = rows(&SIZE).expect("the limit is valid");
        // A million units a second live for 0.1 s in a bucket, and for 1 s in a window.
        assert_eq!(row(&rows, "exact", "token_bucket").bytes, 3_100_000);
        assert_eq!(row(&rows, "exact", "fixed_window").bytes, 31_000_000);
        assert_eq!(row(&rows, "exact", "token_bucket").keys_at_once, Some(100_000));
        assert_eq!(row(&rows, "gcra sketch", "token_bucket").keys_at_once, None);
        // With this burst, one cell in each row is enough for two units in 0.1 s. There are four rows, and a cell has 8
        // bytes.
        let sketch = row(&rows, "gcra sketch", "token_bucket");
        assert_eq!(sketch.bytes / 100_000, 16);
        assert!(sketch.fault.is_none() && sketch.wrong_refusals <= 1e-5);
    }

    #[test]
    fn a_sketch_works_up_to_the_rate_and_from_the_size_that_its_error_names() {
        for (limit, window, burst) in [(100, DAY, None), (10, Duration::from_secs(1), Some(1))] {
            for name in ["gcra sketch", "count-min"] {
                let fault = |rate, memory| {
                    let rows = rows(&Size { limit, window, burst, rate, memory: Some(memory), ..SIZE });
                    rows.ok()?.into_iter().find(|row| row.representation == name)?.fault
                };
                let number = |fault: &str, before: &str, after: &str| -> Option<u64> {
                    fault.split_once(before)?.1.split_once(after)?.0.parse().ok()
                };
                let error = fault(10_000_000, 1 << 20).expect("the sketch is too small");
                let rate = number(&error, "large enough for ", " unit").expect("the error names a rate");
                assert_eq!(fault(rate, 1 << 20), None, "{error}");
                assert!(fault(rate + 1, 1 << 20).is_some(), "{error}");
                let error = fault(3 * rate, 1 << 20).expect("the sketch is too small");
                let mib = number(&error, "; ", "MiB would be enough").expect("the error names a size");
                assert_eq!(fault(3 * rate, mib << 20), None, "{error}");
                assert!(fault(3 * rate, (mib - 1) << 20).is_some(), "{error}");
            }
        }
    }

    #[test]
    fn what_cannot_work_says_why_and_is_not_recommended() {
        let size = Size { limit: 100, window: DAY, memory: Some(64 << 20), ..SIZE };
        let rows = rows(&size).expect("the limit is valid");
        assert!(recommended(&size, &rows).is_none());
        let fault = row(&rows, "gcra sketch", "token_bucket").fault.as_deref().unwrap_or_default();
        assert!(
            fault.starts_with("a sketch of 64MiB is large enough for 4849 units a second, not 1000000; "),
            "{fault}"
        );
        assert!(advice(&size, None).contains("Nothing fits into --memory"));
    }

    #[test]
    fn a_recommended_sketch_is_a_valid_rule_and_fits_the_memory() {
        // Exact states of all keys do not fit, because the window is long.
        let size = Size { limit: 1_000, window: Duration::from_secs(60), memory: Some(1_500_000), ..SIZE };
        let rows = rows(&size).expect("the limit is valid");
        let best = recommended(&size, &rows).expect("something fits");
        let text = advice(&size, Some(best));
        let memory = text.split("sketch_memory: ").nth(1).and_then(|rest| rest.lines().next());
        let bytes = memory.map(spillgate::units::parse_bytes);
        assert_eq!(bytes, Some(Ok(1_500_000 / 1_024 * 1_024)));
        assert_eq!((whole_mib(1_536 << 20), whole_mib((3 << 30) - 5)), ("1536MiB".to_owned(), "3GiB".to_owned()));
    }

    #[test]
    fn the_smallest_representation_is_recommended_if_none_is_small() {
        let size = Size { limit: 100, window: DAY, ..SIZE };
        let rows = rows(&size).expect("the limit is valid");
        let best = recommended(&size, &rows).expect("something works");
        assert_eq!((best.representation, best.bytes >> 30), ("gcra sketch", 12));
        assert!(advice(&size, Some(best)).contains("keys that come once"));
    }

    #[test]
    fn a_limit_that_regions_share_has_a_state_and_a_hash_in_each_region() {
        let size = Size { window: Duration::from_secs(60), rate: 1_000, regions: Some(3), ..SIZE };
        let rows = rows(&size).expect("the limit is valid");
        let bytes = |algorithm| row(&rows, "redis, each region", algorithm).bytes;
        // A unit of the bucket lasts 6 s, and what is told of it two spans of a minute and 10 s. A window is told for a
        // window, a second and 10 s.
        assert_eq!(bytes("token_bucket"), 1_000 * (6 * 177 + 130 * 200));
        assert_eq!(bytes("fixed_window"), 1_000 * (60 * 177 + 71 * 200));
        assert_eq!(bytes("sliding_window_counter"), 1_000 * (120 * 177 + 130 * 200));
        assert_eq!(rows.len(), 3);
        assert!(advice(&size, recommended(&size, &rows)).contains("across_regions: shared"));
        let few = Size { keys: 10, ..size };
        // A key that is used all the time has a hash for each span of which something can still be told.
        assert!(super::rows(&few).expect("valid").iter().all(|row| row.bytes <= 10 * (177 + 200 * 130 / 60 + 1)));
        let few = super::rows(&few).expect("valid");
        assert!(row(&few, "redis, each region", "token_bucket").bytes > 10 * 2 * 200, "two hashes and more");
    }

    #[test]
    fn few_keys_cannot_use_a_high_rate_and_huge_numbers_do_not_overflow() {
        let one = rows(&Size { rate: u64::MAX, keys: 1, window: DAY, ..SIZE }).expect("the limit is valid");
        assert!(one.iter().all(|row| row.fault.is_none() && row.bytes <= 2 << 20));
        let size = Size { rate: u64::MAX, keys: u64::MAX, window: DAY, memory: Some(128 << 10), ..SIZE };
        let all = rows(&size).expect("the limit is valid");
        let fault = row(&all, "gcra sketch", "token_bucket").fault.as_deref().unwrap_or_default();
        assert!(fault.ends_with("it would need more than 64GiB, the maximum"), "{fault}");
    }
}
