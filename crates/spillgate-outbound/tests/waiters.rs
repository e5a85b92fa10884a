//! 10,000 callers wait in one queue: how much memory each of them takes, and whether deadlines are kept.
//!
//! The tests in this file are a program of their own, so that no other test changes the memory of the process.

#![allow(clippy::print_stdout, reason = "the tests print what they have measured")]

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_limiter::{Limiter, MemoryOptions, MemoryStore, Quota, TokioClock};
use spillgate_outbound::pace::{PaceError, Pacer};
use spillgate_testkit::Random;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);
const FAST: Quota = Quota::leaky_bucket(1_000, SECOND).queue(100_000).constant();
const CALLERS: usize = 10_000;

fn pacer() -> Pacer<MemoryStore, TokioClock> {
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), TokioClock::start());
    Pacer::new(limiter, FAST)
}

/// Returns the resident memory of this process.
fn resident_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok().map(|kib| kib * 1024)
}

#[tokio::test(start_paused = true)]
async fn a_waiter_takes_little_memory() {
    let pacer = pacer();
    let future = pacer.acquire("api");
    println!("the future of a caller has {} bytes", size_of_val(&future));
    drop(future);
    let many = 10 * CALLERS;
    let before = resident_bytes();
    let waiting: Vec<_> = (0..many).map(|_| tokio::spawn(pacer.acquire("api"))).collect();
    while pacer.waiting() < many - 1 {
        tokio::task::yield_now().await;
    }
    let Some((before, after)) = before.zip(resident_bytes()) else { return println!("this system does not tell") };
    let bytes = after.saturating_sub(before) / many;
    println!("{bytes} bytes a waiter, with its task, when {many} callers wait");
    assert!(bytes < 4_096, "{bytes} bytes a waiter");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn deadlines_are_met_among_ten_thousand_callers() {
    let (pacer, mut random) = (pacer(), Random(11));
    let (went, late) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
    let start = Instant::now();
    let mut callers = Vec::new();
    for number in 0..CALLERS {
        let longest = random.one_in(3).then(|| Duration::from_millis(random.below(15_000)));
        let turn = pacer.acquire_units("api", 1, longest);
        let (went, late) = (Arc::clone(&went), Arc::clone(&late));
        callers.push(tokio::spawn(async move {
            let asked = Instant::now();
            let answer = turn.await;
            let waited = asked.elapsed();
            // The timers of tokio have a resolution of one millisecond.
            let in_time = longest.is_none_or(|longest| waited <= longest + Duration::from_millis(1));
            assert!(in_time, "caller {number} waited {waited:?} of {longest:?}: {answer:?}");
            match answer {
                Ok(()) => went.lock().push(number),
                Err(PaceError::TooLate { .. }) => *late.lock() += 1,
                Err(error) => panic!("caller {number}: {error}"),
            }
        }));
        if number % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    for caller in callers {
        caller.await.expect("no caller panics");
    }
    let (went, late) = (went.lock(), *late.lock());
    assert!(went.is_sorted(), "first in, first out");
    assert_eq!(went.len() + late, CALLERS);
    let turns = start.elapsed().as_millis() as u64 + 1;
    println!("{} callers went, {late} were too late, {} turns were lost", went.len(), pacer.lost());
    assert!(turns <= went.len() as u64 + pacer.lost() + 10, "{turns} turns");
    assert!(late > 500 && went.len() > 5_000, "{late} late");
}
