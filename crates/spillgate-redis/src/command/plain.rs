//! Plain commands: on the lists that the servers of a fleet share, and to see whether a state exists.
//!
//! These commands count nothing, so no decision is needed. A reply is only split into texts, in the order in which
//! Redis sent them.

use redis::{Cmd, Pipeline, Value};
use spillgate_core::{Algorithm, Hit};

use crate::command::key::{RedisKey, slot_of_tag};
use crate::settings::LogForm;

/// The beginning of all keys of the lists. In a cluster, the text in braces puts them into one slot.
pub(crate) const PREFIX: &str = "sg:{lists}:";
const TAG: &[u8] = b"lists";

/// The length of a text that does not exist.
const NOTHING: u32 = u32::MAX;

/// The texts of a reply. `None` for a text that does not exist.
pub(crate) type PlainReply = Vec<Option<Vec<u8>>>;

/// One or more commands. Only the reply to the last one is used.
#[derive(Debug)]
pub(crate) struct PlainCommands {
    pub(crate) commands: Vec<Cmd>,
    /// The key that errors name.
    pub(crate) key: String,
    /// The slot of the key.
    pub(crate) slot: u16,
}

impl PlainCommands {
    pub(crate) fn one(key: &str, command: &Cmd) -> PlainCommands {
        PlainCommands { commands: vec![command.clone()], key: key.to_owned(), slot: slot_of_tag(TAG) }
    }

    /// Returns commands that are executed in one atomic step.
    pub(crate) fn atomic(key: &str, commands: impl IntoIterator<Item = Cmd>) -> PlainCommands {
        let commands = [redis::cmd("MULTI")].into_iter().chain(commands).chain([redis::cmd("EXEC")]).collect();
        PlainCommands { commands, key: key.to_owned(), slot: slot_of_tag(TAG) }
    }

    /// Returns a command whose reply [shows whether the state of this hit exists](is_state). It costs Redis less than a
    /// script does, and the store has the right to it.
    pub(crate) fn look(hit: &Hit<'_>, log: LogForm) -> PlainCommands {
        let key = RedisKey::with(hit, log);
        let (name, fields): (_, &[&str]) = match (hit.quota.algorithm(), log) {
            (Algorithm::SlidingWindowLog, LogForm::Packed) => ("LLEN", &[]),
            (Algorithm::SlidingWindowLog, LogForm::Zset) => ("ZCARD", &[]),
            (Algorithm::Concurrency, _) => ("HMGET", &["about", "until"]),
            _ => ("GET", &[]),
        };
        let command = redis::cmd(name).arg(key.as_bytes()).arg(fields).clone();
        PlainCommands { commands: vec![command], key: key.to_string(), slot: key.slot() }
    }

    pub(crate) fn write(&self, out: &mut Pipeline) {
        for (index, command) in self.commands.iter().enumerate() {
            out.add_command(command.clone());
            if index + 1 < self.commands.len() {
                out.ignore();
            }
        }
    }
}

/// Returns whether the reply to a [look](PlainCommands::look) shows a state. A list or a sorted set that does not exist has
/// the length 0, and no state is that text.
pub(crate) fn is_state(reply: &PlainReply) -> bool {
    reply.iter().flatten().any(|text| text != b"0")
}

/// Returns all texts and numbers in the reply as bytes, each after its length. The result is `None` if the reply has a
/// value of another type.
pub(crate) fn flatten(value: &Value) -> Option<Vec<u8>> {
    fn append(value: &Value, out: &mut Vec<u8>) -> Option<()> {
        let mut text = |bytes: &[u8]| {
            out.extend(u32::try_from(bytes.len()).ok()?.to_be_bytes());
            out.extend(bytes);
            Some(())
        };
        match value {
            Value::Array(values) => values.iter().try_for_each(|value| append(value, out)),
            Value::BulkString(bytes) => text(bytes),
            Value::SimpleString(line) => text(line.as_bytes()),
            Value::Okay => text(b"OK"),
            Value::Int(number) => text(number.to_string().as_bytes()),
            Value::Nil => {
                out.extend(NOTHING.to_be_bytes());
                Some(())
            }
            _ => None,
        }
    }
    let mut out = Vec::new();
    append(value, &mut out).map(|()| out)
}

/// Returns the texts that [`flatten`] has written. `None` for a text that does not exist.
pub(crate) fn texts(mut bytes: &[u8]) -> PlainReply {
    let mut texts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = u32::from_be_bytes(*length);
        let known = if length == NOTHING { None } else { rest.get(..length as usize) };
        bytes = &rest[known.map_or(0, <[u8]>::len)..];
        texts.push(known.map(<[u8]>::to_vec));
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_taken_apart() {
        let reply = Value::Array(vec![
            Value::BulkString(b"17".to_vec()),
            Value::Array(vec![Value::BulkString(Vec::new()), Value::Int(-3), Value::Nil]),
            Value::Okay,
        ]);
        let taken = texts(&flatten(&reply).expect("all types are known"));
        let taken: Vec<_> = taken.iter().map(|text| text.as_deref().map(String::from_utf8_lossy)).collect();
        assert_eq!(taken, [Some("17".into()), Some("".into()), Some("-3".into()), None, Some("OK".into())]);
        assert_eq!(flatten(&Value::Boolean(true)), None);
        assert_eq!(texts(&[0, 0, 0, 9, 1]), [None], "a text that is cut does not exist");
    }
}
