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

use crate::command::key::RedisKey;
use crate::command::request::{Decoded, KeyedStates, ScriptCall};
use crate::command::transaction::{ServerClock, Transaction};
use crate::error::{Error, ErrorKind};
use crate::settings::{FixedWindow, LogForm, Settings};

/// Keys that a failure names.
const NAMES_MAX: usize = 3;

/// How requests are put, by the settings.
#[derive(Debug)]
pub(crate) struct Encoder {
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
pub(crate) enum Command<'f, 'r, 'q> {
    Script(ScriptCall<'r, 'q>),
    Transaction(Transaction<'f, 'r, 'q>),
}

/// The states that a store showed when it refused a request.
pub(crate) struct ObservedStates {
    /// The store's time of it, and when the answer came.
    pub(crate) now: Time,
    pub(crate) answered: Instant,
    pub(crate) states: KeyedStates,
}

impl Encoder {
    pub(crate) fn new(settings: &Settings) -> Encoder {
        Encoder {
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
    /// Those of [`check`](Encoder::check), and [`StoreError::Malformed`] for what cannot be put.
    pub(crate) fn call<'f, 'r, 'q>(
        &'f self,
        now: Option<Time>,
        hits: &'r [Hit<'q>],
    ) -> Result<Command<'f, 'r, 'q>, StoreError> {
        self.check(hits)?;
        let by_increx = self.fixed_window() == FixedWindow::Native;
        let is_native = hits.iter().any(|hit| self.is_native(hit.quota));
        if !self.scripts || is_native && by_increx {
            return Transaction::new(now, hits, self, by_increx).map(Command::Transaction);
        }
        if hits.iter().any(|hit| self.is_native(hit.quota) && !transaction::supports(hit.quota, hit.op.kind())) {
            return Err(StoreError::Malformed("a native window knows takes and looks alone"));
        }
        ScriptCall::with(now, hits, self.log).map(Command::Script)
    }

    /// The call that tells more than `transaction`, which was answered so, if there is one: a look does not tell whether the
    /// server has INCREX, and a window that looks untouched may be counted by scripts.
    fn unproved<'r, 'q>(
        &self,
        transaction: &Transaction<'_, 'r, 'q>,
        decisions: &[Decision],
    ) -> Option<Result<Command<'_, 'r, 'q>, StoreError>> {
        if !transaction.by_increx || self.took_by_increx.load(Ordering::Relaxed) {
            return None;
        }
        if transaction.takes() {
            self.took_by_increx.store(true, Ordering::Relaxed);
            return None;
        }
        let untouched = decisions.iter().all(|decision| decision.remaining == decision.limit);
        (self.scripts && untouched).then(|| ScriptCall::with(None, transaction.hits, self.log).map(Command::Script))
    }
}

impl Command<'_, '_, '_> {
    /// The name of one of the keys: all are in one slot.
    pub(crate) fn key(&self) -> Option<RedisKey> {
        match self {
            Command::Script(request) => request.keys().first().copied(),
            Command::Transaction(transaction) => transaction.key(),
        }
    }

    /// The failure, with the names of the keys if what they hold may be its cause: such a key fails until it is deleted.
    pub(crate) fn failed(&self, failed: Error) -> Error {
        // Where a script stumbles, it does so over a value.
        let stumbled = failed.kind == ErrorKind::Other && failed.detail.contains("user_script:");
        if !stumbled && !matches!(failed.kind, ErrorKind::WrongType | ErrorKind::Garbled) {
            return failed;
        }
        let keys: Vec<RedisKey> = match self {
            Command::Script(request) => request.keys().to_vec(),
            Command::Transaction(transaction) => transaction.counters().collect(),
        };
        let named: Vec<_> = keys.iter().take(NAMES_MAX).map(RedisKey::to_string).collect();
        let named = named.join(", ");
        // Which script it was, and where in it, is nobody's business.
        let why = failed.detail.split(" script: ").next().unwrap_or_default();
        let detail = match keys.len() {
            0 => return failed,
            1 => format!("{why}; if the key holds what is not ours: DEL {named}"),
            2..=NAMES_MAX => format!("{why}; DEL whichever holds what is not ours: {named}"),
            all => format!("{why}; DEL whichever holds what is not ours: {named}, or {} more", all - NAMES_MAX),
        };
        Error::new(failed.kind, detail)
    }

    /// Whether what it takes can be given back.
    pub(crate) fn gives_back(&self) -> bool {
        matches!(self, Command::Script(_))
    }

    /// As of [`ScriptCall::until`]; plain commands give nothing back.
    pub(crate) fn not_after(&mut self, latest: Time) {
        if let Command::Script(request) = self {
            request.not_after(latest);
        }
    }

    /// As of [`ScriptCall::answer`].
    ///
    /// # Errors
    /// The reply is none to this call.
    pub(crate) fn decode(&mut self, reply: &[u8], decisions: &mut [Decision]) -> Result<Decoded, StoreError> {
        match self {
            Command::Script(request) => request.decode(reply, decisions),
            // The server has not INCREX, and has done nothing.
            Command::Transaction(transaction) if reply.is_empty() && transaction.by_increx => {
                transaction.encoder.has_increx.store(false, Ordering::Relaxed);
                *self = transaction.encoder.call(None, transaction.hits)?;
                Ok(Decoded::CallAgain)
            }
            Command::Transaction(transaction) => {
                let answer = transaction.decode(reply, decisions)?;
                let Some(unproved) = transaction.encoder.unproved(transaction, decisions) else { return Ok(answer) };
                *self = unproved?;
                Ok(Decoded::CallAgain)
            }
        }
    }

    /// What the reply shows of the states after the request, which was refused: `answered` says when it came.
    pub(crate) fn seen(&self, reply: &[u8], answered: Instant) -> Option<ObservedStates> {
        let (now, states) = match self {
            Command::Script(request) => request.states_after(reply),
            Command::Transaction(transaction) => transaction.states_after(reply),
        }?;
        Some(ObservedStates { now, answered, states })
    }

    /// As of [`ScriptCall::answer_refused`]; what plain commands have charged stays charged.
    ///
    /// # Errors
    /// The reply is none to this call.
    pub(crate) fn decode_refused(&self, reply: &[u8], decisions: &mut [Decision]) -> Result<(), StoreError> {
        match self {
            Command::Script(request) => request.decode_refused(reply, decisions),
            Command::Transaction(_) => Ok(()),
        }
    }
}
