//! Finds the commands that the Redis user of a store may not use on a Redis server.
//!
//! Without this check, a missing right would show only when a request needs it. The doctor finds all missing rights at
//! once, and changes no state of a limit.
//!
//! | setting `scripts` | the user may run scripts | how each command is tried |
//! |---|---|---|
//! | on | yes | in a script that may not write; Redis checks the right first |
//! | on | no | by itself, with wrong arguments or on a key that does not exist |
//! | off | yes or no | in a transaction that is aborted |

use redis::{Cmd, cmd};
use spillgate_core::StoreErrorKind;

use super::probe::{Probe, Samples, permitted};
use crate::command::script::SCRIPT_COMMANDS;
use crate::error::Error;
use crate::lists::LIST_COMMANDS;
use crate::settings::Settings;

/// The commands that the store needs on a cluster, in addition to the commands of requests. ASKING is for slots that
/// move, and CLUSTER SLOTS is for the slot map.
pub const CLUSTER_COMMANDS: [&str; 2] = ["ASKING", "CLUSTER SLOTS"];

/// A script that calls one command without its effect. Redis first checks the user's right to the command. Only then
/// does it reject a command that writes, because this script may not write.
const TRY: &str = "#!lua flags=no-writes
local key = ARGV[1] ~= 'TIME' and {KEYS[1]} or {}
for i = 2, #ARGV do key[#key + 1] = ARGV[i] end
return redis.pcall(ARGV[1], unpack(key))";

/// Returns the arguments that the command needs after its key. `None` for an unknown command.
fn arguments(command: &str) -> Option<&'static [&'static str]> {
    Some(match command {
        "DEL" | "EXEC" | "GET" | "HGETALL" | "HLEN" | "LLEN" | "LPOP" | "MULTI" | "PTTL" | "TIME" | "ZCARD" => &[],
        "HDEL" | "HGET" | "HMGET" => &["field"],
        "HSET" => &["field", "value"],
        "INCRBY" => &["no number"],
        "LINDEX" => &["0"],
        "LPOS" | "LPUSH" | "RPUSH" => &["value"],
        "LRANGE" | "LTRIM" | "ZRANGE" | "ZREMRANGEBYRANK" => &["0", "-1"],
        "LREM" => &["0", "value"],
        "PEXPIRE" => &["10000"],
        "PEXPIREAT" => &["1"],
        "SET" => &["value", "PX", "10000"],
        "ZADD" => &["1", "member"],
        _ => return None,
    })
}

/// Returns the commands that the user may not use on the store's keys.
///
/// # Errors
/// The connection ended, or a reply did not come in time. A missing right is a finding, not an error.
pub(super) async fn forbidden(
    server: &mut Probe,
    samples: &Samples,
    settings: &Settings,
    in_cluster: bool,
) -> Result<Vec<&'static str>, Error> {
    let mut forbidden = match settings.scripts {
        true => in_scripts(server, samples).await?,
        false => in_transaction(server, samples, &settings.commands()).await?,
    };
    for command in CLUSTER_COMMANDS.into_iter().filter(|_| in_cluster) {
        let mut words = command.split(' ');
        if is_forbidden(server, cmd(words.next().unwrap_or_default()).arg(words.collect::<Vec<_>>())).await? {
            forbidden.push(command);
        }
    }
    Ok(forbidden)
}

/// Tries commands outside of scripts, all in one transaction, which is aborted at the end. If MULTI is forbidden, the
/// commands run without a transaction. Even then they change nothing: the key does not exist, and INCRBY has a wrong
/// argument.
async fn in_transaction(
    server: &mut Probe,
    samples: &Samples,
    commands: &[&'static str],
) -> Result<Vec<&'static str>, Error> {
    // EXEC without MULTI always fails. The error shows whether the right is missing.
    let mut forbidden = if is_forbidden(server, &cmd("EXEC")).await? { vec!["EXEC"] } else { Vec::new() };
    if is_forbidden(server, &cmd("MULTI")).await? {
        forbidden.push("MULTI");
    }
    let key = server.scratch(samples);
    for command in commands.iter().filter(|command| !matches!(**command, "EXEC" | "MULTI")) {
        let Some(arguments) = arguments(command) else { continue };
        let mut call = cmd(command);
        if *command != "TIME" {
            call.arg(key.as_bytes());
        }
        if is_forbidden(server, call.arg(arguments)).await? {
            forbidden.push(command);
        }
    }
    end_transaction(server).await;
    Ok(forbidden)
}

/// Returns the commands of lists that the user may not use. Each command fails, or finds nothing to do.
///
/// # Errors
/// The connection ended, or the reply did not come in time.
pub(super) async fn forbidden_of_lists(server: &mut Probe, samples: &Samples) -> Result<Vec<&'static str>, Error> {
    let key = server.scratch(samples);
    let mut forbidden = Vec::new();
    for command in LIST_COMMANDS {
        let mut call = cmd(command);
        let arguments: &[&str] = match command {
            "MULTI" | "EXEC" => &[],
            "HSCAN" => &["0"],
            "HSET" => &["field", "value", "no value"],
            "SET" => &["value", "PX", "no time"],
            _ => arguments(command).unwrap_or_default(),
        };
        if !matches!(command, "MULTI" | "EXEC") {
            call.arg(key.as_bytes());
        }
        if is_forbidden(server, call.arg(arguments)).await? {
            forbidden.push(command);
        }
        if command == "MULTI" {
            end_transaction(server).await;
        }
    }
    Ok(forbidden)
}

