//! Turns a request into what is sent to Redis: a call of a script, or a transaction of plain commands.
//!
//! Outside this folder, only `node/send.rs` distinguishes scripts from transactions. All other code asks the command
//! for its slot, sends it, and lets it decode the reply.
//!
//! This example shows a take of one unit on a fixed window that begins at its first hit, first with scripts and then
//! without. `L` is the limit, and `W` is the length of the window:
//!
//! ```text
//! EVALSHA <sha of take_window> 1 sg:{kP2d7}:Zx..  "" <cost, L - cost, W, 0>
//! < <time of the decision> <start and count, as they were before the take>
//!
//! MULTI
//! INCRBY sg:{kP2d7}+Qm..  1
//! PEXPIRE sg:{kP2d7}+Qm..  60000 NX
//! PTTL sg:{kP2d7}+Qm..
//! TIME
//! EXEC
//! < [4, 0, 31734, ["1790000000", "123456"]]       4 is the count after the take
//! ```
//!
//! The kernel computes the answer from the state as it was before the request. A script returns this state. A
//! transaction returns the count after the request, so the store subtracts the cost.

pub(crate) mod args;
pub(crate) mod bytes;
pub(crate) mod key;
pub(crate) mod plain;
pub(crate) mod request;
pub(crate) mod script;
pub(crate) mod server_clock;
pub(crate) mod state_codec;
pub(crate) mod transaction;

use smallvec::SmallVec;
use spillgate_core::{Decision, Hit, OpKind, Quota, StoreError, StoreErrorKind, Time};
use tokio::time::Instant;

use crate::command::key::RedisKey;
use crate::command::plain::PlainCommands;
use crate::command::request::{Decoded, KeyedStates, ScriptCall};
use crate::command::server_clock::ServerClock;
use crate::command::transaction::Transaction;
use crate::error::Error;
use crate::settings::{LogForm, Settings};

/// An error names at most this many keys.
const NAMED_KEYS_MAX: usize = 3;

/// Turns requests into commands, as the settings say.
#[derive(Debug)]
pub(crate) struct Encoder {
    log: LogForm,
    /// Whether requests are sent as calls of scripts. If this is false, they are sent as transactions.
    scripts: bool,
    /// The time of Redis, which transactions need before they are sent. Scripts read the clock of Redis themselves.
    pub(crate) clock: ServerClock,
}

/// One request, ready to be sent.
#[derive(Debug)]
pub(crate) enum Command<'e, 'r, 'q> {
    /// A call of one script.
    Script(ScriptCall<'r, 'q>),
    /// Plain commands between MULTI and EXEC, for a store without scripts.
    Transaction(Transaction<'e, 'r, 'q>),
    /// Plain commands on a list.
    Plain(&'r PlainCommands),
}

/// The states in the reply to a refused request.
pub(crate) struct ObservedStates {
    /// The time of the decision, by the clock of Redis.
    pub(crate) now: Time,
    /// When the reply came, by the local clock.
    pub(crate) replied_at: Instant,
    pub(crate) states: KeyedStates,
}

impl Encoder {
    pub(crate) fn new(settings: &Settings) -> Encoder {
        Encoder { log: settings.log, scripts: settings.scripts, clock: ServerClock::new() }
    }

    /// Returns whether `op` on `quota` can be sent with these settings.
    pub(crate) fn support(&self, quota: &Quota, op: OpKind) -> bool {
        if self.scripts { request::supports(quota, op) } else { transaction::supports(quota, op) }
    }

    /// Returns the command that looks for the state of this hit. `None` in a store without scripts: the names of its
    /// counters change with time, so only a peek finds them.
    pub(crate) fn look(&self, hit: &Hit<'_>) -> Option<PlainCommands> {
        self.scripts.then(|| PlainCommands::look(hit, self.log))
    }

    /// Returns the command for `hits`. All their states must be in one slot of the cluster.
    ///
    /// # Errors
    /// [`StoreErrorKind::Malformed`] for a hit that is not [supported](Encoder::support).
    pub(crate) fn encode<'e, 'r, 'q>(
        &'e self,
        now: Option<Time>,
        hits: &'r [Hit<'q>],
    ) -> Result<Command<'e, 'r, 'q>, StoreError> {
        if self.scripts {
            ScriptCall::with(now, hits, self.log).map(Command::Script)
        } else {
            Transaction::new(now, hits, &self.clock).map(Command::Transaction)
        }
    }
}

