//! Runs futures that are usually done at once.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tokio::task::JoinHandle;

/// One place where future after future runs, so that none of them is allocated for.
pub(super) struct Runner<F> {
    place: Pin<Box<Option<F>>>,
    waiting: Arc<AtomicUsize>,
}

/// One future counted as waiting.
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
        Runner { place: Box::pin(None), waiting: Arc::default() }
    }

    /// How many futures have to wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Runs `future` as far as it gets without waiting. What has to wait goes on as a task, whose first poll
    /// leaves its own waker, and takes the place along.
    pub(super) fn run(&mut self, future: F) -> Option<JoinHandle<()>> {
        self.place.set(Some(future));
        let waits = poll(&mut self.place, &mut Context::from_waker(Waker::noop())).is_pending();
        waits.then(|| {
            let mut place = mem::replace(&mut self.place, Box::pin(None));
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let waiting = Waiting(Arc::clone(&self.waiting));
            tokio::spawn(async move {
                poll_fn(|cx| poll(&mut place, cx)).await;
                drop(waiting);
            })
        })
    }
}

/// A future that is done is dropped at once.
fn poll<F: Future<Output = ()>>(place: &mut Pin<Box<Option<F>>>, cx: &mut Context<'_>) -> Poll<()> {
    let polled = place.as_mut().as_pin_mut().map_or(Poll::Ready(()), |future| future.poll(cx));
    if polled.is_ready() {
        place.set(None);
    }
    polled
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn one_that_waits_holds_no_other_up_and_is_done_in_the_end() {
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
        assert_eq!(*done.lock(), [1, 2, 4, 5], "these were done before run() returned");
        assert_eq!((tasks.len(), runner.waiting()), (2, 2));
        gates.add_permits(1);
        for task in tasks {
            task.await.expect("it does not panic");
        }
        assert_eq!((done.lock().len(), runner.waiting()), (6, 0));
    }

    #[tokio::test]
    async fn what_is_done_holds_nothing() {
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
                task.await.expect("it does not panic");
            }
        }
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
