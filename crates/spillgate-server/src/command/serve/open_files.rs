//! The bound that the system sets on a process's open files, of which every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::settings::Settings;

/// Files that are no connections: listeners, pipes, event queues, rules while they are read.
const SPARE: u64 = 64;

/// Asks for as many open files as the system lets the process have: many systems start one with
/// 1024, and a server that needs more would refuse its clients long before its own bound.
///
/// Where that is too few for even one listener, the log says what to do.
pub(super) fn allow(settings: &Settings) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Refused: then the warning below is all there is to do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if allowed < SPARE + settings.limits.connections as u64 {
        let connections = allowed.saturating_sub(SPARE);
        tracing::warn!(
            open_files = allowed,
            "too few open files: raise the hard limit (ulimit -Hn, LimitNOFILE) or lower limits.connections to {connections}"
        );
    }
}
