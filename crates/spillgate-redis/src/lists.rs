//! Small lists that the servers of a fleet share: each entry is a text with a name.
//!
//! A list is a hash in Redis. All lists share one version, which is a text that the caller chooses. Each write replaces
//! it, except [`take_from_list`](RedisStore::take_from_list) and [`change_list`](RedisStore::change_list). So one GET tells a server whether a list has changed, even
//! after a failover that has lost the last writes.
//!
//! ```text
//! sg:{lists}:version     the version
//! sg:{lists}:blocks      a hash for each list: the name of each entry, and its text
//! ```
//!
//! The lists need no scripts, so a store without scripts has them too. Writes are transactions.

use std::time::Duration;

use redis::{Cmd, cmd};
use spillgate_core::StoreErrorKind;
use tokio::time::Instant;

use crate::command::plain::{PREFIX, PlainCommands};
use crate::error::Error;
use crate::store::RedisStore;

/// The commands that the lists need. The Redis user needs the right to call them on keys `sg:*`. Without these rights,
/// the store still decides all requests, but has no lists.
///
/// ```
/// let rights: Vec<String> = spillgate_redis::LIST_COMMANDS.iter().map(|name| format!("+{}", name.to_lowercase())).collect();
/// assert!(rights.contains(&"+hscan".to_owned()));
/// ```
pub const LIST_COMMANDS: [&str; 10] =
    ["EXEC", "GET", "HDEL", "HLEN", "HMGET", "HSCAN", "HSET", "MULTI", "PEXPIRE", "SET"];

/// How many entries one HSCAN asks for. Even the reply with the longest entries is then short enough to be read.
const PAGE_ENTRIES: usize = 100;
/// A scan uses at most this many HSCANs for each page of a list with `max` entries. It is more than one, because an HSCAN can return an
/// empty page.
const READS_FOR_PAGE: usize = 4;
/// The bytes that an entry may have on average: a list with more than `max` times as many is not read. Other programs can
/// write longer entries than this store, and the reader keeps all entries in memory.
const ENTRY_BYTES: usize = 12 << 10;
/// A list is scanned at most this many times. It is scanned again if entries are missing at the end of a scan.
const SCANS_MAX: usize = 3;

/// An entry of a list: its name and its text.
pub type ListEntry = (Vec<u8>, Vec<u8>);

/// The outcome of [`RedisStore::put_in_list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListWrite {
    /// The version of the lists before the write. `None` if there was none, or if nothing was written.
    pub before: Option<Vec<u8>>,
    /// `false` if the list was full, so that nothing was written.
    pub is_done: bool,
}

impl RedisStore {
    /// Returns the version of the lists. `None` if there was no write yet, or if the version has expired since.
    ///
    /// # Errors
    /// The store did not answer, or refused a command.
    pub async fn list_version(&self, timeout: Duration) -> Result<Option<Vec<u8>>, Error> {
        let key = key("version");
        let reply = self.send_plain(&PlainCommands::one(&key, cmd("GET").arg(&key)), timeout).await?;
        Ok(reply.into_iter().next().flatten())
    }

    /// Sets the version of the lists, which Redis keeps for the time `life`. With `if_missing`, sets it only if there is
    /// none. Returns whether it was set.
    ///
    /// # Errors
    /// The store did not answer, or refused a command. The version may be set nevertheless.
    pub async fn set_list_version(
        &self,
        (version, life): (&[u8], Duration),
        if_missing: bool,
        timeout: Duration,
    ) -> Result<bool, Error> {
        let key = key("version");
        let mut set = cmd("SET");
        set.arg(&key).arg(version).arg("PX").arg(life.as_millis().to_string());
        if if_missing {
            set.arg("NX");
        }
        let reply = self.send_plain(&PlainCommands::one(&key, &set), timeout).await?;
        Ok(reply.first().is_some_and(Option::is_some))
    }

    /// Returns how many entries a list has.
    ///
    /// # Errors
    /// The store did not answer, or refused a command.
    pub async fn list_length(&self, name: &str, timeout: Duration) -> Result<usize, Error> {
        let key = key(name);
        number(self.send_plain(&PlainCommands::one(&key, cmd("HLEN").arg(&key)), timeout).await?.first())
    }

