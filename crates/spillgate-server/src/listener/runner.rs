//! Runs futures that usually complete at the first poll.
//!
//! Most calls are answered without waiting. Such a call needs no task of its own, which saves an allocation and
//! scheduling.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::task::JoinHandle;

/// Runs futures one after another in one allocation. Only a future that has to wait becomes a task.
pub(super) struct Runner<F> {
    slot: Pin<Box<Option<F>>>,
    /// What the future in `slot` wakes, and its waker.
    alarm: (Arc<Alarm>, Waker),
    waiting: Arc<AtomicUsize>,
}

/// Wakes the task of a future. The future has it before it is a task, so the first poll of the task has nothing to do
/// for the future.
#[derive(Default)]
struct Alarm {
    task: AtomicWaker,
    /// Whether the future was woken after its last poll began.
    is_woken: AtomicBool,
}

impl Alarm {
    /// Allocates. Only a future that waits uses up an alarm, and its next poll would cost more than this allocation.
    fn with_waker() -> (Arc<Alarm>, Waker) {
        let alarm = Arc::<Alarm>::default();
        (Arc::clone(&alarm), Waker::from(alarm))
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Alarm>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Alarm>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// Counts one waiting future until this value is dropped.
struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<F> Runner<F>
where
    F: Future<Output = ()> + Send + 'static,
{
    pub(super) fn new() -> Runner<F> {
        Runner { slot: Box::pin(None), alarm: Alarm::with_waker(), waiting: Arc::default() }
    }

    /// Returns the number of futures that wait as tasks.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Runs `future` until it completes or has to wait. A future that has to wait becomes a task and keeps the
    /// allocation. The task polls the future only after it was woken.
    pub(super) fn run(&mut self, future: F) -> Option<JoinHandle<()>> {
        self.slot.set(Some(future));
        let waits = poll(&mut self.slot, &mut Context::from_waker(&self.alarm.1)).is_pending();
        waits.then(|| {
            let mut slot = mem::replace(&mut self.slot, Box::pin(None));
            let (alarm, waker) = mem::replace(&mut self.alarm, Alarm::with_waker());
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let waiting = Waiting(Arc::clone(&self.waiting));
            tokio::spawn(async move {
                poll_fn(|cx| {
                    // The task is registered first, so a wake-up after the check is not lost.
                    alarm.task.register(cx.waker());
                    if !alarm.is_woken.swap(false, Ordering::Acquire) {
                        return Poll::Pending;
                    }
                    poll(&mut slot, &mut Context::from_waker(&waker))
                })
                .await;
                drop(waiting);
            })
        })
    }
}

/// Polls the future, and drops it as soon as it is done.
fn poll<F: Future<Output = ()>>(slot: &mut Pin<Box<Option<F>>>, cx: &mut Context<'_>) -> Poll<()> {
    let polled = slot.as_mut().as_pin_mut().map_or(Poll::Ready(()), |future| future.poll(cx));
    if polled.is_ready() {
        slot.set(None);
    }
    polled
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_future_that_waits_holds_up_no_other_and_is_done_in_the_end() {
        let (done, gates) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(0)));
        let mut runner = Runner::new();
        let mut tasks = Vec::new();
        for number in 0..6 {
            let (done, gates) = (Arc::clone(&done), Arc::clone(&gates));
            tasks.extend(runner.run(async move {
                if number % 3 == 0 {
                    drop(gates.acquire().await);
                }
                done.lock().push(number);
            }));
        }
        assert_eq!(*done.lock(), [1, 2, 4, 5], "these futures were done before run() returned");
        assert_eq!((tasks.len(), runner.waiting()), (2, 2));
        gates.add_permits(1);
        for task in tasks {
            task.await.expect("the task does not panic");
        }
        assert_eq!((done.lock().len(), runner.waiting()), (6, 0));
    }

    #[tokio::test]
    async fn a_future_that_is_done_keeps_no_memory() {
        let held = Arc::new(());
        let mut runner = Runner::new();
        for waits in [false, true] {
            let held = Arc::clone(&held);
            let task = runner.run(async move {
                if waits {
                    tokio::task::yield_now().await;
                }
                drop(held);
            });
            if let Some(task) = task {
                task.await.expect("the task does not panic");
            }
        }
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
