//! Tells the log once a minute what was refused.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::service::Service;

const LOOK_EVERY: Duration = Duration::from_secs(1);
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Starts the thread that tells. It ends with the process.
pub(super) fn start(service: &Arc<Service>) -> io::Result<()> {
    let service = Arc::clone(service);
    thread::Builder::new().name("refusal-log".into()).spawn(move || tell(&service)).map(drop)
}

/// The first refusal has its line at once, and further ones a minute later.
fn tell(service: &Service) {
    let (mut told_at, mut told) = (None::<Instant>, 0);
    loop {
        thread::park_timeout(LOOK_EVERY);
        let refused = service.metrics().refused.get();
        if refused != told && told_at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            (told_at, told) = (Some(Instant::now()), refused);
            service.tell_refusals();
        }
    }
}
