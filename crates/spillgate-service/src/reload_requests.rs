//! Requests for reloads, and the results of these reloads.
//!
//! Signals and operators request reloads. One thread reloads, so there is one reload at a time. All requests that come
//! before a reload begins get the result of this reload. A request that comes later needs another reload, because the
//! files may have changed after they were read.
//!
//! A change in a watched folder wakes the same thread, but requests no reload: the thread first sees whether a file says
//! something new.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::oneshot;

use super::reloads::{Cause, LINES_MAX, Reload, UnitName, cut};

/// At most this many bytes of each text of an error are kept. An excerpt has three lines of a file.
const TEXT_BYTES_MAX: usize = 2_000;

/// Those who wait for the next reload. Each caller of [`ReloadRequests::reload`] bounds how many of its calls run.
type Waiting = Vec<oneshot::Sender<Arc<Reloaded>>>;

/// What the thread that reloads has to do next.
#[derive(Debug, Default)]
struct Asked {
    waiting: Waiting,
    /// A reload is requested, perhaps by a signal, for which nobody waits.
    reload: bool,
    /// A watched folder has changed.
    changed: bool,
}

/// Requests reloads. A clone of this value is cheap, and requests the same reloads.
///
/// The default value belongs to no thread: nothing reloads.
#[derive(Clone, Debug)]
pub struct ReloadRequests {
    asked: Arc<Mutex<Asked>>,
    wake: SyncSender<()>,
}

/// The requests for reloads, for the thread that reloads.
#[derive(Debug)]
pub struct ReloadQueue {
    asked: Arc<Mutex<Asked>>,
    woken: Receiver<()>,
}

/// Why the thread that reloads has woken up.
#[derive(Debug)]
pub enum Next {
    /// Somebody requests a reload.
    Reload(Waiters),
    /// A watched folder has changed.
    Changed,
    /// The time is over.
    Late,
    /// There can be no further request.
    Over,
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
    /// The unit that could not be taken.
    pub unit: UnitName,
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
    // The channel only wakes the thread. What it has to do is in `asked`, so one place suffices.
    let (wake, woken) = sync_channel(1);
    let asked = Arc::<Mutex<Asked>>::default();
    (ReloadRequests { asked: Arc::clone(&asked), wake }, ReloadQueue { asked, woken })
}

impl Default for ReloadRequests {
    fn default() -> ReloadRequests {
        reload_requests().0
    }
}

impl ReloadRequests {
    /// Requests a reload and returns at once.
    pub fn request(&self) {
        self.asked.lock().reload = true;
        let _ = self.wake.try_send(());
    }

    /// Says that a watched folder has changed, and returns at once.
    pub fn changed(&self) {
        self.asked.lock().changed = true;
        let _ = self.wake.try_send(());
    }

    /// Requests a reload and waits for its result. Returns `None` if no thread reloads.
    pub async fn reload(&self) -> Option<Arc<Reloaded>> {
        let result = {
            let mut asked = self.asked.lock();
            if matches!(self.wake.try_send(()), Err(TrySendError::Disconnected(()))) {
                return None;
            }
            let (send, result) = oneshot::channel();
            asked.waiting.push(send);
            asked.reload = true;
            result
        };
        result.await.ok()
    }
}

impl ReloadQueue {
    /// Waits for something to do, but not longer than `within`. `None` waits without a bound.
    #[must_use]
    pub fn next(&self, within: Option<Duration>) -> Next {
        let woken = match within {
            Some(within) => self.woken.recv_timeout(within),
            None => self.woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        if woken == Err(RecvTimeoutError::Disconnected) {
            return Next::Over;
        }
        let mut asked = self.asked.lock();
        // What has come since then is in `asked`, so it needs no waking of its own.
        let _ = self.woken.try_recv();
        // A reload reads all files, so it also sees the change.
        let Asked { waiting, reload, changed } = std::mem::take(&mut *asked);
        match (reload, changed) {
            (true, _) => Next::Reload(Waiters(waiting)),
            (false, true) => Next::Changed,
            (false, false) => Next::Late,
        }
    }
}

impl Waiters {
    /// Returns why the reload runs. A reload for which nobody waits was requested by a signal.
    #[must_use]
    pub const fn cause(&self) -> Cause {
        if self.0.is_empty() { Cause::Signal } else { Cause::Request }
    }

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
            cause: Cause::Request,
            outcome: Outcome::Failed,
            units: Vec::new(),
            loaded: None,
            errors: Lines::default(),
            changes: Lines::default(),
            notes: Lines::default(),
        };
        Arc::new(Reloaded { reload: Arc::new(reload), errors: ReloadErrors::default() })
    }

    fn waiters(next: Next) -> Waiters {
        match next {
            Next::Reload(waiters) => waiters,
            other => panic!("a reload is requested, not {other:?}"),
        }
    }

    #[test]
    fn a_change_wakes_the_thread_and_hides_no_request() {
        let (requests, queue) = reload_requests();
        let soon = Some(Duration::ZERO);
        assert!(matches!(queue.next(soon), Next::Late));
        requests.changed();
        assert!(matches!(queue.next(None), Next::Changed));
        requests.changed();
        requests.request();
        assert_eq!(waiters(queue.next(None)).cause(), Cause::Signal);
        assert!(matches!(queue.next(soon), Next::Late), "one waking has said both");
        requests.changed();
        assert!(matches!(queue.next(soon), Next::Changed));
        drop(requests);
        assert!(matches!(queue.next(None), Next::Over));
    }

    #[test]
    fn requests_before_a_reload_share_it_and_later_ones_get_the_next() {
        let (requests, queue) = reload_requests();
        let mut context = Context::from_waker(Waker::noop());
        let (mut first, mut second, mut third) =
            (pin!(requests.reload()), pin!(requests.reload()), pin!(requests.reload()));
        requests.request();
        assert!(first.as_mut().poll(&mut context).is_pending() && second.as_mut().poll(&mut context).is_pending());
        let first_two = waiters(queue.next(None));
        assert_eq!(first_two.cause(), Cause::Request);
        assert!(queue.woken.try_recv().is_err(), "three requests need one reload");
        assert!(third.as_mut().poll(&mut context).is_pending());
        first_two.answer(&reloaded(1));
        let at = |poll| match poll {
            Poll::Ready(Some(reloaded)) => Some(Arc::<Reloaded>::clone(&reloaded).reload.at_ms),
            _ => None,
        };
        assert_eq!(at(first.poll(&mut context)), Some(1));
        assert_eq!(at(second.poll(&mut context)), Some(1));
        assert_eq!(at(third.as_mut().poll(&mut context)), None, "the files may have changed since the first reload");
        waiters(queue.next(None)).answer(&reloaded(2));
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
        drop(queue.next(None));
        assert!(matches!(waits.poll(&mut context), Poll::Ready(None)));
    }

    #[test]
    fn the_errors_are_bounded() {
        let mut errors = ReloadErrors::default();
        for _ in 0..150 {
            let text = "é".repeat(5_000);
            errors.add(ReloadError {
                unit: UnitName::Rules,
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
