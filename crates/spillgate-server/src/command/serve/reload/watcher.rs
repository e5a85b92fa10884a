//! Watches the folders of all units, or says that the files have to be read each second.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use spillgate_service::metrics::Metrics;
use spillgate_service::reload_requests::ReloadRequests;

use super::events::{Events, Unwatched};
use super::folders::{FOLDERS_MAX, TooMany, folders_of};
use super::reader::{READ_WITHIN, Reader};
use crate::settings::Watch;

/// The folders that are watched now.
pub(super) struct Watcher {
    setting: Watch,
    /// What the thread of the events says "look" to.
    requests: ReloadRequests,
    events: Option<Events>,
    watched: BTreeSet<i32>,
    /// Why a folder is not watched, as the log says it.
    trouble: Option<Unwatched>,
    reader: Reader,
    metrics: Arc<Metrics>,
}

impl Watcher {
    pub(super) fn new(setting: Watch, requests: ReloadRequests, metrics: Arc<Metrics>) -> Watcher {
        let (events, watched, trouble, reader) = (None, BTreeSet::new(), None, Reader::default());
        Watcher { setting, requests, events, watched, trouble, reader, metrics }
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
        let watched = std::mem::take(&mut self.watched);
        let work = move || match folders_of(&paths) {
            Ok(folders) => events.watch(&folders, &watched),
            Err(TooMany) => {
                let why = format!("the files are in more than {FOLDERS_MAX} folders, which is too many to watch");
                (watched, Some(Unwatched { why, help: "name the folder that has the rules" }))
            }
        };
        let unread = |_| Unwatched {
            why: "the folders of the files do not answer in time".to_owned(),
            help: "check the disk or network of the files",
        };
        let (watched, failed) = self.reader.read(READ_WITHIN, work).map_err(unread)?;
        self.watched = watched;
        failed.map_or(Ok(()), Err)
    }
}
