//! Reads the files with the admin tokens again, once a second. So a token can be rotated without a restart, and the old
//! token then has no rights any more.
//!
//! The thread of this file does nothing else, so a disk that does not answer blocks nobody else.

use std::io;
use std::thread;
use std::time::Duration;

use spillgate_admin::Access;
use tokio::time::Instant;

use super::warnings;
use crate::command::open::secret_file;
use crate::settings::Settings;

const READ_EVERY: Duration = Duration::from_secs(1);
/// While the files cannot be read, the log has at most one line in this time.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// What the files had, or why they cannot be used, as a text for the log.
type Tokens = Result<(Option<String>, Option<String>), String>;

/// Starts the thread, which ends with the process. Does nothing if there are no tokens.
pub(super) fn follow(settings: &Settings, access: &Access) -> io::Result<()> {
    if !access.has_token() {
        return Ok(());
    }
    let (settings, access) = (settings.clone(), access.clone());
    let work = move || {
        let (mut last, mut warned_at) = (None, None);
        loop {
            pause(READ_EVERY);
            let read = secret_file::admin_tokens(&settings).map_err(|problem| problem.to_string());
            // A program may be writing the file at this moment. Two equal readings show that it has ended.
            if last.as_ref() == Some(&read) {
                apply(&access, &read, &mut warned_at);
            }
            last = Some(read);
        }
    };
    thread::Builder::new().name("admin-tokens".into()).spawn(work).map(drop)
}

fn apply(access: &Access, read: &Tokens, warned_at: &mut Option<Instant>) {
    let replaced = read.as_ref().map_err(Clone::clone).and_then(|(write, read)| {
        let replaced = access.replace_tokens(write.as_deref(), read.as_deref());
        replaced.map_err(|error| secret_file::wrong_tokens(&error).to_string())
    });
    match replaced {
        Ok(false) => {}
        Ok(true) => {
            tracing::info!("an admin token has changed in its file; the old token has no rights any more");
            if access.has_short_token() {
                tracing::warn!("{}", warnings::SHORT);
            }
        }
        Err(why) if warned_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) => {
            *warned_at = Some(Instant::now());
            tracing::warn!("the admin tokens cannot be read again, so the current tokens stay valid: {why}");
        }
        Err(_) => {}
    }
}

fn pause(length: Duration) {
    let ends_at = Instant::now() + length;
    // The thread can wake up early.
    while let Some(left) = ends_at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        thread::park_timeout(left);
    }
}
