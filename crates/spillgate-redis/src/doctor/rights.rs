//! What a server lets our user do.

use redis::{Cmd, cmd};

use super::patient::{Patient, Questions};
use crate::failure::{Failed, Failure};
use crate::{COMMANDS, PLAIN_COMMANDS};

/// Tries a command on a key as the scripts do.
const TRY: &str = "local key = ARGV[1] ~= 'TIME' and {KEYS[1]} or {}
for i = 2, #ARGV do key[#key + 1] = ARGV[i] end
return redis.pcall(ARGV[1], unpack(key))";

/// What follows the key, so that a command is complete; what it does does not matter. `None` for one that is not known.
fn arguments(command: &str) -> Option<&'static [&'static str]> {
    Some(match command {
        "DEL" | "EXEC" | "GET" | "HGETALL" | "LLEN" | "LPOP" | "MULTI" | "PTTL" | "TIME" | "ZCARD" => &[],
        "HDEL" | "HGET" | "HMGET" => &["field"],
        "HSET" => &["field", "value"],
        "INCRBY" => &["1"],
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

/// The commands that the user may not use on keys of ours, where there are no scripts.
pub(super) async fn forbidden_plain(server: &mut Patient, asked: &Questions) -> Result<Vec<&'static str>, Failed> {
    let key = server.scratch(asked);
    let mut forbidden = Vec::new();
    for command in PLAIN_COMMANDS {
        let Some(arguments) = arguments(command) else { continue };
        let mut call = cmd(command);
        if !matches!(command, "EXEC" | "MULTI" | "TIME") {
            call.arg(key.as_bytes());
        }
        if is_forbidden(server, call.arg(arguments)).await? {
            forbidden.push(command);
        }
    }
    // MULTI may have been let in, and EXEC not.
    let _ = server.ask(&cmd("DISCARD")).await;
    forbidden.sort_unstable();
    Ok(forbidden)
}

/// Whether the server keeps the user from it; another error comes after that.
async fn is_forbidden(server: &mut Patient, call: &Cmd) -> Result<bool, Failed> {
    match server.ask(call).await {
        Err(failed) if matches!(failed.class, Failure::Timeout | Failure::Disconnected) => Err(failed),
        asked => Ok(asked.is_err_and(|failed| failed.class == Failure::Noperm)),
    }
}

/// The commands that the user may not use on keys of ours, in scripts.
pub(super) async fn forbidden(server: &mut Patient, asked: &Questions) -> Result<Vec<&'static str>, Failed> {
    let key = server.scratch(asked);
    let sha = match server.text(cmd("SCRIPT").arg("LOAD").arg(TRY)).await {
        Err(failed) if failed.class == Failure::Noperm => return Ok(vec!["SCRIPT LOAD"]),
        loaded => loaded?,
    };
    let mut forbidden = Vec::new();
    // Who may not even call a script is told so in other words than one whose script may not do this.
    let called = server.ask(cmd("EVALSHA").arg(&sha).arg(1).arg(key.as_bytes()).arg("TIME")).await;
    if called.is_err_and(|failed| failed.class == Failure::Noperm && !failed.detail.contains("script")) {
        return Ok(vec!["EVALSHA"]);
    }
    for command in COMMANDS {
        let Some(arguments) = arguments(command) else { continue };
        let mut call = cmd("EVALSHA");
        call.arg(&sha).arg(1).arg(key.as_bytes()).arg(command).arg(arguments);
        if is_forbidden(server, &call).await? {
            forbidden.push(command);
        }
    }
    Ok(forbidden)
}

#[cfg(test)]
mod tests {
    use super::arguments;
    use crate::{COMMANDS, PLAIN_COMMANDS};

    #[test]
    fn every_command_can_be_tried() {
        for command in COMMANDS.into_iter().chain(PLAIN_COMMANDS) {
            assert!(arguments(command).is_some(), "{command}");
        }
    }
}
