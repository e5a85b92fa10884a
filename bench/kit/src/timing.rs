//! Measures wall time and CPU time of threads that start together.
//!
//! If wall time and CPU time differ by much, the machine was busy with other programs.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of this thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The time of one decision while several threads decide at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Wall time * number of threads / number of decisions of all threads.
    pub wall_ns: f64,
    /// CPU time of all threads / number of decisions of all threads.
    pub cpu_ns: f64,
}

/// Runs `work` in each thread, with the number of the thread. `work` returns its number of decisions, and the time is
/// divided by the sum of these numbers.
pub fn together(threads: usize, work: impl Fn(usize) -> usize + Sync) -> Cost {
    let barrier = Barrier::new(threads);
    let run = |thread: usize| {
        barrier.wait();
        let (start, cpu_start) = (Instant::now(), thread_cpu_ns());
        let decisions = work(thread);
        (start, Instant::now(), thread_cpu_ns() - cpu_start, decisions)
    };
    let run = &run;
    let results: Vec<_> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        // A thread that panics prints its message and aborts the whole program, so no result is missing here.
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    let start = results.iter().map(|result| result.0).min();
    let end = results.iter().map(|result| result.1).max();
    let wall = start.zip(end).map_or(f64::NAN, |(start, end)| end.duration_since(start).as_nanos() as f64);
    let cpu: u64 = results.iter().map(|result| result.2).sum();
    let decisions: usize = results.iter().map(|result| result.3).sum();
    Cost { wall_ns: wall * threads as f64 / decisions as f64, cpu_ns: cpu as f64 / decisions as f64 }
}

#[cfg(test)]
mod tests {
    use super::together;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_thread_runs_once_and_costs_are_shared() {
        let mask = AtomicUsize::new(0);
        let cost = together(3, |thread| {
            mask.fetch_add(1 << (8 * thread), Ordering::Relaxed);
            (0..100_000).map(std::hint::black_box).count()
        });
        assert_eq!(mask.into_inner(), 0x01_01_01);
        assert!(cost.cpu_ns > 0.0 && cost.wall_ns > 0.0);
    }
}