/// Ends a transaction without executing it. GET without a key is an error that aborts the transaction. EXEC then ends
/// the transaction, even if EXEC is forbidden.
async fn end_transaction(server: &mut Probe) {
    for call in ["GET", "EXEC"] {
        let _ = server.query(&cmd(call)).await;
    }
}

/// Returns whether Redis refuses the command because the user has no right to it. If Redis reports another error, the
/// user has the right. If EXEC is forbidden, Redis reports an aborted transaction, and only the text of the error shows
/// the missing right.
///
/// # Errors
/// The connection ended, or the reply did not come in time.
async fn is_forbidden(server: &mut Probe, call: &Cmd) -> Result<bool, Error> {
    match server.query(call).await {
        Err(error) if matches!(error.kind, StoreErrorKind::Timeout | StoreErrorKind::Disconnected) => Err(error),
        Err(error) => Ok(error.kind == StoreErrorKind::NoPermission || error.detail.contains("no permissions to run")),
        Ok(_) => Ok(false),
    }
}

/// Tries the commands that scripts call, in a script without effect. SCRIPT LOAD and EVALSHA are tried first.
async fn in_scripts(server: &mut Probe, samples: &Samples) -> Result<Vec<&'static str>, Error> {
    let key = server.scratch(samples);
    let sha = permitted(server.text(cmd("SCRIPT").arg("LOAD").arg(TRY)).await)?;
    let mut forbidden = if sha.is_none() { vec!["SCRIPT LOAD"] } else { Vec::new() };
    // Redis reports a missing right if the user may not call EVALSHA, and also if the user may not call TIME, the
    // command in the script. The text of the error mentions a script only in the case of TIME.
    let unknown = "0".repeat(40);
    let called = cmd("EVALSHA").arg(sha.as_ref().unwrap_or(&unknown)).arg(1).arg(key.as_bytes()).arg("TIME").clone();
    let called = server.query(&called).await;
    if called.is_err_and(|error| error.kind == StoreErrorKind::NoPermission && !error.detail.contains("script")) {
        forbidden.push("EVALSHA");
    }
    let Some(sha) = sha.filter(|_| forbidden.is_empty()) else {
        forbidden.extend(by_itself(server, samples).await?);
        return Ok(forbidden);
    };
    for command in SCRIPT_COMMANDS {
        let Some(arguments) = arguments(command) else { continue };
        let mut call = cmd("EVALSHA");
        call.arg(&sha).arg(1).arg(key.as_bytes()).arg(command).arg(arguments);
        if is_forbidden(server, &call).await? {
            forbidden.push(command);
        }
    }
    Ok(forbidden)
}

/// Tries each command without a script, because the user may call no script. Each command except a push fails, or finds
/// nothing to do.
async fn by_itself(server: &mut Probe, samples: &Samples) -> Result<Vec<&'static str>, Error> {
    let key = server.scratch(samples);
    let mut forbidden = Vec::new();
    let is_push = |command: &str| matches!(command, "LPUSH" | "RPUSH");
    for command in SCRIPT_COMMANDS.into_iter().filter(|command| !is_push(command)) {
        let mut call = cmd(command);
        if command != "TIME" {
            call.arg(key.as_bytes());
        }
        let wrong: Option<&[&str]> = match command {
            "HSET" => Some(&["field", "value", "no value"]),
            "SET" => Some(&["value", "PX", "no time"]),
            "ZADD" => Some(&["no score", "member"]),
            _ => arguments(command),
        };
        if is_forbidden(server, call.arg(wrong)).await? {
            forbidden.push(command);
        }
    }
    // A push fails if the key has a string, so a string is stored first. If SET is forbidden, a push creates a list,
    // and DEL must remove the list. If DEL is forbidden too, no push is tried.
    let text = server.query(cmd("SET").arg(key.as_bytes()).arg("value").arg("PX").arg(10_000)).await.is_ok();
    for command in SCRIPT_COMMANDS.into_iter().filter(|command| is_push(command)) {
        let is_tried = text || !forbidden.contains(&"DEL");
        if !is_tried || is_forbidden(server, cmd(command).arg(key.as_bytes()).arg("value")).await? {
            forbidden.push(command);
        }
    }
    let _ = server.query(cmd("DEL").arg(key.as_bytes())).await;
    Ok(forbidden)
}

#[cfg(test)]
mod tests {
    use super::arguments;
    use crate::command::script::SCRIPT_COMMANDS;
    use crate::command::transaction::TRANSACTION_COMMANDS;

    #[test]
    fn every_command_can_be_tried() {
        for command in SCRIPT_COMMANDS.into_iter().chain(TRANSACTION_COMMANDS) {
            assert!(arguments(command).is_some(), "{command}");
        }
    }
}
