//! Clients that send requests all the time until the test stops them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::eventually;

/// Sends the request with this number, and says what was wrong with its answer.
pub(crate) type Client = Box<dyn FnMut(u64) -> Result<(), String> + Send>;

pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<Running>,
}

struct Running {
    name: &'static str,
    passed: Arc<AtomicU64>,
    /// Returns what was wrong.
    thread: JoinHandle<Vec<String>>,
}

impl Load {
    /// Starts these clients. Each pauses between two requests.
    pub(crate) fn start(pause: Duration, clients: impl IntoIterator<Item = (&'static str, Client)>) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |(name, mut send): (&'static str, Client)| {
            let passed = Arc::new(AtomicU64::new(0));
            let (stopped, count) = (Arc::clone(&stop), Arc::clone(&passed));
            let thread = thread::spawn(move || {
                let mut failed = Vec::new();
                for number in 0.. {
                    if stopped.load(Ordering::Relaxed) {
                        break;
                    }
                    match send(number) {
                        Ok(()) => drop(count.fetch_add(1, Ordering::Relaxed)),
                        Err(wrong) => failed.push(format!("{name}: {wrong}")),
                    }
                    thread::park_timeout(pause);
                }
                failed
            });
            Running { name, passed, thread }
        };
        let clients = clients.into_iter().map(start).collect();
        Load { stop, clients }
    }

    /// Returns how many requests have passed.
    pub(crate) fn passed(&self) -> u64 {
        self.each().map(|(_, passed)| passed).sum()
    }

    /// Returns how many requests of each client have passed.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.clients.iter().map(|client| (client.name, client.passed.load(Ordering::Relaxed)))
    }

    /// Waits until this many more requests of each client have passed.
    pub(crate) fn wait_for(&self, more: u64) {
        let before: Vec<u64> = self.each().map(|(_, passed)| passed).collect();
        eventually("requests of each client pass", || {
            self.each().zip(&before).all(|((_, now), before)| now >= before + more).then_some(())
        });
    }

    /// Stops the clients, and returns what was wrong with the requests that failed.
    pub(crate) fn stop(mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let clients = std::mem::take(&mut self.clients);
        clients.into_iter().flat_map(|client| client.thread.join().expect("no client panics")).collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
