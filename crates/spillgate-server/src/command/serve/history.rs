//! The overview of the admin listener shows histories, which count in steps of [`HISTORY_STEP`]. The thread in this
//! file ends each step.
//!
//! A step ends even if nobody looks at the overview. So an operator who opens the overview sees what happened before.

use std::io;
use std::sync::Arc;
use std::thread;

use spillgate_service::{HISTORY_STEP, Service};
use tokio::time::Instant;

/// Starts the thread that ends the steps. The thread ends with the process.
pub(super) fn start(service: &Arc<Service>) -> io::Result<()> {
    let service = Arc::clone(service);
    thread::Builder::new().name("history".into()).spawn(move || follow(&service)).map(drop)
}

fn follow(service: &Service) {
    let mut ends_at = Instant::now() + HISTORY_STEP;
    loop {
        let now = Instant::now();
        if now < ends_at {
            thread::park_timeout(ends_at - now);
            continue;
        }
        service.end_step();
        // If the machine slept, there is one long step instead of several.
        ends_at = (ends_at + HISTORY_STEP).max(now);
    }
}
