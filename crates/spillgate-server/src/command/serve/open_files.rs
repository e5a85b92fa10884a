//! Raises the limit on open files.
//!
//! Every connection is an open file. Many systems start a process with a limit of 1024, and a server would then refuse
//! clients long before `limits.connections`.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::settings::Settings;

/// The number of open files that are not connections of clients: listeners, pipes, event queues, connections to the
/// store, and rules while they are read.
const SPARE: usize = 64;

/// Raises the limit on open files to the highest value that the system allows. Returns how many connections each
/// listener for clients may have. If the limit is too low for what the settings say, the listeners share what it
/// leaves, and the log says what to do. So clients cannot use up the files that the admin listener needs.
pub(super) fn allow(settings: &Settings) -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // An error needs no handling here: if the limit stays too low, the warning below is logged.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let allowed =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let of_clients = settings.listeners_for_clients().iter().filter(|(_, listen)| listen.is_some()).count();
    let limits = settings.limits.clients;
    let of_operators = [&settings.admin, &settings.health].into_iter().flatten().count() * limits.admin_connections();
    let connections = share(allowed, of_clients, of_operators);
    if connections < limits.connections {
        tracing::warn!(
            open_files = allowed,
            connections,
            "too few open files for limits.connections, so each listener accepts fewer: raise the hard limit \
             (ulimit -Hn, LimitNOFILE)"
        );
    }
    connections.min(limits.connections)
}

/// Returns how many connections each of `listeners` may have, if the process may open `files`. The admin listener gets
/// `of_operators` of them, together with the health listener, but at most an eighth.
fn share(files: usize, listeners: usize, of_operators: usize) -> usize {
    let left = files.saturating_sub(SPARE);
    (left - of_operators.min(left / 8)).checked_div(listeners).unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_share_the_open_files_and_leave_some_for_the_admin_listener() {
        assert_eq!(share(1024, 2, 256), 420, "(960 - 120) / 2");
        assert_eq!(share(1024, 1, 0), 960);
        assert_eq!(share(1 << 20, 2, 256), 524_128);
        assert_eq!(share(10, 2, 256), 1);
        assert_eq!(share(usize::MAX, 2, 256), (usize::MAX - 64 - 256) / 2);
    }
}
