//! Where the reply to a command goes: to the caller that waits for it, or to the heir that the caller left.
//!
//! A command that is written is executed, even if its caller no longer waits. If the caller only went away, nobody would
//! know what the command changed. So a caller that leaves can name an [`Heir`], which gets the reply in its place.
//!
//! ```text
//! open (waiting) -> send (the reply has come) -> wait (the caller has it)
//!       \________________\_____ leave: the heir gets the reply, now or when it comes
//! ```

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use redis::Value;

/// Gets the reply to a command whose caller has left.
pub(crate) trait Heir: Send {
    /// `reply` is `None` if the connection ended before the reply came. The command may have been executed even so.
    fn receive(self: Box<Self>, reply: Option<Value>);
}

/// The place of one reply. The caller and the queue share it. It can be used again when the reply has been taken.
#[derive(Default)]
pub(crate) struct ReplySlot(Mutex<Progress>);

#[derive(Default)]
enum Progress {
    /// No command has this place, or the caller has its reply.
    #[default]
    Idle,
    /// The caller waits, or will wait soon.
    Waiting(Option<Waker>),
    /// The reply has come. `None` if the connection ended before.
    Came(Option<Value>),
    /// The caller no longer waits.
    Left(Option<Box<dyn Heir>>),
}

impl ReplySlot {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the end of the slot for the queue. The reply that this end sends is the next one that the slot gets.
    pub(crate) fn open(self: &Arc<ReplySlot>) -> ReplySender {
        *self.progress() = Progress::Waiting(None);
        ReplySender(Some(Arc::clone(self)))
    }

    /// Returns the end for the queue if there is no caller, but an heir from the beginning.
    pub(crate) fn inherited(heir: Box<dyn Heir>) -> ReplySender {
        ReplySender(Some(Arc::new(ReplySlot(Mutex::new(Progress::Left(Some(heir)))))))
    }

    /// Waits for the reply. `None` if the connection ended before.
    pub(crate) async fn wait(&self) -> Option<Value> {
        poll_fn(|context| {
            let mut progress = self.progress();
            match &mut *progress {
                Progress::Waiting(Some(waker)) => waker.clone_from(context.waker()),
                Progress::Waiting(waker) => *waker = Some(context.waker().clone()),
                Progress::Came(reply) => {
                    let reply = reply.take();
                    *progress = Progress::Idle;
                    return Poll::Ready(reply);
                }
                Progress::Idle | Progress::Left(_) => return Poll::Ready(None),
            }
            Poll::Pending
        })
        .await
    }

    /// Says that the caller no longer waits. If a reply has come or can still come, `heir` makes the heir.
    pub(crate) fn leave(&self, heir: impl FnOnce() -> Option<Box<dyn Heir>>) {
        let mut progress = self.progress();
        match &mut *progress {
            Progress::Waiting(_) => *progress = Progress::Left(heir()),
            Progress::Came(reply) => {
                let reply = reply.take();
                *progress = Progress::Idle;
                drop(progress);
                if let Some(heir) = heir() {
                    heir.receive(reply);
                }
            }
            Progress::Idle | Progress::Left(_) => {}
        }
    }
}

/// The caller's end of a slot, for a caller without an heir.
#[derive(Default)]
pub(crate) struct Caller(pub(crate) Arc<ReplySlot>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.leave(|| None);
    }
}

/// The queue's end of a slot. If it is dropped, the connection has ended before the reply came.
pub(crate) struct ReplySender(Option<Arc<ReplySlot>>);

impl ReplySender {
    /// Delivers the reply.
    pub(crate) fn send(mut self, value: Value) {
        self.end(Some(value));
    }

    /// Returns whether the caller no longer waits.
    pub(crate) fn has_left(&self) -> bool {
        self.0.as_ref().is_none_or(|slot| matches!(*slot.progress(), Progress::Left(_)))
    }

    /// Ends the slot of a command that was never written, so that its heir has nothing to do.
    pub(crate) fn discard(mut self) {
        if let Some(slot) = self.0.take() {
            // The heir is dropped without the lock.
            let progress = std::mem::take(&mut *slot.progress());
            drop(progress);
        }
    }

    fn end(&mut self, reply: Option<Value>) {
        let Some(slot) = self.0.take() else { return };
        let mut progress = slot.progress();
        match &mut *progress {
            Progress::Waiting(waker) => {
                let waker = waker.take();
                *progress = Progress::Came(reply);
                drop(progress);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Progress::Left(heir) => {
                let heir = heir.take();
                drop(progress);
                if let Some(heir) = heir {
                    heir.receive(reply);
                }
            }
            Progress::Idle | Progress::Came(_) => {}
        }
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        self.end(None);
    }
}