    /// Adds, replaces and removes entries in one step, without a change of the version. Redis keeps the list for the time
    /// `life`.
    ///
    /// # Errors
    /// The store did not answer, or refused a command. The list may be changed nevertheless.
    pub async fn change_list(
        &self,
        name: &str,
        put: &[(&[u8], &[u8])],
        removed: &[&[u8]],
        life: Duration,
        timeout: Duration,
    ) -> Result<(), Error> {
        let key = key(name);
        let mut write = Vec::new();
        if !put.is_empty() {
            write.push(cmd("HSET").arg(&key).arg(put).clone());
        }
        if !removed.is_empty() {
            write.push(cmd("HDEL").arg(&key).arg(removed).clone());
        }
        write.push(cmd("PEXPIRE").arg(&key).arg(life.as_millis().to_string()).clone());
        self.send_plain(&PlainCommands::atomic(&key, write), timeout).await.map(drop)
    }

    /// Returns all entries of a list, in any order. Changes that other servers make during the read can be missing. In
    /// that case, the version of the lists is no longer the version that it was before the read.
    ///
    /// # Errors
    /// The store did not send the whole list within `timeout`, or it refused a command. Also an error if the list has
    /// more than `max` entries, or very long ones.
    pub async fn read_list(&self, name: &str, max: usize, timeout: Duration) -> Result<Vec<ListEntry>, Error> {
        let (key, ends_at) = (key(name), Instant::now() + timeout);
        for _ in 0..SCANS_MAX {
            let length = self.list_length(name, left(ends_at)).await?;
            if length > max {
                let detail = format!(
                    "{key} has {length} entries, and {max} can be read: if another program wrote them, remove them (HDEL), or end all entries: DEL {key}, and SET {} cleared",
                    self::key("version")
                );
                return Err(Error::new(StoreErrorKind::Other, detail));
            }
            // A cursor of HSCAN is valid in one Redis process only. After a failover or a restart, another process
            // continues the scan. This process can leave entries out although the version is the same.
            let entries = self.scan_list(&key, max, ends_at).await?;
            if entries.len() >= length {
                return Ok(entries);
            }
        }
        Err(Error::new(StoreErrorKind::Other, format!("{key} has more entries than the server shows")))
    }

    async fn scan_list(&self, key: &str, max: usize, ends_at: Instant) -> Result<Vec<ListEntry>, Error> {
        let (mut entries, mut bytes, mut cursor) = (Vec::new(), 0, b"0".to_vec());
        for _ in 0..READS_FOR_PAGE * (max / PAGE_ENTRIES + 1) {
            let scan = cmd("HSCAN").arg(key).arg(&cursor[..]).arg("COUNT").arg(PAGE_ENTRIES).clone();
            let mut reply = self.send_plain(&PlainCommands::one(key, &scan), left(ends_at)).await?.into_iter();
            cursor = reply.next().flatten().ok_or_else(broken)?;
            while let (Some(Some(field)), Some(Some(text))) = (reply.next(), reply.next()) {
                bytes += field.len() + text.len();
                entries.push((field, text));
            }
            if bytes > max * ENTRY_BYTES {
                let detail = format!("{key} has more than {} bytes, and no more can be read", max * ENTRY_BYTES);
                return Err(Error::new(StoreErrorKind::Other, detail));
            }
            // Redis can send an entry twice while it enlarges its hash table.
            if cursor == b"0" {
                entries.sort_unstable();
                entries.dedup_by(|a, b| a.0 == b.0);
                return if entries.len() > max { Err(broken()) } else { Ok(entries) };
            }
            if entries.len() > 2 * max {
                break;
            }
        }
        Err(broken())
    }

