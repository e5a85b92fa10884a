//! What a server is asked: a script, or plain commands.

pub(crate) mod args;
pub(crate) mod bytes;
pub(crate) mod key;
pub(crate) mod request;
pub(crate) mod script;
pub(crate) mod state_codec;
pub(crate) mod transaction;

use std::sync::atomic::{AtomicBool, Ordering};

use spillgate_core::{Algorithm, Anchor, Decision, Hit, MAX_HITS, OpKind, Quota, StoreError, Time};
use tokio::time::Instant;

use crate::command::key::Name;
use crate::command::request::{Answer, KeyedStates, Request};
use crate::command::transaction::{Plain, ServerClock};
use crate::error::{Failed, Failure};
use crate::settings::{FixedWindow, LogForm, Settings};

/// Keys that a failure names.
const NAMES_MAX: usize = 3;

/// How requests are put, by the settings.
#[derive(Debug)]
pub(crate) struct Forms {
    log: LogForm,
    scripts: bool,
    fixed_window: FixedWindow,
    /// No server has said that it knows no INCREX.
    has_increx: AtomicBool,
    /// A server has taken by INCREX.
    took_by_increx: AtomicBool,
    pub(crate) clock: ServerClock,
}

/// A request as it is put.
#[derive(Debug)]
pub(crate) enum Call<'f, 'r, 'q> {
    Script(Request<'r, 'q>),
    Plain(Plain<'f, 'r, 'q>),
}

/// The states that a store showed when it refused a request.
pub(crate) struct Seen {
    /// The store's time of it, and when the answer came.
    pub(crate) now: Time,
    pub(crate) answered: Instant,
    pub(crate) states: KeyedStates,
}

impl Forms {
    pub(crate) fn new(settings: &Settings) -> Forms {
        Forms {
            log: settings.log,
            scripts: settings.scripts,
            fixed_window: settings.fixed_window,
            has_increx: AtomicBool::new(true),
            took_by_increx: AtomicBool::new(false),
            clock: ServerClock::new(),
        }
    }

    /// Whether `op` on `quota` can be put.
    pub(crate) fn support(&self, quota: &Quota, op: OpKind) -> bool {
        if !self.scripts || self.is_native(quota) {
            transaction::supports(quota, op)
        } else {
            request::supports(quota, op)
        }
    }

    /// Whether windows of this quota are counted by INCREX, where a server has it. What may be asked of them does not
    /// depend on that, or it would change with the server. A limit of nothing keeps no state, and may stand beside others.
    pub(crate) fn is_native(&self, quota: &Quota) -> bool {
        let first_hit = quota.algorithm() == Algorithm::FixedWindow(Anchor::FirstHit);
        let counts = quota.hard_capacity() > 0 && transaction::supports(quota, OpKind::Take);
        self.fixed_window == FixedWindow::Native && first_hit && counts
    }

    /// How windows are taken from, as far as servers have said.
    pub(crate) fn fixed_window(&self) -> FixedWindow {
        if self.has_increx.load(Ordering::Relaxed) { self.fixed_window } else { FixedWindow::Script }
    }

    /// What holds of a request as a whole, and so has to be checked before it is split.
    ///
    /// # Errors
    /// [`StoreError::Malformed`] for too many hits, or for a native window that is not alone.
    pub(crate) fn check(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        if hits.len() > MAX_HITS {
            return Err(StoreError::Malformed("too many hits"));
        }
        if self.scripts && hits.len() > 1 && hits.iter().any(|hit| self.is_native(hit.quota)) {
            return Err(StoreError::Malformed("a native window has to be asked about alone"));
        }
        Ok(())
    }

