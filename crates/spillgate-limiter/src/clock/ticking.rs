//! A clock that costs almost nothing to read.
//!
//! On today's processors, reading an exact clock takes longer than a decision. A program that decides in a hot loop can
//! let one thread read the exact clock for all others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::Duration;
use std::{fmt, io};

use spillgate_core::Time;

use super::{Clock, SystemClock};

/// A clock with a thread of its own, which stores the time of a [`SystemClock`] in each [tick](TickingClock::TICK).
///
/// To read this clock, a program loads one number from memory. The time that it reads is never early, and is late by
/// the time since the thread last ran: usually one or two ticks, and more if the thread has to wait for a processor.
///
/// Let `f(s)` be the most units that an algorithm admits in a time `s`. This bound holds for the times that this clock
/// shows. If the clock is late by at most `d`, at most `f(s + d)` units are admitted in any span `s` of real time. A
/// wait that would end between two ticks ends at the next tick.
///
/// ```
/// use spillgate::{Limiter, MemoryOptions, MemoryStore, Quota, TickingClock};
///
/// const SEARCH: Quota = Quota::per_second(100).constant();
///
/// let store = MemoryStore::new(MemoryOptions::default());
/// let limiter = Limiter::with_clock(store, TickingClock::start()?);
/// assert!(limiter.take_now(&SEARCH, "ann", 1).allowed);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// All clones of a clock use the same thread. The thread ends after the last clone is dropped. If a reading of the
/// exact clock panics, Rust prints the panic, and the thread reads the clock again in the next tick.
#[derive(Clone)]
pub struct TickingClock(Arc<Shared>);

struct Shared {
    now_ns: AtomicU64,
    /// The thread that stores the time.
    ticker: Thread,
}

impl TickingClock {
    /// The thread sleeps for this long between two readings of the exact clock. The operating system may let it sleep a
    /// little longer.
    pub const TICK: Duration = Duration::from_micros(50);

    /// Starts a clock and its thread.
    ///
    /// # Errors
    /// The operating system starts no more threads.
    pub fn start() -> io::Result<TickingClock> {
        TickingClock::follow(SystemClock::start())
    }

    /// Starts a clock and its thread. The thread stores the time of `clock`, and not that of a [`SystemClock`].
    ///
    /// # Errors
    /// The operating system starts no more threads.
    pub fn follow(clock: impl Clock + 'static) -> io::Result<TickingClock> {
        let first = clock.now();
        // `Shared` has the handle of the thread, so the thread has to start before `Shared` exists. The thread gets its
        // `Shared` through this channel.
        let (send, receive) = std::sync::mpsc::channel::<Weak<Shared>>();
        let ticker = thread::Builder::new().name("spillgate-clock".into()).spawn(move || {
            if let Ok(shared) = receive.recv() {
                tick(&clock, &shared);
            }
        })?;
        let shared = Arc::new(Shared { now_ns: AtomicU64::new(first.as_nanos()), ticker: ticker.thread().clone() });
        // The send cannot fail, because the thread keeps the receiver until it has received `Shared`.
        let _ = send.send(Arc::downgrade(&shared));
        Ok(TickingClock(shared))
    }
}

/// Stores the time in each tick, until no clock is left.
fn tick(clock: &impl Clock, shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        // A reading can call a function of the program, such as that of `SystemClock::on_step`. If a panic of that
        // function ended this thread, the time would stand still, and the limits would refuse all requests sooner or
        // later.
        if let Ok(now) = catch_unwind(AssertUnwindSafe(|| clock.now())) {
            shared.now_ns.store(now.as_nanos(), Ordering::Relaxed);
        }
        drop(shared);
        thread::park_timeout(TickingClock::TICK);
    }
}

impl Clock for TickingClock {
    #[inline]
    fn now(&self) -> Time {
        Time::from_nanos(self.0.now_ns.load(Ordering::Relaxed))
    }
}

impl Drop for Shared {
    /// Wakes the thread, so that it ends at once.
    fn drop(&mut self) {
        self.ticker.unpark();
    }
}

impl fmt::Debug for TickingClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TickingClock").field(&self.now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ManualClock;

    #[test]
    fn a_ticking_clock_follows_and_is_never_early() {
        let exact = ManualClock::at(Time::from_nanos(5));
        let ticking = TickingClock::follow(exact.clone()).expect("a thread starts");
        assert_eq!(ticking.now(), Time::from_nanos(5));
        for _ in 0..20 {
            exact.advance(Duration::from_secs(1));
            let target = exact.now();
            while ticking.now() < target {
                thread::yield_now();
            }
            assert_eq!(ticking.now(), target);
        }
    }

    #[test]
    fn a_ticking_clock_goes_on_after_a_panic_of_the_exact_clock() {
        struct PanicsAt(u64, AtomicU64);
        impl Clock for PanicsAt {
            fn now(&self) -> Time {
                let reading = self.1.fetch_add(1, Ordering::Relaxed);
                assert_ne!(reading, self.0, "this panic is a part of the test");
                Time::from_nanos(reading)
            }
        }
        let clock = TickingClock::follow(PanicsAt(3, AtomicU64::new(0))).expect("a thread starts");
        while clock.now() < Time::from_nanos(5) {
            thread::yield_now();
        }
    }

    #[test]
    fn the_thread_ends_with_the_last_clone() {
        let exact = Arc::new(());
        struct Counted(Arc<()>);
        impl Clock for Counted {
            fn now(&self) -> Time {
                let _ = &self.0;
                Time::EPOCH
            }
        }
        let clock = TickingClock::follow(Counted(Arc::clone(&exact))).expect("a thread starts");
        let clone = clock.clone();
        drop(clock);
        assert_eq!(clone.now(), Time::EPOCH);
        assert_eq!(Arc::strong_count(&exact), 2, "the thread has the exact clock");
        drop(clone);
        while Arc::strong_count(&exact) > 1 {
            thread::yield_now();
        }
    }
}
