//! Runs futures that usually complete at the first poll.
//!
//! Most calls are answered without waiting. Such a call needs no task of its own, which saves an allocation and
//! scheduling.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tokio::task::JoinHandle;

/// Runs futures one after another in one allocation. Only a future that has to wait becomes a task.
pub(super) struct Runner<F> {
    slot: Pin<Box<Option<F>>>,
    waiting: Arc<AtomicUsize>,
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
        Runner { slot: Box::pin(None), waiting: Arc::default() }
    }

    /// Returns the number of futures that wait as tasks.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Runs `future` until it completes or has to wait. A future that has to wait becomes a task and keeps the
    /// allocation. This function polls the future with a waker that wakes nothing. The first poll in the task replaces
    /// this waker with the waker of the task.
    pub(super) fn run(&mut self, future: F) -> Option<JoinHandle<()>> {
        self.slot.set(Some(future));
        let waits = poll(&mut self.slot, &mut Context::from_waker(Waker::noop())).is_pending();
        waits.then(|| {
            let mut slot = mem::replace(&mut self.slot, Box::pin(None));
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let waiting = Waiting(Arc::clone(&self.waiting));
            tokio::spawn(async move {
                poll_fn(|cx| poll(&mut slot, cx)).await;
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
