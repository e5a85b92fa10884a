//! What a server is asked: a script, or plain commands.

use spillgate_core::{Decision, Hit, OpKind, Quota, StoreError, Time};

use crate::plain::{self, Plain, ServerClock};
use crate::request::{self, Answer, Request};
use crate::{LogForm, Name, Settings};

/// How requests are put, by the settings.
pub(crate) struct Forms {
    log: LogForm,
    scripts: bool,
    clock: ServerClock,
}

/// A request as it is put.
#[derive(Debug)]
pub(crate) enum Call<'f, 'r, 'q> {
    Script(Request<'r, 'q>),
    Plain(Plain<'f, 'r, 'q>),
}

impl Forms {
    pub(crate) fn new(settings: &Settings) -> Forms {
        Forms { log: settings.log, scripts: settings.scripts, clock: ServerClock::new() }
    }

    /// Whether `op` on `quota` can be put.
    pub(crate) fn support(&self, quota: &Quota, op: OpKind) -> bool {
        if self.scripts { request::supports(quota, op) } else { plain::supports(quota, op) }
    }

    /// # Errors
    /// [`StoreError::Malformed`] for too many hits, or for what cannot be put.
    pub(crate) fn call<'f, 'r, 'q>(
        &'f self,
        now: Option<Time>,
        hits: &'r [Hit<'q>],
    ) -> Result<Call<'f, 'r, 'q>, StoreError> {
        if self.scripts {
            Request::with(now, hits, self.log).map(Call::Script)
        } else {
            Plain::new(now, hits, &self.clock).map(Call::Plain)
        }
    }
}

impl Call<'_, '_, '_> {
    /// The name of one of the keys: all are in one slot.
    pub(crate) fn key(&self) -> Option<Name> {
        match self {
            Call::Script(request) => request.keys().first().copied(),
            Call::Plain(plain) => plain.key(),
        }
    }

    /// As of [`Request::answer`].
    ///
    /// # Errors
    /// The reply is none to this call.
    pub(crate) fn answer(&mut self, reply: &[u8], decisions: &mut [Decision]) -> Result<Answer, StoreError> {
        match self {
            Call::Script(request) => request.answer(reply, decisions),
            Call::Plain(plain) => plain.answer(reply, decisions),
        }
    }

    /// As of [`Request::answer_refused`]; what plain commands have charged stays charged.
    ///
    /// # Errors
    /// The reply is none to this call.
    pub(crate) fn answer_refused(&self, reply: &[u8], decisions: &mut [Decision]) -> Result<(), StoreError> {
        match self {
            Call::Script(request) => request.answer_refused(reply, decisions),
            Call::Plain(_) => Ok(()),
        }
    }
}
