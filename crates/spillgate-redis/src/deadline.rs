//! Deadlines that are exact: a request without a reply fails at its deadline, not at the next tick of a timer.
//!
//! The runtime's timers count whole milliseconds and may be up to two milliseconds late. They suit the many waits that
//! end early, which most requests are. A request therefore waits on such a timer until shortly before its deadline. The
//! few requests that still wait then are woken by a thread that sleeps until the exact time.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

/// A timer may be late by this much: its deadline is rounded up to a tick, and so is the sleep until then.
const TIMER_LATE: Duration = Duration::from_millis(2);
/// This part of a request's time is for waking the caller; less for a short timeout.
const FOR_THE_ANSWER: Duration = Duration::from_micros(250);
const PART_FOR_THE_ANSWER: u32 = 16;

/// The deadline of a request that must be answered within `timeout`.
pub(crate) fn after(timeout: Duration) -> Instant {
    Instant::now() + (timeout - FOR_THE_ANSWER.min(timeout / PART_FOR_THE_ANSWER))
}

/// The output of the future, or `None` once the deadline has come.
pub(crate) async fn wait_until<T>(deadline: Instant, asked: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(asked);
    let early = deadline.checked_sub(TIMER_LATE).unwrap_or(deadline);
    if let Ok(answer) = timeout_at(early, &mut asked).await {
        return Some(answer);
    }
    tokio::select! {
        biased;
        answer = asked => Some(answer),
        () = instant(deadline) => None,
    }
}

async fn instant(at: Instant) {
    match &*ALARMS {
        Some(alarms) => Alarm { alarms, at, number: None }.await,
        // The thread could not be started. A late timer is better than none.
        None => sleep_until(at).await,
    }
}

/// The tasks that the thread has to wake. The thread lives as long as the process.
static ALARMS: LazyLock<Option<Arc<Alarms>>> = LazyLock::new(|| {
    let alarms = Arc::new(Alarms::default());
    let rings = Arc::clone(&alarms);
    let started = thread::Builder::new().name("store-deadlines".into()).spawn(move || rings.ring());
    started.is_ok().then_some(alarms)
});

#[derive(Default)]
struct Alarms {
    /// Ordered by time, and by number where times are equal. There is at most one for each request that waits.
    set: Mutex<BTreeMap<(Instant, u64), Waker>>,
    numbers: AtomicU64,
    /// Wakes the thread because there is an earlier alarm.
    earlier: Condvar,
}

impl Alarms {
    fn set(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), Waker>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

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

/// Ready once the thread has removed it from the set.
struct Alarm<'a> {
    alarms: &'a Alarms,
    at: Instant,
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

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.alarms.set().remove(&(self.at, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use tokio::time::{Instant, advance, sleep};

    use super::{after, wait_until};

    /// The paused clock advances only when a timer waits for it.
    #[tokio::test(start_paused = true)]
    async fn a_future_without_an_output_ends_at_its_deadline_and_not_at_the_next_tick() {
        for step in 0..40 {
            advance(Duration::from_micros(37)).await;
            let deadline = Instant::now() + Duration::from_micros(100 + 333 * step);
            assert_eq!(wait_until(deadline, pending::<()>()).await, None);
            assert!(Instant::now() <= deadline, "{step}: {:?} late", Instant::now() - deadline);
        }
    }

    #[tokio::test]
    async fn until_then_an_answer_is_waited_for() {
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(7);
        assert_eq!(wait_until(deadline, pending::<()>()).await, None);
        assert!(Instant::now() >= deadline, "it was given up too early");
        // The deadline has long passed, but a value that is ready is still returned.
        assert_eq!(wait_until(begun, ready(7)).await, Some(7));
        assert_eq!(wait_until(begun, pending::<()>()).await, None);
        let hour = Instant::now() + Duration::from_secs(3600);
        assert_eq!(wait_until(hour, sleep(Duration::from_millis(1))).await, Some(()));
    }

    #[tokio::test]
    async fn each_of_many_is_woken() {
        let now = Instant::now();
        let waits: Vec<_> = (0..1000_u64)
            .rev()
            .map(|i| tokio::spawn(wait_until(now + Duration::from_micros(i / 2 * 2), pending::<()>())))
            .collect();
        for wait in waits {
            assert_eq!(wait.await.expect("no panic"), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn some_of_the_time_is_for_the_answer() {
        let given = |timeout| after(timeout) - Instant::now();
        assert_eq!(given(Duration::from_millis(10)), Duration::from_micros(9750));
        assert_eq!(given(Duration::from_micros(1600)), Duration::from_micros(1500));
        assert_eq!(given(Duration::ZERO), Duration::ZERO);
    }
}
