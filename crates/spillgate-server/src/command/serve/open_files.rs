//! Raises the limit on open files.
//!
//! Every connection is an open file. Many systems start a process with a limit of 1024, and a server would then refuse
//! clients long before `limits.connections`.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::settings::Settings;

/// The number of open files that are not connections: listeners, pipes, event queues, and rules while they are read.
const SPARE: u64 = 64;

/// Raises the limit on open files to the highest value that the system allows. If that value is too low for the
/// connections of one listener, the log says what to do.
pub(super) fn allow(settings: &Settings) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // An error needs no handling here: if the limit stays too low, the warning below is logged.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if allowed < SPARE + settings.limits.clients.connections as u64 {
        let connections = allowed.saturating_sub(SPARE);
        tracing::warn!(
            open_files = allowed,
            "too few open files: raise the hard limit (ulimit -Hn, LimitNOFILE) or lower limits.connections to {connections}"
        );
    }
}
