//! Computes the numbers in two tables of the book, and compares them with the tables.

use std::time::Duration;

use spillgate::{Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, QuotaBuilder, Time};

const ALGORITHMS: &str = include_str!("../../../docs/src/how-to/algorithms.md");
const FROM_GOVERNOR: &str = include_str!("../../../docs/src/how-to/from-governor.md");
const MINUTE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(100);
/// The number of steps in a minute. A step at the end of a minute belongs to the next minute.
const STEPS: usize = 600;

/// For five minutes, a client takes as many units as it gets at every step. Returns how many it gets at each step.
fn taken(quota: &Quota, start: Duration) -> Vec<u64> {
    let clock = ManualClock::at(Time::EPOCH.after(start));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock);
    let take = |_| {
        let mut units = 0;
        while limiter.take_now(quota, "client", 1).allowed {
            units += 1;
        }
        limiter.clock().advance(STEP);
        units
    };
    (0..5 * STEPS).map(take).collect()
}

/// Checks the row of a limit: how many units are admitted at once, and how many in any minute.
fn check(row: &str, quota: QuotaBuilder) {
    let quota = quota.build().expect("the quota is valid");
    // The first client starts at the start of a window, and the second client 100 ms before the end of a window.
    let clients = [Duration::ZERO, MINUTE - STEP].map(|start| taken(&quota, start));
    let at_once = clients.iter().flatten().max().expect("there are steps");
    let minutes = clients.iter().flat_map(|taken| taken.windows(STEPS)).map(|minute| minute.iter().sum::<u64>());
    let line = format!("| {row} | {at_once} | {} |", minutes.max().expect("there are minutes"));
    assert!(ALGORITHMS.contains(&line), "the page has no row that begins with: {line}");
}

#[test]
fn the_numbers_of_the_table_are_counted() {
    check("`token_bucket`", Quota::token_bucket(100, MINUTE));
    check("`token_bucket`, burst 10", Quota::token_bucket(100, MINUTE).burst(10));
    check("`fixed_window`", Quota::fixed_window(100, MINUTE));
    check("`sliding_window_log`", Quota::sliding_window_log(100, MINUTE));
    check("`sliding_window_counter`", Quota::sliding_window_counter(100, MINUTE));
    // With `take`, a caller does not wait. So this row counts the units that can leave the queue at once.
    check("`leaky_bucket`", Quota::leaky_bucket(100, MINUTE));
}

/// Returns the number of lines of each block of Rust code. Empty lines and hidden lines do not count.
fn code_lines(section: &str) -> Vec<usize> {
    let blocks = section.split("```rust\n").skip(1).map(|after| after.split("```").next().unwrap_or(after));
    let is_shown = |line: &&str| !line.trim().is_empty() && *line != "#" && !line.starts_with("# ");
    blocks.map(|block| block.lines().filter(is_shown).count()).collect()
}

#[test]
fn the_lines_of_each_task_are_counted() {
    let tasks: Vec<(&str, Vec<usize>)> = FROM_GOVERNOR
        .split("\n## ")
        .skip(1)
        .map(|section| (section.lines().next().unwrap_or_default(), code_lines(section)))
        .collect();
    assert_eq!(tasks.len(), 5);
    for (task, lines) in tasks {
        let [theirs, ours] = lines[..] else {
            panic!("{task} must have one block with governor, and one with spillgate")
        };
        let row = format!("| {task} | {theirs} | {ours} |");
        assert!(FROM_GOVERNOR.contains(&row), "the page lacks this row: {row}");
    }
}
