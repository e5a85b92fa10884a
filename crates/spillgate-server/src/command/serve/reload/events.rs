//! Is woken by the system when a watched folder changes (inotify of Linux).
//!
//! Nobody reads what has happened: an event only says that it is time to look. So it does not matter that the system drops
//! events when there are too many, or that one change makes several.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use spillgate_service::reload_requests::ReloadRequests;

/// Why a folder cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unwatched {
    /// What cannot be watched, and why.
    pub(super) why: String,
    pub(super) help: &'static str,
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use parking_lot::Mutex;
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init, remove_watch};
    use rustix::io::{Errno, read};
    use tokio::time::Instant;

    use super::{BTreeSet, PathBuf, ReloadRequests, Unwatched, io};

    /// How long the thread sleeps after it was woken. It reads at most [`BUFFER_BYTES`] of events after each sleep, so it
    /// costs nothing even if a program changes a watched folder all the time.
    const SLEEP: Duration = Duration::from_secs(1);
    const BUFFER_BYTES: usize = 64 << 10;

    /// Everything that can change what a file in the folder says. A change of rights counts too, because a file can become
    /// readable.
    const CHANGES: WatchFlags = WatchFlags::CREATE
        .union(WatchFlags::MODIFY)
        .union(WatchFlags::CLOSE_WRITE)
        .union(WatchFlags::DELETE)
        .union(WatchFlags::MOVE)
        .union(WatchFlags::ATTRIB)
        .union(WatchFlags::DELETE_SELF)
        .union(WatchFlags::MOVE_SELF)
        .union(WatchFlags::ONLYDIR);

    /// The watched folders. A clone has the same ones.
    #[derive(Clone, Debug)]
    pub(in super::super) struct Events(Arc<Watches>);

    #[derive(Debug)]
    struct Watches {
        inotify: OwnedFd,
        /// The numbers of the watches. They are kept here, because a call of [`Events::watch`] can end long after nobody
        /// waits for it any more.
        numbers: Mutex<BTreeSet<i32>>,
    }

    impl Events {
        /// Starts the thread that says to `requests` that a folder has changed. It ends with the process.
        pub(in super::super) fn start(requests: ReloadRequests) -> Result<Events, Unwatched> {
            let made = init(CreateFlags::CLOEXEC).map_err(|error| refused("the system gives no inotify", error))?;
            let events = Events(Arc::new(Watches { inotify: made, numbers: Mutex::default() }));
            let own = events.clone();
            let thread = thread::Builder::new().name("watch".into()).spawn(move || own.wait(&requests));
            let no_thread = |error: io::Error| Unwatched {
                why: format!("the system gives no thread: {error}"),
                help: "raise the limit on threads (ulimit -u)",
            };
            thread.map_err(no_thread)?;
            Ok(events)
        }

        fn wait(&self, requests: &ReloadRequests) {
            let mut buffer = vec![0; BUFFER_BYTES];
            loop {
                match read(&self.0.inotify, &mut buffer) {
                    Ok(_) => requests.changed(),
                    Err(Errno::INTR) => continue,
                    // The server still looks from time to time.
                    Err(_) => return,
                }
                pause(SLEEP);
            }
        }

        /// Watches these folders, and no others any more. Fails if a folder cannot be watched; those before it are.
        pub(in super::super) fn watch(&self, folders: &BTreeSet<PathBuf>) -> Result<(), Unwatched> {
            let mut numbers = self.0.numbers.lock();
            let (mut now, mut failed) = (BTreeSet::new(), Ok(()));
            for folder in folders {
                // A folder that was removed and made anew has the same name and needs a new watch. If the folder is watched
                // already, this changes nothing.
                match add_watch(&self.0.inotify, folder, CHANGES) {
                    Ok(number) => drop(now.insert(number)),
                    Err(Errno::NOENT | Errno::NOTDIR) => {}
                    Err(error) => {
                        failed = Err(refused(&format!("the folder {} cannot be watched", folder.display()), error));
                        break;
                    }
                }
            }
            for number in numbers.difference(&now) {
                // The watch of a folder that was removed has ended by itself.
                let _ = remove_watch(&self.0.inotify, *number);
            }
            *numbers = now;
            failed
        }

        /// Returns how many watches the system has.
        #[cfg(test)]
        pub(in super::super) fn count(&self) -> usize {
            use std::os::fd::AsRawFd as _;
            let about = format!("/proc/self/fdinfo/{}", self.0.inotify.as_raw_fd());
            let about = std::fs::read_to_string(about).expect("Linux has this file");
            about.lines().filter(|line| line.starts_with("inotify")).count()
        }
    }

    fn refused(what: &str, error: Errno) -> Unwatched {
        let (why, help) = match error {
            Errno::NOSPC => (
                "no inotify watch is left",
                "raise fs.inotify.max_user_watches with sysctl (in a user namespace, user.max_inotify_watches)",
            ),
            Errno::MFILE => (
                "no inotify instance or no file descriptor is left",
                "raise fs.inotify.max_user_instances with sysctl, and the limit on open files (ulimit -n)",
            ),
            Errno::ACCESS => ("no permission to read it", "give the user of the server the right to read the folder"),
            _ => ("", "set `watch: poll` if this system cannot watch folders"),
        };
        let why = if why.is_empty() { error.to_string() } else { why.to_owned() };
        Unwatched { why: format!("{what}: {why}"), help }
    }

    fn pause(length: Duration) {
        let ends_at = Instant::now() + length;
        // The thread can wake up early.
        while let Some(left) = ends_at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            thread::park_timeout(left);
        }
    }
}

#[cfg(target_os = "linux")]
pub(super) use linux::Events;

/// Other systems than Linux poll.
#[cfg(not(target_os = "linux"))]
#[derive(Clone, Debug)]
pub(super) struct Events;

#[cfg(not(target_os = "linux"))]
impl Events {
    pub(super) fn start(_: ReloadRequests) -> Result<Events, Unwatched> {
        let error = io::Error::from(io::ErrorKind::Unsupported);
        Err(Unwatched { why: format!("folders are watched only on Linux: {error}"), help: "set `watch: poll`" })
    }

    pub(super) fn watch(&self, _: &BTreeSet<PathBuf>) -> Result<(), Unwatched> {
        Ok(())
    }
}
