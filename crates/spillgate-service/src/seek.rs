//! Finds out who is behind the hash under which insight shows a caller.
//!
//! By default, a server keeps only hashes of its callers, and a hash cannot be turned back. But a caller that does harm
//! goes on sending requests. So an operator who asks about a hash waits for the next request of this caller. Nothing is
//! remembered about any other caller, and while nobody asks, a request pays only for reading one flag.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use spillgate::Clock;
use spillgate::insight::CallerId;
use spillgate::rules::Request;
use tokio::sync::oneshot;

use super::Service;
use super::answer::AnswerView;
use crate::insight::own_entries;

/// How long a question waits for a request of the caller.
pub const SEEK_WITHIN: Duration = Duration::from_secs(3);

/// The maximum number of questions that wait at the same time.
const SEEKERS: usize = 32;

/// A key and a value.
pub type Entry = (String, String);

/// A request of the caller that somebody asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenCaller {
    pub domain: String,
    /// All descriptors of the request, each with its entries.
    pub descriptors: Vec<Vec<Entry>>,
    /// The entries that tell this caller from others: those whose values the rule does not fix. Empty if all callers of
    /// the rule share one counter.
    pub own: Vec<Entry>,
}

/// Why a caller was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeekError {
    #[error("this server gives no caller a hash, because it watches no caller (insight.max_callers: off)")]
    Off,
    #[error("too many questions about hashes wait already")]
    Busy,
    #[error("no request of this caller came within {} seconds", SEEK_WITHIN.as_secs())]
    NotSeen,
}

impl SeekError {
    /// Returns how to fix the error.
    #[must_use]
    pub const fn help(self) -> &'static str {
        match self {
            SeekError::Off => "set insight.max_callers, or name the key and the value",
            SeekError::Busy => "try again soon",
            SeekError::NotSeen => {
                "a server keeps no values of callers, so ask a server that the caller uses, while it sends requests that \
                 no block refuses. Or set insight.keys: plain and reload, and the lists name the callers"
            }
        }
    }
}

/// The questions that wait for a request.
#[derive(Debug, Default)]
pub(super) struct Seekers {
    /// Whether a question waits.
    on: AtomicBool,
    last: AtomicU64,
    waiting: Mutex<Vec<Seeker>>,
}

#[derive(Debug)]
struct Seeker {
    number: u64,
    id: CallerId,
    found: oneshot::Sender<SeenCaller>,
}

/// Removes a question when nobody waits for its answer any more.
struct Waiting<'s> {
    seekers: &'s Seekers,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.seekers.waiting.lock();
        waiting.retain(|seeker| seeker.number != self.number);
        self.seekers.on.store(!waiting.is_empty(), Ordering::Relaxed);
    }
}

impl Seekers {
    #[inline]
    pub(super) fn are_waiting(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn add(&self, id: CallerId) -> Result<(Waiting<'_>, oneshot::Receiver<SeenCaller>), SeekError> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= SEEKERS {
            return Err(SeekError::Busy);
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (found, answer) = oneshot::channel();
        waiting.push(Seeker { number, id, found });
        self.on.store(true, Ordering::Relaxed);
        Ok((Waiting { seekers: self, number }, answer))
    }

    /// Answers the questions about this caller.
    fn answer(&self, id: CallerId, seen: impl Fn() -> SeenCaller) {
        let mut waiting = self.waiting.lock();
        for seeker in waiting.extract_if(.., |seeker| seeker.id == id) {
            // If nobody waits any more, the answer is not needed.
            drop(seeker.found.send(seen()));
        }
        self.on.store(!waiting.is_empty(), Ordering::Relaxed);
    }
}

impl<C: Clock> Service<C> {
    /// Waits for the next request of the caller that insight shows as `id`, and returns what the request had. The wait
    /// takes at most [`SEEK_WITHIN`].
    ///
    /// # Errors
    /// No request of this caller came, the server watches no callers, or too many questions wait.
    pub async fn seek(&self, id: CallerId) -> Result<SeenCaller, SeekError> {
        if !self.rules().watches_callers() {
            return Err(SeekError::Off);
        }
        let (_waiting, answer) = self.seekers.add(id)?;
        match tokio::time::timeout(SEEK_WITHIN, answer).await {
            Ok(Ok(seen)) => Ok(seen),
            Ok(Err(_)) | Err(_) => Err(SeekError::NotSeen),
        }
    }

    /// Answers the questions about the callers of this request.
    #[cold]
    #[inline(never)]
    pub(super) fn answer_seekers(&self, request: &Request<'_>, answer: AnswerView<'_, '_>) {
        let owned = |entries: &[(&str, &str)]| -> Vec<Entry> {
            entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let seen = |own: Vec<Entry>| SeenCaller {
            domain: request.domain.to_owned(),
            descriptors: request.descriptors().map(|descriptor| owned(descriptor.entries)).collect(),
            own,
        };
        for (descriptor, planned) in request.descriptors().zip(&answer.plan.descriptors) {
            let Some(rule) = planned.rule else { continue };
            for (hit, _) in &planned.hits {
                let id = self.caller_of(answer.plan.hits[*hit].key);
                self.seekers.answer(id, || seen(owned(&own_entries(Some(rule), descriptor.entries))));
            }
            if let Some((entry, key)) = self.filler(rule, request) {
                self.seekers.answer(self.caller_of(key), || seen(owned(&[entry])));
            }
        }
    }
}
