//! Measures one Redis server: its clock, its scripts and its latency.
//!
//! A Redis server that hangs must not stop the doctor, so each reply has a timeout.

use std::time::Duration;

use redis::{Cmd, ConnectionAddr, Value, cmd, from_redis_value};
use spillgate_core::{Anchor, Binding, Hit, Op, Quota, QuotaError, StoreErrorKind, Time};
use tokio::time::{Instant, timeout};

use crate::command::key::RedisKey;
use crate::command::request::ScriptCall;
use crate::connect::connector::OpenConnection;
use crate::error::Error;
use crate::node::send::command;
use crate::settings::LogForm;

/// The number of calls whose time is measured.
pub const CALLS: usize = 200;

/// The number of times that the server's clock is read. The reading with the shortest round trip is used.
const READINGS: usize = 8;
/// The doctor tries at most this many keys to find a key in a slot of the Redis server.
const KEYS_MAX: u128 = 1 << 18;
/// The low bits of the doctor's keys. They do not affect the slot, so all keys can share them.
const OWN: u128 = 0x7370_696c_6c67_6174_6520_6463;

/// A connection whose replies have a timeout.
pub(super) struct Probe {
    connected: OpenConnection,
    /// How long each reply may take.
    timeout: Duration,
    /// The key on which the scripts of the doctor take units. It is in a slot of this server.
    pub(super) key: u128,
    /// The keys that scripts may have written. They are removed at the end.
    touched: Vec<RedisKey>,
    /// The error that ended the connection. The connection must not be used after that.
    lost: Option<Error>,
}

impl Probe {
    pub(super) fn new(connected: OpenConnection, timeout: Duration) -> Probe {
        Probe { connected, timeout, key: OWN, touched: Vec::new(), lost: None }
    }

    pub(super) fn address(&self) -> &ConnectionAddr {
        &self.connected.address
    }

    /// Returns the reply to one command. If the connection has ended, the error that ended it is returned at once.
    ///
    /// # Errors
    /// The server's error, [`Timeout`](StoreErrorKind::Timeout), or the error that ended the connection.
    pub(super) async fn query(&mut self, command: &Cmd) -> Result<Value, Error> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let reply = within(self.timeout, self.connected.query(command)).await;
        self.lost = reply.as_ref().err().filter(|error| error.kind == StoreErrorKind::Disconnected).cloned();
        reply
    }

    /// Returns an error if the server needs a login and the user has not logged in.
    pub(super) async fn check_login(&mut self) -> Result<(), Error> {
        match self.query(&cmd("PING")).await {
            Err(error) if error.kind != StoreErrorKind::NoPermission || error.detail.contains("NOAUTH") => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) async fn text(&mut self, command: &Cmd) -> Result<String, Error> {
        let value = self.query(command).await?;
        from_redis_value(value).map_err(|error| Error::new(StoreErrorKind::Other, error.to_string()))
    }

    /// Returns a key that requests never write. The doctor tries the user's rights on this key.
    pub(super) fn scratch(&self, samples: &Samples) -> RedisKey {
        RedisKey::of(&Hit::new(self.key, &samples.scratch, Op::Peek, Binding::Enforce))
    }

    /// Returns how far the server's clock is ahead of the local clock, and the greatest error of that number. `None` if
    /// the user may not call TIME.
    pub(super) async fn ahead_ns(&mut self, now: &(dyn Fn() -> Time + Sync)) -> Result<Option<(i64, u64)>, Error> {
        let mut best: Option<(i64, u64)> = None;
        for _ in 0..READINGS {
            let before_ns = now().as_nanos();
            let Some(reply) = permitted(self.query(&cmd("TIME")).await)? else { return Ok(None) };
            let after_ns = now().as_nanos();
            let broken = |_| Error::new(StoreErrorKind::Other, "the reply to TIME is not a time");
            let (secs, micros): (u64, u64) = from_redis_value(reply).map_err(broken)?;
            let half_ns = after_ns.saturating_sub(before_ns) / 2;
            let theirs_ns = i128::from(secs) * 1_000_000_000 + i128::from(micros) * 1000;
            let ahead_ns = i64::try_from(theirs_ns - i128::from(before_ns + half_ns)).unwrap_or(i64::MAX);
            if best.is_none_or(|(_, shortest_ns)| half_ns < shortest_ns) {
                best = Some((ahead_ns, half_ns));
            }
        }
        Ok(best)
    }

    /// Runs each script once. Returns the names of the scripts, each with its error if it failed.
    pub(super) async fn scripts(&mut self, samples: &Samples) -> Vec<(&'static str, Option<Error>)> {
        let mut run = Vec::new();
        for (hits, log) in samples.requests(self.key) {
            let Ok(request) = ScriptCall::with(None, &hits, log) else { continue };
            let error = self.run(&request).await.err();
            run.push((request.script().name, error));
        }
        run
    }

    /// Loads the script of the request, because the server may not have it yet, and runs it.
    async fn run(&mut self, request: &ScriptCall<'_, '_>) -> Result<(), Error> {
        self.touched.extend(request.keys());
        self.query(cmd("SCRIPT").arg("LOAD").arg(request.script().source)).await?;
        self.query(&command(request)).await.map(drop)
    }

    /// Measures calls that are made one after the other, and returns their durations, sorted. Each call runs a script,
    /// or GET if scripts are off.
    pub(super) async fn calls(&mut self, samples: &Samples, scripts: bool) -> Result<Vec<Duration>, Error> {
        let hits = samples.hits(self.key);
        let call = match scripts {
            true => command(&ScriptCall::new(None, &hits[..1])?),
            false => cmd("GET").arg(self.scratch(samples).as_bytes()).clone(),
        };
        let mut times = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let begun = Instant::now();
            self.query(&call).await?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        Ok(times)
    }

    /// Removes the keys that the scripts created. If the user may not remove keys, they expire in a minute or two.
    pub(super) async fn clean_up(&mut self) {
        for name in std::mem::take(&mut self.touched) {
            let _ = self.query(cmd("DEL").arg(name.as_bytes())).await;
        }
    }
}

