//! Writes refusals to the log: the first one soon, and then at most once a minute.
//!
//! So an operator sees that clients are refused, and the log does not have a line for each request.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use spillgate_service::Service;
use tokio::time::Instant;

const CHECK_EVERY: Duration = Duration::from_secs(1);
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// Starts the thread that writes the log lines. The thread ends with the process.
pub(super) fn start(service: &Arc<Service>) -> io::Result<()> {
    let service = Arc::clone(service);
    thread::Builder::new().name("refusal-log".into()).spawn(move || follow(&service)).map(drop)
}

fn follow(service: &Service) {
    let (mut written_at, mut written) = (None::<Instant>, 0);
    loop {
        thread::park_timeout(CHECK_EVERY);
        let refused = service.metrics().requests(false);
        if refused != written && written_at.is_none_or(|at| at.elapsed() >= WRITE_EVERY) {
            (written_at, written) = (Some(Instant::now()), refused);
            service.rules().log_refusals();
        }
    }
}