    /// # Errors
    /// Those of [`check`](Forms::check), and [`StoreError::Malformed`] for what cannot be put.
    pub(crate) fn call<'f, 'r, 'q>(
        &'f self,
        now: Option<Time>,
        hits: &'r [Hit<'q>],
    ) -> Result<Call<'f, 'r, 'q>, StoreError> {
        self.check(hits)?;
        let by_increx = self.fixed_window() == FixedWindow::Native;
        let is_native = hits.iter().any(|hit| self.is_native(hit.quota));
        if !self.scripts || is_native && by_increx {
            return Plain::new(now, hits, self, by_increx).map(Call::Plain);
        }
        if hits.iter().any(|hit| self.is_native(hit.quota) && !transaction::supports(hit.quota, hit.op.kind())) {
            return Err(StoreError::Malformed("a native window knows takes and looks alone"));
        }
        Request::with(now, hits, self.log).map(Call::Script)
    }

    /// The call that tells more than `plain`, which was answered so, if there is one: a look does not tell whether the
    /// server has INCREX, and a window that looks untouched may be counted by scripts.
    fn unproved<'r, 'q>(
        &self,
        plain: &Plain<'_, 'r, 'q>,
        decisions: &[Decision],
    ) -> Option<Result<Call<'_, 'r, 'q>, StoreError>> {
        if !plain.by_increx || self.took_by_increx.load(Ordering::Relaxed) {
            return None;
        }
        if plain.takes() {
            self.took_by_increx.store(true, Ordering::Relaxed);
            return None;
        }
        let untouched = decisions.iter().all(|decision| decision.remaining == decision.limit);
        (self.scripts && untouched).then(|| Request::with(None, plain.hits, self.log).map(Call::Script))
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

    /// The failure, with the names of the keys if what they hold may be its cause: such a key fails until it is deleted.
    pub(crate) fn failed(&self, failed: Failed) -> Failed {
        // Where a script stumbles, it does so over a value.
        let stumbled = failed.class == Failure::Other && failed.detail.contains("user_script:");
        if !stumbled && !matches!(failed.class, Failure::Wrongtype | Failure::Garbled) {
            return failed;
        }
        let keys: Vec<Name> = match self {
            Call::Script(request) => request.keys().to_vec(),
            Call::Plain(plain) => plain.counters().collect(),
        };
        let named: Vec<_> = keys.iter().take(NAMES_MAX).map(Name::to_string).collect();
        let named = named.join(", ");
        // Which script it was, and where in it, is nobody's business.
        let why = failed.detail.split(" script: ").next().unwrap_or_default();
        let detail = match keys.len() {
            0 => return failed,
            1 => format!("{why}; if the key holds what is not ours: DEL {named}"),
            2..=NAMES_MAX => format!("{why}; DEL whichever holds what is not ours: {named}"),
            all => format!("{why}; DEL whichever holds what is not ours: {named}, or {} more", all - NAMES_MAX),
        };
        Failed::new(failed.class, detail)
    }

    /// Whether what it takes can be given back.
    pub(crate) fn gives_back(&self) -> bool {
        matches!(self, Call::Script(_))
    }

    /// As of [`Request::until`]; plain commands give nothing back.
    pub(crate) fn until(&mut self, latest: Time) {
        if let Call::Script(request) = self {
            request.until(latest);
        }
    }

    /// As of [`Request::answer`].
    ///
    /// # Errors
    /// The reply is none to this call.
    pub(crate) fn answer(&mut self, reply: &[u8], decisions: &mut [Decision]) -> Result<Answer, StoreError> {
        match self {
            Call::Script(request) => request.answer(reply, decisions),
            // The server has not INCREX, and has done nothing.
            Call::Plain(plain) if reply.is_empty() && plain.by_increx => {
                plain.forms.has_increx.store(false, Ordering::Relaxed);
                *self = plain.forms.call(None, plain.hits)?;
                Ok(Answer::AskAgain)
            }
            Call::Plain(plain) => {
                let answer = plain.answer(reply, decisions)?;
                let Some(unproved) = plain.forms.unproved(plain, decisions) else { return Ok(answer) };
                *self = unproved?;
                Ok(Answer::AskAgain)
            }
        }
    }

    /// What the reply shows of the states after the request, which was refused: `answered` says when it came.
    pub(crate) fn seen(&self, reply: &[u8], answered: Instant) -> Option<Seen> {
        let (now, states) = match self {
            Call::Script(request) => request.states_after(reply),
            Call::Plain(plain) => plain.states_after(reply),
        }?;
        Some(Seen { now, answered, states })
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
