//! Watches the folders of all units, or says that the files have to be read each second.

use std::path::PathBuf;
use std::sync::Arc;

use spillgate_service::metrics::Metrics;
use spillgate_service::reload_requests::ReloadRequests;

use super::events::{Events, Unwatched};
use super::folders::folders_of;
use super::reader::{READ_WITHIN, Reader};
use crate::settings::Watch;

/// The folders that are watched now.
pub(super) struct Watcher {
    setting: Watch,
    /// What the thread of the events says "look" to.
    requests: ReloadRequests,
    events: Option<Events>,
    /// Why a folder is not watched, as the log says it.
    trouble: Option<Unwatched>,
    reader: Reader,
    metrics: Arc<Metrics>,
}

impl Watcher {
    pub(super) fn new(setting: Watch, requests: ReloadRequests, metrics: Arc<Metrics>) -> Watcher {
        Watcher { setting, requests, events: None, trouble: None, reader: Reader::default(), metrics }
    }

    /// Watches the folders of `paths`, and no others. Returns whether the files have to be polled, because of the setting
    /// or because a folder cannot be watched.
    pub(super) fn watch(&mut self, paths: Vec<PathBuf>) -> bool {
        let trouble = if self.setting == Watch::On { self.try_to_watch(paths).err() } else { None };
        if trouble != self.trouble {
            match &trouble {
                Some(Unwatched { why, help }) => {
                    tracing::warn!("{why}; so the server reads all files each second instead ({help})");
                }
                None => tracing::info!("all folders are watched again"),
            }
        }
        self.trouble = trouble;
        let polls = self.setting == Watch::Poll || self.trouble.is_some();
        self.metrics.all_reloads.polls.set(polls.into());
        polls
    }

    fn try_to_watch(&mut self, paths: Vec<PathBuf>) -> Result<(), Unwatched> {
        let events = match &self.events {
            Some(events) => events.clone(),
            None => self.events.insert(Events::start(self.requests.clone())?).clone(),
        };
        let work = move || match folders_of(&paths) {
            Ok(folders) => events.watch(&folders),
            Err(too_many) => Err(Unwatched { why: too_many.to_string(), help: "name the folder that has the rules" }),
        };
        let unread = |_| Unwatched {
            why: "the folders of the files do not answer in time".to_owned(),
            help: "check the disk or network of the files",
        };
        self.reader.read(READ_WITHIN, work).map_err(unread)?
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::thread;
    use std::time::Duration;

    use spillgate_service::reload_requests::reload_requests;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_disk_that_does_not_answer_for_a_while_leaves_no_watch_behind() {
        let folders = [(); 2].map(|()| TempDir::new().expect("a folder can be made"));
        let [first, second] = folders.each_ref().map(|folder| vec![folder.path().to_owned()]);
        let (requests, _queue) = reload_requests();
        let mut watcher = Watcher::new(Watch::On, requests, Arc::new(Metrics::default()));
        assert!(!watcher.watch(first), "the folder is watched");
        let events = watcher.events.clone().expect("there are events");
        let before = events.count();
        let (end, ended) = sync_channel::<()>(0);
        let late = watcher.reader.read(Duration::ZERO, move || ended.recv());
        assert!(late.is_err() && watcher.watch(second.clone()), "nothing can be watched now");
        drop(end);
        while watcher.watch(second.clone()) {
            thread::yield_now();
        }
        assert_eq!(events.count(), before);
    }
}
