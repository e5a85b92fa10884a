//! Bounds handshakes: how many are in progress, and how much of a worker's time they take.
//!
//! A handshake costs a server much more than a client that only pretends to want one. So clients that are silent, or that
//! repeat the same first message, must not shut out other clients, and must not take the time of open connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::Instant;

/// The handshakes of one listener.
#[derive(Debug)]
pub(in crate::listener) struct Handshakes {
    most: usize,
    begun: Mutex<Begun>,
}

#[derive(Debug, Default)]
struct Begun {
    /// The number of the next handshake.
    next: u64,
    /// The handshakes in progress, in the order of their beginning, with the times of their beginnings. A sender that is
    /// dropped ends its handshake.
    in_progress: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
    /// The handshakes that have made way for newer ones, and whose connections are not closed yet.
    closing: usize,
}

/// A handshake has at least this time before it makes way for a newer one. In a flood, a client that means it would otherwise
/// be closed before its second message arrives. Until a handshake has had this time, newer ones are closed instead.
const LEAST_TIME: Duration = Duration::from_millis(250);

impl Handshakes {
    /// At most `most` handshakes will be in progress.
    pub(in crate::listener) fn new(most: usize) -> Arc<Handshakes> {
        Arc::new(Handshakes { most: most.max(1), begun: Mutex::default() })
    }

    /// Counts a handshake that begins. If there are too many, the oldest one is closed: its client has probably no
    /// intention to go on. Returns `None` if even the oldest has had little time. Then the new one has to be closed.
    pub(in crate::listener) fn begin(self: &Arc<Self>) -> Option<InProgress> {
        let (now, (sender, closed)) = (Instant::now(), oneshot::channel());
        let mut begun = self.begun.lock();
        if begun.in_progress.len() >= self.most {
            // If a worker is late with closing, at most as many again are open.
            if begun.closing >= self.most {
                return None;
            }
            let oldest = begun.in_progress.first_entry()?;
            if now.saturating_duration_since(oldest.get().0) < LEAST_TIME {
                return None;
            }
            oldest.remove();
            begun.closing += 1;
        }
        let number = begun.next;
        begun.next += 1;
        begun.in_progress.insert(number, (now, sender));
        drop(begun);
        Some(InProgress { handshakes: Arc::clone(self), number, closed })
    }

    /// Returns how many handshakes have made way for newer ones, and are not closed yet.
    pub(super) fn closing(&self) -> usize {
        self.begun.lock().closing
    }
}

/// One handshake in progress. It is counted until this value is dropped.
#[derive(Debug)]
pub(in crate::listener) struct InProgress {
    handshakes: Arc<Handshakes>,
    number: u64,
    closed: oneshot::Receiver<()>,
}

impl InProgress {
    /// Waits until this handshake has to make way for a newer one.
    pub(super) async fn closed(&mut self) {
        let _ = (&mut self.closed).await;
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut begun = self.handshakes.begun.lock();
        if begun.in_progress.remove(&self.number).is_none() {
            begun.closing -= 1;
        }
    }
}

/// If other connections of the worker use less than this between two steps of handshakes, they have nothing to do.
const IDLE: Duration = Duration::from_micros(20);

/// Lets one handshake of a worker compute at a time, and then lets the open connections of the worker run until they
/// have nothing to do, for as long as that at most.
#[derive(Debug, Default)]
pub(in crate::listener) struct Turns(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    is_taken: bool,
    /// The handshakes that wait for their turn. The newest is the next one, because in a flood the older ones are
    /// closed before they can end.
    waiting: Vec<oneshot::Sender<Turn>>,
    /// When this many wait, those that were closed meanwhile are removed.
    clean_at: usize,
}

impl Turns {
    /// Waits until this handshake may compute.
    pub(super) async fn take(self: &Arc<Self>) -> Turn {
        let receiver = {
            let mut queue = self.0.lock();
            if !queue.is_taken {
                queue.is_taken = true;
                return Turn(Arc::clone(self));
            }
            if queue.waiting.len() >= queue.clean_at {
                queue.waiting.retain(|waiting| !waiting.is_closed());
                queue.clean_at = 2 * queue.waiting.len() + 64;
            }
            let (sender, receiver) = oneshot::channel();
            queue.waiting.push(sender);
            receiver
        };
        // A sender is dropped only after its receiver, so the receiver gets a turn.
        receiver.await.unwrap_or_else(|_| Turn(Arc::clone(self)))
    }
}

/// The right to compute, until this value is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Turns>);

impl Turn {
    /// Gives the turn back after a step that has taken the time `took`, when the open connections have had that time too.
    pub(super) async fn end(self, took: Duration) {
        let begun = Instant::now();
        loop {
            let before = Instant::now();
            // All ready tasks of the worker run before this one runs again.
            yield_now().await;
            if before.elapsed() < IDLE || begun.elapsed() >= took {
                return;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        loop {
            let next = {
                let mut queue = self.0.0.lock();
                let next = queue.waiting.pop();
                queue.is_taken = next.is_some();
                next
            };
            match next {
                None => return,
                // Handshakes of one worker share a thread, so a receiver that exists now will exist after the next line.
                Some(next) if next.is_closed() => {}
                Some(next) => {
                    let _ = next.send(Turn(Arc::clone(&self.0)));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_handshake_makes_way_for_the_newest_if_it_has_had_time() {
        let handshakes = Handshakes::new(2);
        let begin = || handshakes.begin().expect("it can begin");
        let (mut first, mut second) = (begin(), begin());
        assert!(handshakes.begin().is_none(), "the first two have had no time");
        tokio::time::advance(LEAST_TIME).await;
        let mut third = begin();
        assert!(first.closed().now_or_never().is_some() && second.closed().now_or_never().is_none());
        assert_eq!(handshakes.closing(), 1);
        drop(second);
        let fourth = begin();
        assert!(third.closed().now_or_never().is_none(), "a handshake that has ended makes way too");
        assert!(handshakes.begin().is_none());
        drop((first, third, fourth));
        let begun = handshakes.begun.lock();
        assert!(begun.in_progress.is_empty() && begun.closing == 0, "no handshake is counted any more");
    }

    #[tokio::test]
    async fn one_handshake_computes_at_a_time_and_the_newest_is_the_next() {
        let (turns, order) = (Arc::new(Turns::default()), Arc::new(Mutex::new(Vec::new())));
        let first = turns.take().await;
        let mut tasks = Vec::new();
        for number in 0..5 {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let turn = turns.take().await;
                order.lock().push(number);
                turn.end(Duration::ZERO).await;
            }));
            yield_now().await;
        }
        assert!(order.lock().is_empty(), "another handshake computes");
        // One is closed before its turn, and one after it has got it.
        tasks[2].abort();
        yield_now().await;
        drop(first);
        tasks[4].abort();
        for task in tasks {
            let _ = task.await;
        }
        assert_eq!(*order.lock(), [3, 1, 0]);
        let queue = turns.0.lock();
        assert!(!queue.is_taken && queue.waiting.is_empty());
    }

    #[tokio::test]
    async fn handshakes_that_were_closed_while_they_waited_take_no_memory() {
        let turns = Arc::new(Turns::default());
        let turn = turns.take().await;
        for _ in 0..10_000 {
            assert!(turns.take().now_or_never().is_none());
        }
        assert!(turns.0.lock().waiting.len() <= 64);
        drop(turn);
        assert!(turns.take().now_or_never().is_some());
    }
}
