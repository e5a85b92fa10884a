//! Deadlines that are exact: a request without a reply fails at its deadline, not at the next tick of a timer.
//!
//! The runtime's timers count whole milliseconds, and are often one or two milliseconds late. This delay does not matter
//! for a request that gets its reply early, as most requests do. So a request first waits on such a timer, until 2 ms
//! before its deadline. If there is no reply by then, a thread that sleeps until the exact deadline wakes the request.
//!
//! With a timeout of 10 ms, the time of a request is divided like this:
//!
//! ```text
//! 0 ms                                  7.75 ms         9.75 ms     10 ms
//! | a timer of the runtime waits         | the thread waits | the caller is woken |
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

/// A timer may be late by this much, because its deadline is rounded up to a tick, and the sleep until that tick is
/// rounded up too.
const TIMER_LATE: Duration = Duration::from_millis(2);
/// This part of a request's timeout is reserved for waking the caller. A short timeout reserves less.
const FOR_WAKING: Duration = Duration::from_micros(250);
/// A timeout below 4 ms reserves a sixteenth of itself.
const PART_FOR_WAKING: u32 = 16;

/// Returns the deadline of a request that must be answered within `timeout`. The deadline comes a little before the
/// timeout is over, because the caller has to be woken in time.
pub(crate) fn after(timeout: Duration) -> Instant {
    Instant::now() + (timeout - FOR_WAKING.min(timeout / PART_FOR_WAKING))
}

/// Returns the output of the future, or `None` once the deadline has come.
///
/// The future is polled before the deadline is checked. So an output that is ready is returned even if the deadline has
/// passed.
///
/// The caller pins the future. If this function took the future by value, it would store the future twice: as an
/// argument, and pinned.
pub(crate) async fn wait_until<T>(deadline: Instant, mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let early = deadline.checked_sub(TIMER_LATE).unwrap_or(deadline);
    if let Ok(output) = timeout_at(early, &mut future).await {
        return Some(output);
    }
    tokio::select! {
        biased;
        output = future => Some(output),
        () = instant(deadline) => None,
    }
}

/// Waits until exactly this time. If the thread could not be started, a timer waits instead, and may be up to 2 ms
/// late.
async fn instant(at: Instant) {
    match &*ALARMS {
        Some(alarms) => Alarm { alarms, at, number: None }.await,
        None => sleep_until(at).await,
    }
}

/// The alarms, and the thread that rings them. `None` if the thread could not be started. The thread lives as long as
/// the process.
static ALARMS: LazyLock<Option<Arc<Alarms>>> = LazyLock::new(|| {
    let alarms = Arc::new(Alarms::default());
    let rings = Arc::clone(&alarms);
    let started = thread::Builder::new().name("store-deadlines".into()).spawn(move || rings.ring());
    started.is_ok().then_some(alarms)
});

/// The alarms of all requests that are close to their deadlines. One thread waits for the earliest alarm.
#[derive(Default)]
struct Alarms {
    /// The alarms in the order of their times. Alarms with equal times are in the order of their numbers. Each request
    /// that waits has at most one alarm.
    set: Mutex<BTreeMap<(Instant, u64), Waker>>,
    /// The number of the next alarm.
    numbers: AtomicU64,
    /// Wakes the thread when an alarm is added that is earlier than all others.
    earlier: Condvar,
}

impl Alarms {
    fn set(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), Waker>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the tasks whose time has come, and sleeps until the next alarm. The thread runs this function forever.
    ///
    /// Tasks are woken without the lock, because a task that is woken may set another alarm.
    fn ring(&self) {
        let mut set = self.set();
        loop {
            let now = Instant::now();
            let later = set.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut *set, later);
            if !due.is_empty() {
                drop(set);
                due.into_values().for_each(Waker::wake);
                set = self.set();
                continue;
            }
            set = match set.first_key_value() {
                None => self.earlier.wait(set).unwrap_or_else(PoisonError::into_inner),
                Some((&(at, _), _)) => {
                    let slept = self.earlier.wait_timeout(set, at.saturating_duration_since(now));
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// A future that is ready once the thread has removed the alarm from the set.
struct Alarm<'a> {
    alarms: &'a Alarms,
    at: Instant,
    /// The number of the alarm in the set. `None` before the first poll, which adds the alarm to the set.
    number: Option<u64>,
}

impl Future for Alarm<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut set = self.alarms.set();
        if let Some(number) = self.number {
            let Some(waker) = set.get_mut(&(self.at, number)) else { return Poll::Ready(()) };
            waker.clone_from(context.waker());
            return Poll::Pending;
        }
        let number = self.alarms.numbers.fetch_add(1, Ordering::Relaxed);
        let is_first = set.first_key_value().is_none_or(|((at, _), _)| self.at < *at);
        set.insert((self.at, number), context.waker().clone());
        drop(set);
        if is_first {
            self.alarms.earlier.notify_one();
        }
        self.number = Some(number);
        Poll::Pending
    }
}

/// Removes the alarm if the request ends before its deadline. So each alarm in the set belongs to a request that still
/// waits.
impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.alarms.set().remove(&(self.at, number));
        }
    }
}

#[cfg(test)]
mod tests;
