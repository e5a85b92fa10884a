//! Sends one command to a node, and reads its reply.
//!
//! A script can be missing on the node, and a transaction can be executed only in part. This file handles both cases,
//! so the rest of the store gets a reply, a redirection or an error.
//!
//! If the node does not have the script, the store and the node exchange these messages:
//!
//! ```text
//! > EVALSHA 9a0c.. 1 sg:{kP2d7}:Zx..  "" <argument>
//! < -NOSCRIPT No matching script.
//! > SCRIPT LOAD <source>
//! > EVALSHA 9a0c.. 1 sg:{kP2d7}:Zx..  "" <argument>
//! < $40 9a0c..
//! < <the time, and the state as it was before the charge>
//! ```

use std::sync::Arc;

use redis::{Cmd, ErrorKind as RedisErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use spillgate_core::StoreErrorKind;

use crate::command::Command;
use crate::command::plain::{PlainCommands, flatten};
use crate::command::request::ScriptCall;
use crate::command::script::Script;
use crate::command::transaction::{Transaction, numbers};
use crate::connection::reply::ReplySlot;
use crate::error::Error;
use crate::node::pool::LiveConnection;
use crate::node::redirection::{Redirection, redirection};

/// A request loads its script at most this many times before it fails, because another client could delete all scripts
/// again and again.
const LOADS_MAX: usize = 3;

/// The initial capacity for the parts of a command, in bytes. It is enough for a take on one key.
const COMMAND_BYTES: usize = 256;

/// The reply of a node to a command.
pub(crate) enum NodeReply {
    /// What the script or the transaction returned.
    Bytes(Vec<u8>),
    /// The node did nothing, because it does not have all states of the command.
    Elsewhere(Redirection),
}

/// Sends the command on this connection and returns the reply. The reply to a script comes through `slot`. If no reply
/// comes, the function waits until the connection ends. So the caller must set a deadline.
///
/// # Errors
/// [`Garbled`](StoreErrorKind::Garbled) if the reply has the wrong type, or if only a part of a transaction may have
/// been executed. In all other cases, the kind of the node's error, or [`Disconnected`](StoreErrorKind::Disconnected).
pub(crate) async fn reply(
    live: &LiveConnection,
    call: &Command<'_, '_, '_>,
    slot: &Arc<ReplySlot>,
    asking: bool,
) -> Result<NodeReply, Error> {
    let reply = match call {
        Command::Script(request) => send_script(live, request, slot, asking).await,
        // The boxes here and below keep large futures out of those of all requests, which are copied and kept in caches.
        Command::Transaction(transaction) => Box::pin(send_transaction(live, transaction, asking)).await,
        Command::Plain(plain) => Box::pin(send_plain(live, plain, asking)).await,
    };
    match reply {
        Ok(Some(bytes)) => Ok(NodeReply::Bytes(bytes)),
        Ok(None) => Err(Error::new(StoreErrorKind::Garbled, "the reply does not fit the command")),
        Err(error) => match redirection(&error, &live.address) {
            Some(redirection) => Ok(NodeReply::Elsewhere(redirection)),
            None if matches!(call, Command::Transaction(_)) && is_done_in_part(&error, asking) => {
                Err(Error { kind: StoreErrorKind::Garbled, ..Error::of_redis(error) })
            }
            None => Err(Error::of_redis(error)),
        },
    }
}

/// Sends the call of a script and returns the bytes of the reply. `None` if the reply is not a string.
///
/// A take is sent together with other takes if one call can contain several keys. If Redis replies CROSSSLOT, it has
/// executed nothing. This take and all later takes on this connection are then sent in calls of their own. If Redis
/// does not have the script, it has executed nothing either, so the script is loaded, at most [`LOADS_MAX`] times.
async fn send_script(
    live: &LiveConnection,
    request: &ScriptCall<'_, '_>,
    slot: &Arc<ReplySlot>,
    asking: bool,
) -> RedisResult<Option<Vec<u8>>> {
    let reply = match request.take().filter(|_| live.has_all_slots()) {
        Some(take) => live.connection.send_take(slot, &take).await,
        None if asking => Box::pin(live.connection.send_last(slot, &commands(true, &command(request), None))).await,
        None => live.connection.send_in(slot, &command(request)).await,
    };
    let reply = match &reply {
        Err(error) if is_any(error, [ServerErrorKind::CrossSlot, ServerErrorKind::NoScript]) => {
            Box::pin(send_again(live, request, slot, asking, reply)).await
        }
        _ => reply,
    };
    reply.map(|reply| if let Value::BulkString(bytes) = reply { Some(bytes) } else { None })
}

/// Sends the call of a script again after a reply that says that nothing was executed: CROSSSLOT or NOSCRIPT.
async fn send_again(
    live: &LiveConnection,
    request: &ScriptCall<'_, '_>,
    slot: &Arc<ReplySlot>,
    asking: bool,
    mut reply: RedisResult<Value>,
) -> RedisResult<Value> {
    let is = |reply: &RedisResult<Value>, kind| reply.as_ref().is_err_and(|error| is_any(error, [kind]));
    let command = command(request);
    // The call of one take alone has keys of one slot, so this take was sent with others.
    if request.take().is_some() && is(&reply, ServerErrorKind::CrossSlot) {
        live.lacks_slots();
        reply = live.connection.send_last(slot, &commands(asking, &command, None)).await;
    }
    for _ in 0..LOADS_MAX {
        if !is(&reply, ServerErrorKind::NoScript) {
            break;
        }
        let all = commands(asking, &command, Some(request.script()));
        reply = live.connection.send_last(slot, &all).await;
    }
    reply
}

fn is_any<const N: usize>(error: &RedisError, kinds: [ServerErrorKind; N]) -> bool {
    kinds.iter().any(|kind| error.kind() == RedisErrorKind::Server(*kind))
}

/// Sends a transaction and returns the numbers in its reply. `None` if the reply contains anything else.
async fn send_transaction(
    live: &LiveConnection,
    transaction: &Transaction<'_, '_, '_>,
    asking: bool,
) -> RedisResult<Option<Vec<u8>>> {
    let mut all = Pipeline::new();
    if asking {
        all.cmd("ASKING").ignore();
    }
    transaction.write(&mut all);
    match all.query_async(&mut live.connection.clone()).await {
        Ok((reply,)) => Ok(numbers(&reply)),
        Err(error) => Err(error),
    }
}

/// Sends plain commands and returns the texts in the reply to the last command. `None` if the reply contains anything
/// else.
async fn send_plain(live: &LiveConnection, plain: &PlainCommands, asking: bool) -> RedisResult<Option<Vec<u8>>> {
    let mut all = Pipeline::new();
    if asking {
        all.cmd("ASKING").ignore();
    }
    plain.write(&mut all);
    let (reply,): (Value,) = all.query_async(&mut live.connection.clone()).await?;
    Ok(flatten(&reply))
}

/// Returns whether a transaction with these errors may have been executed in part. Each error has the position of its
/// command. There are three cases:
///
/// * The reply to EXEC contains an error: true, because the other commands were executed.
/// * MULTI was refused: true if any other command was not refused, because the node executed it without a transaction.
/// * EXEC was refused with EXECABORT: false. The node refused an earlier command, so it executed no command.
fn is_done_in_part(error: &RedisError, asking: bool) -> bool {
    let errors = error.clone().into_server_errors();
    match errors.as_deref() {
        // An error inside the reply to EXEC.
        Some([(0, _)]) => true,
        // MULTI was refused. Commands were executed unless all of them were refused.
        Some([(first, _), .., (last, error)]) => {
            let (is_aborted, refused) = (error.kind() == Some(ServerErrorKind::ExecAbort), last - first + 1);
            !is_aborted
                && *first <= usize::from(asking)
                && errors.as_deref().is_some_and(|errors| errors.len() < refused)
        }
        _ => false,
    }
}

/// Returns a pipeline: SCRIPT LOAD if a script is given, ASKING if `asking` is true, and then the command. Only the
/// reply to the command is used.
fn commands(asking: bool, command: &Cmd, script: Option<&Script>) -> Pipeline {
    let mut all = Pipeline::new();
    if let Some(script) = script {
        all.cmd("SCRIPT").arg("LOAD").arg(script.source).ignore();
    }
    if asking {
        all.cmd("ASKING").ignore();
    }
    all.add_command(command.clone());
    all
}

/// Returns the call of a script as one command.
///
/// ```text
/// EVALSHA <sha> <number of keys> <key>.. <time or empty> <argument> [<latest time>]
/// ```
pub(crate) fn command(request: &ScriptCall<'_, '_>) -> Cmd {
    let mut command = Cmd::with_capacity(3 + request.keys().len() + 3, COMMAND_BYTES);
    command.arg("EVALSHA").arg(request.script().sha()).arg(request.keys().len());
    for key in request.keys() {
        command.arg(key.as_bytes());
    }
    for argument in request.arguments() {
        command.arg(argument);
    }
    command
}