impl Command<'_, '_, '_> {
    /// Returns the slot of the keys of the command. All keys are in one slot.
    pub(crate) fn slot(&self) -> u16 {
        let key = match self {
            Command::Script(call) => call.keys().first().copied(),
            Command::Transaction(transaction) => transaction.key(),
            Command::Plain(plain) => return plain.slot,
        };
        key.map_or(0, |key| key.slot())
    }

    /// Returns the key of a probe in the slot of the command. `None` if the command counts nothing, so that it can be
    /// sent without a probe.
    pub(crate) fn probe_key(&self) -> Option<u128> {
        let hits = match self {
            Command::Script(call) => call.hits(),
            Command::Transaction(transaction) => transaction.hits(),
            Command::Plain(_) => return None,
        };
        let counted = hits.iter().find(|hit| hit.op.kind() != OpKind::Peek)?;
        Some(counted.key >> Hit::SLOT_SHIFT << Hit::SLOT_SHIFT)
    }

    /// Adds the names of the keys to the error if an invalid value under one of these keys may be the cause. Such a key
    /// causes errors until an operator deletes it.
    pub(crate) fn name_keys(&self, error: Error) -> Error {
        // An error inside a script comes from a value that the script cannot read.
        let is_script_error = error.kind == StoreErrorKind::Other && error.detail.contains("user_script:");
        if !is_script_error && !matches!(error.kind, StoreErrorKind::WrongType | StoreErrorKind::Garbled) {
            return error;
        }
        let keys: Vec<String> = match self {
            Command::Script(call) => call.keys().iter().map(RedisKey::to_string).collect(),
            Command::Transaction(transaction) => transaction.counters().map(|key| key.to_string()).collect(),
            Command::Plain(plain) => vec![plain.key.clone()],
        };
        let named: Vec<_> = keys.iter().take(NAMED_KEYS_MAX).map(String::as_str).collect();
        let named = named.join(", ");
        // The error of a script ends with the name of the script and a line number. An operator does not need them.
        let why = error.detail.split(" script: ").next().unwrap_or_default();
        let detail = match keys.len() {
            0 => return error,
            1 => format!("{why}; if another program wrote the key: DEL {named}"),
            2..=NAMED_KEYS_MAX => format!("{why}; DEL the key that another program wrote: {named}"),
            all => format!("{why}; DEL the key that another program wrote: {named}, or {} more", all - NAMED_KEYS_MAX),
        };
        Error::new(error.kind, detail)
    }

    /// Returns whether the units that the request takes can be refunded.
    pub(crate) fn is_refundable(&self) -> bool {
        matches!(self, Command::Script(_))
    }

    /// Sets the time after which the script changes nothing, as [`ScriptCall::not_after`] does. Only refunds need such
    /// a time. So this method does nothing for transactions, which never refund.
    pub(crate) fn not_after(&mut self, latest: Time) {
        if let Command::Script(call) = self {
            call.not_after(latest);
        }
    }

    /// Decodes the reply, and stores the decision about each hit in `decisions`.
    ///
    /// # Errors
    /// The reply is not a reply to this command.
    pub(crate) fn decode(&mut self, reply: &[u8], decisions: &mut [Decision]) -> Result<Decoded, StoreError> {
        match self {
            Command::Script(call) => call.decode(reply, decisions),
            Command::Transaction(transaction) => transaction.decode(reply, decisions),
            Command::Plain(_) => Err(StoreError::malformed("plain commands decide nothing")),
        }
    }

    /// Returns for each key that the decided request made, the position of a hit on it.
    pub(crate) fn made(&self, reply: &[u8]) -> SmallVec<[usize; 4]> {
        match self {
            Command::Script(call) => call.made(reply),
            Command::Transaction(transaction) => transaction.made(reply),
            Command::Plain(_) => SmallVec::new(),
        }
    }

    /// Returns the states as they were after the refused request. The result is `None` if the reply does not show them.
    /// `replied_at` is when the reply came.
    pub(crate) fn observed(&self, reply: &[u8], replied_at: Instant) -> Option<ObservedStates> {
        let (now, states) = match self {
            Command::Script(call) => call.states_after(reply),
            Command::Transaction(transaction) => transaction.states_after(reply),
            Command::Plain(_) => None,
        }?;
        Some(ObservedStates { now, replied_at, states })
    }

    /// Computes the decisions again, for a request that this slot allowed and another slot refused. For a script,
    /// [`ScriptCall::decode_refused`] does this. The units that a transaction charged stay charged, so its decisions do
    /// not change.
    ///
    /// # Errors
    /// The reply is not a reply to this command.
    pub(crate) fn decode_refused(&self, reply: &[u8], decisions: &mut [Decision]) -> Result<(), StoreError> {
        match self {
            Command::Script(call) => call.decode_refused(reply, decisions),
            Command::Transaction(_) | Command::Plain(_) => Ok(()),
        }
    }
}