/// Returns the reply, or `None` if the user may not use the command.
pub(super) fn permitted<T>(reply: Result<T, Error>) -> Result<Option<T>, Error> {
    match reply {
        Err(error) if error.kind == StoreErrorKind::NoPermission => Ok(None),
        reply => reply.map(Some),
    }
}

/// Returns the reply, or an error if it has not come after this time.
pub(super) async fn within<T>(time: Duration, reply: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(time, reply).await.unwrap_or_else(|_| Err(late(time)))
}

pub(super) fn late(time: Duration) -> Error {
    Error::new(StoreErrorKind::Timeout, format!("no answer within {time:?}"))
}

/// The quotas of the doctor's requests: four quotas of one minute with different algorithms, and `scratch`.
pub(super) struct Samples {
    quotas: [Quota; 4],
    /// A quota whose states have other keys than the states of `quotas`.
    scratch: Quota,
}

impl Samples {
    pub(super) fn new() -> Result<Samples, QuotaError> {
        let (limit, minute) = (1000, Duration::from_secs(60));
        Ok(Samples {
            quotas: [
                Quota::fixed_window(limit, minute).anchor(Anchor::FirstHit).build()?,
                Quota::token_bucket(limit, minute).build()?,
                Quota::sliding_window_counter(limit, minute).build()?,
                Quota::sliding_window_log(limit, minute).build()?,
            ],
            scratch: Quota::concurrency(1).build()?,
        })
    }

    /// Returns a take on each quota.
    fn hits(&self, key: u128) -> Vec<Hit<'_>> {
        self.quotas.iter().map(|quota| Hit::new(key, quota, Op::take(1), Binding::Enforce)).collect()
    }

    /// Returns one request for each script.
    fn requests(&self, key: u128) -> Vec<(Vec<Hit<'_>>, LogForm)> {
        let hits = self.hits(key);
        let alone = hits.iter().map(|hit| (vec![*hit], LogForm::Packed));
        let peek = hits[0].with_op(Op::Peek);
        let others =
            [(vec![hits[3]], LogForm::Zset), (hits[..2].to_vec(), LogForm::Packed), (vec![peek], LogForm::Packed)];
        alone.chain(others).collect()
    }

    /// Returns a key of the doctor in a slot that `has` accepts.
    pub(super) fn key_in(&self, has: impl Fn(u16) -> bool) -> Option<u128> {
        let mut keys = (0..KEYS_MAX).map(|number| number << Hit::SLOT_SHIFT | OWN);
        keys.find(|key| has(RedisKey::of(&self.hits(*key)[0]).slot()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Samples;
    use crate::command::request::ScriptCall;
    use crate::command::script::Script;

    #[test]
    fn every_script_is_run() {
        let samples = Samples::new().expect("valid");
        let requests = samples.requests(7);
        let run =
            requests.iter().map(|(hits, log)| ScriptCall::with(None, hits, *log).expect("well formed").script().name);
        let all: BTreeSet<_> = Script::ALL.iter().map(|script| script.name).collect();
        assert_eq!(run.collect::<BTreeSet<_>>(), all);
    }

    #[test]
    fn there_is_a_key_for_every_slot() {
        let samples = Samples::new().expect("valid");
        for slot in [0, 1, 8191, 16383] {
            assert!(samples.key_in(|other| other == slot).is_some(), "{slot}");
        }
        assert_eq!(samples.key_in(|_| false), None);
    }
}
