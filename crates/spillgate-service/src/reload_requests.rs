//! Requests for reloads of the rules, and the results of these reloads.
//!
//! Signals and operators request reloads. One thread reloads, so there is one reload at a time. All requests that come
//! before a reload begins get the result of this reload. A request that comes later needs another reload, because the
//! files may have changed after they were read.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::oneshot;

use super::reloads::{LINES_MAX, Reload, cut};

/// At most this many bytes of each text of an error are kept. An excerpt has three lines of a file.
const TEXT_BYTES_MAX: usize = 2_000;

/// Those who wait for the next reload. Each caller of [`ReloadRequests::reload`] bounds how many of its calls run.
type Waiting = Vec<oneshot::Sender<Arc<Reloaded>>>;

/// Requests reloads. A clone of this value is cheap, and requests the same reloads.
///
/// The default value belongs to no thread: nothing reloads.
#[derive(Clone, Debug)]
pub struct ReloadRequests {
    waiting: Arc<Mutex<Waiting>>,
    wake: SyncSender<()>,
}

/// The requests for reloads, for the thread that reloads.
#[derive(Debug)]
pub struct ReloadQueue {
    waiting: Arc<Mutex<Waiting>>,
    woken: Receiver<()>,
}

/// Those who get the result of one reload.
#[derive(Debug)]
pub struct Waiters(Waiting);

/// A reload with its errors as data. The history of the reloads has them only as lines.
#[derive(Debug)]
pub struct Reloaded {
    pub reload: Arc<Reload>,
    pub errors: ReloadErrors,
}

/// Why a reload failed: a list with a bounded size.
#[derive(Debug, Default, Serialize)]
pub struct ReloadErrors {
    errors: Vec<ReloadError>,
    #[serde(rename = "errors_left_out")]
    left_out: usize,
}

/// One error of a reload.
#[derive(Debug, Serialize)]
pub struct ReloadError {
    pub message: String,
    /// The place of the error. `None` if the error has no place in a file.
    pub file: Option<String>,
    pub line: Option<u32>,
    pub column: Option<u32>,
    /// The line of the file with the lines around it. `None` if no line can be shown.
    pub excerpt: Option<String>,
    pub help: String,
}

/// Makes the two ends of the requests.
#[must_use]
pub fn reload_requests() -> (ReloadRequests, ReloadQueue) {
    // If a reload waits for its start, no further reload is needed.
    let (wake, woken) = sync_channel(1);
    let waiting = Arc::<Mutex<Waiting>>::default();
    (ReloadRequests { waiting: Arc::clone(&waiting), wake }, ReloadQueue { waiting, woken })
}

impl Default for ReloadRequests {
    fn default() -> ReloadRequests {
        reload_requests().0
    }
}

impl ReloadRequests {
    /// Requests a reload and returns at once.
    pub fn request(&self) {
        let _ = self.wake.try_send(());
    }

    /// Requests a reload and waits for its result. Returns `None` if no thread reloads.
    pub async fn reload(&self) -> Option<Arc<Reloaded>> {
        let result = {
            let mut waiting = self.waiting.lock();
            if matches!(self.wake.try_send(()), Err(TrySendError::Disconnected(()))) {
                return None;
            }
            let (send, result) = oneshot::channel();
            waiting.push(send);
            result
        };
        result.await.ok()
    }
}

impl ReloadQueue {
    /// Waits for the next request. Returns `None` if there can be no further request.
    #[must_use]
    pub fn next(&self) -> Option<Waiters> {
        self.woken.recv().ok()?;
        let mut waiting = self.waiting.lock();
        // A request that has come since then is in the list, so it needs no reload of its own.
        let _ = self.woken.try_recv();
        Some(Waiters(std::mem::take(&mut waiting)))
    }
}

impl Waiters {
    /// Gives everybody the result. It does not matter if somebody has gone away.
    pub fn answer(self, reloaded: &Arc<Reloaded>) {
        for waiter in self.0 {
            drop(waiter.send(Arc::clone(reloaded)));
        }
    }
}

impl ReloadErrors {
    /// Adds an error. If the list is full, the error is only counted.
    pub fn add(&mut self, mut error: ReloadError) {
        if self.errors.len() == LINES_MAX {
            self.left_out += 1;
            return;
        }
        let texts = [Some(&mut error.message), Some(&mut error.help), error.file.as_mut(), error.excerpt.as_mut()];
        texts.into_iter().flatten().for_each(|text| cut(text, TEXT_BYTES_MAX));
        self.errors.push(error);
    }

    /// Returns the number of all errors.
    #[must_use]
    pub fn count(&self) -> usize {
        self.errors.len() + self.left_out
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::super::reloads::{Lines, Outcome};
    use super::*;

    fn reloaded(at_ms: u64) -> Arc<Reloaded> {
        let reload = Reload {
            at_ms,
            outcome: Outcome::Failed,
            loaded: None,
            errors: Lines::default(),
            changes: Lines::default(),
            notes: Lines::default(),
        };
        Arc::new(Reloaded { reload: Arc::new(reload), errors: ReloadErrors::default() })
    }

    #[test]
    fn requests_before_a_reload_share_it_and_later_ones_get_the_next() {
        let (requests, queue) = reload_requests();
        let mut context = Context::from_waker(Waker::noop());
        let (mut first, mut second, mut third) =
            (pin!(requests.reload()), pin!(requests.reload()), pin!(requests.reload()));
        requests.request();
        assert!(first.as_mut().poll(&mut context).is_pending() && second.as_mut().poll(&mut context).is_pending());
        let waiters = queue.next().expect("a reload is requested");
        assert!(queue.woken.try_recv().is_err(), "three requests need one reload");
        assert!(third.as_mut().poll(&mut context).is_pending());
        waiters.answer(&reloaded(1));
        let at = |poll| match poll {
            Poll::Ready(Some(reloaded)) => Some(Arc::<Reloaded>::clone(&reloaded).reload.at_ms),
            _ => None,
        };
        assert_eq!(at(first.poll(&mut context)), Some(1));
        assert_eq!(at(second.poll(&mut context)), Some(1));
        assert_eq!(at(third.as_mut().poll(&mut context)), None, "the files may have changed since the first reload");
        queue.next().expect("a reload is requested").answer(&reloaded(2));
        assert_eq!(at(third.poll(&mut context)), Some(2));
    }

    #[test]
    fn nobody_waits_for_a_thread_that_does_not_exist() {
        let mut context = Context::from_waker(Waker::noop());
        let requests = ReloadRequests::default();
        requests.request();
        assert!(matches!(pin!(requests.reload()).poll(&mut context), Poll::Ready(None)));
        let (requests, queue) = reload_requests();
        let mut waits = pin!(requests.reload());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(queue.next());
        assert!(matches!(waits.poll(&mut context), Poll::Ready(None)));
    }

    #[test]
    fn the_errors_are_bounded() {
        let mut errors = ReloadErrors::default();
        for _ in 0..150 {
            let text = "é".repeat(5_000);
            errors.add(ReloadError {
                message: text.clone(),
                file: Some(text.clone()),
                line: Some(1),
                column: Some(1),
                excerpt: Some(text.clone()),
                help: text,
            });
        }
        assert_eq!((errors.errors.len(), errors.left_out, errors.count()), (100, 50, 150));
        assert_eq!(errors.errors[0].excerpt, Some(format!("{}...", "é".repeat(1_000))));
    }
}
