//! Removes expired counts from the memory store while nobody asks.
//!
//! Decisions remove expired counts too. But after an attack with many keys, few decisions follow, and the server would
//! keep the memory of the attack for hours.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use spillgate_service::Service;

const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// The sweeps in which the whole store is checked: about a minute. A full store of 10 million keys has about two million
/// buckets, so that a sweep checks some thousand of them, in less than a millisecond.
const PARTS: usize = 600;

/// Starts the thread that sweeps. The thread ends with the process.
pub(super) fn start(service: &Arc<Service>) -> io::Result<()> {
    let service = Arc::clone(service);
    thread::Builder::new().name("sweep".into()).spawn(move || follow(&service)).map(drop)
}

fn follow(service: &Service) {
    loop {
        thread::park_timeout(SWEEP_EVERY);
        let limiter = service.limiter();
        limiter.store().memory().sweep_part(limiter.now(), PARTS);
    }
}
