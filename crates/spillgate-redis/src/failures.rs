//! Counts failed requests by kind of error, and keeps the first error of each kind for the log.
//!
//! A log line for each failed request would fill the log while Redis is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use crate::error::Error;

/// The failed requests of one kind of error.
#[derive(Default)]
pub(crate) struct Failures {
    requests: AtomicU64,
    /// The first error since [`take_first`](Failures::take_first) was last called.
    first: ArcSwapOption<Error>,
}

impl Failures {
    pub(crate) fn count(&self, error: &Error) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.first.load().is_none() {
            self.first.store(Some(Arc::new(error.clone())));
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn take_first(&self) -> Option<Error> {
        self.first.swap(None).map(|error| Error::clone(&error))
    }
}