    /// Adds an entry, or replaces the entry with the same name. If the list has `max` entries already, a new entry is
    /// not added. If several servers add entries at the same moment, the list can have a few entries more than `max`.
    /// The extra entries are not removed: another server may have given them a new text meanwhile, which would be lost. A write sets the version of the
    /// lists to `version`, and Redis keeps the version and this list for `life`.
    ///
    /// # Errors
    /// The store did not answer, or refused a command. If the write
    /// [may have been applied](StoreErrorKind::may_have_been_applied), the entry may be in the list.
    pub async fn put_in_list(
        &self,
        (name, max): (&str, usize),
        (field, text): (&[u8], &[u8]),
        (version, life): (&[u8], Duration),
        timeout: Duration,
    ) -> Result<ListWrite, Error> {
        // This call fails if the version has a wrong type. In the transaction below, only the GET would fail, and the
        // other commands would be executed.
        self.list_version(timeout).await?;
        let (key, version_key) = (key(name), key("version"));
        // This transaction changes nothing, but it fails if a right is missing. Without the right to transactions,
        // Redis would execute the writes below one by one. Without the right to HSCAN, the entry would be in the list,
        // but no server could read it. The scan looks for a name that no entry has.
        let look = [
            cmd("HLEN").arg(&key).clone(),
            cmd("HMGET").arg(&key).arg(field).clone(),
            cmd("HSCAN").arg(&key).arg(0).arg("MATCH").arg("-").arg("COUNT").arg(1).clone(),
        ];
        let reply = self.send_plain(&PlainCommands::atomic(&key, look), timeout).await?;
        let is_known = reply.get(1).is_some_and(Option::is_some);
        if number(reply.first())? >= max && !is_known {
            return Ok(ListWrite { before: None, is_done: false });
        }
        let life_ms = life.as_millis().to_string();
        let write = [
            cmd("GET").arg(&version_key).clone(),
            cmd("SET").arg(&version_key).arg(version).arg("PX").arg(&life_ms).clone(),
            cmd("HSET").arg(&key).arg(field).arg(text).clone(),
            cmd("PEXPIRE").arg(&key).arg(&life_ms).clone(),
        ];
        let reply = self.send_plain(&PlainCommands::atomic(&key, write), timeout).await?;
        let [before, _, _, _] = &reply[..] else { return Err(broken()) };
        Ok(ListWrite { before: before.clone(), is_done: true })
    }

    /// Removes entries, and sets the version of the lists to `version` for the time `life`. Returns the version from
    /// before the removal.
    ///
    /// # Errors
    /// The store did not answer, or refused a command. The entries may be removed nevertheless.
    pub async fn remove_from_list(
        &self,
        name: &str,
        fields: &[&[u8]],
        (version, life): (&[u8], Duration),
        timeout: Duration,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.list_version(timeout).await?;
        let (key, version_key) = (key(name), key("version"));
        let write = [
            cmd("GET").arg(&version_key).clone(),
            cmd("SET").arg(&version_key).arg(version).arg("PX").arg(life.as_millis().to_string()).clone(),
            cmd("HDEL").arg(&key).arg(fields).clone(),
        ];
        let reply = self.send_plain(&PlainCommands::atomic(&key, write), timeout).await?;
        let [before, _, _] = &reply[..] else { return Err(broken()) };
        Ok(before.clone())
    }

    /// Removes entries without a change of the version, and returns their texts. The text is `None` for an entry that
    /// is not in the list.
    ///
    /// # Errors
    /// The store did not answer, or refused a command. The entries may be removed nevertheless.
    pub async fn take_from_list(
        &self,
        name: &str,
        fields: &[&[u8]],
        timeout: Duration,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let key = key(name);
        let write: [Cmd; 2] = [cmd("HMGET").arg(&key).arg(fields).clone(), cmd("HDEL").arg(&key).arg(fields).clone()];
        let mut reply = self.send_plain(&PlainCommands::atomic(&key, write), timeout).await?;
        reply.truncate(fields.len());
        Ok(reply)
    }
}

fn left(ends_at: Instant) -> Duration {
    ends_at.saturating_duration_since(Instant::now())
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

fn number(text: Option<&Option<Vec<u8>>>) -> Result<usize, Error> {
    let digits = text.and_then(|text| std::str::from_utf8(text.as_deref()?).ok());
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(broken)
}

fn broken() -> Error {
    Error::new(StoreErrorKind::Garbled, "the server did not answer with a list")
}
