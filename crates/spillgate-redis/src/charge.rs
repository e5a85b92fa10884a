//! Charges what servers of other regions have admitted: the script `merge`, as a command, and its reply.
//!
//! ```text
//! EVALSHA <sha of merge> 4 sg:{kP2d7}:Zx.. sg:{kP2d7}@bT.. sg:{a8Kq1}:9u.. sg:{a8Kq1}@3v..  "" <two totals>
//! < <one byte for each total>
//! ```

use std::time::Duration;

use redis::{Cmd, cmd};
use spillgate_core::{
    Algorithm, Anchor, Binding, Charge, Charged, ChargedStore, Hit, MAX_CHARGES, Op, OpKind, Quota, Span, StoreError,
    StoreErrorKind, Time,
};
use tokio::time::Instant;

use crate::command::args::{HitArgs, algorithm};
use crate::command::bytes::Writer;
use crate::command::key::{RedisKey, slot_of_tag};
use crate::command::plain::PlainCommands;
use crate::command::request::supports;
use crate::command::script::Script;
use crate::error::Error;
use crate::settings::LogForm;
use crate::store::RedisStore;

/// The commands that a server of another region needs on the keys `sg:*`, to charge what it has admitted
/// ([`ChargedStore`]). On a cluster, it also needs [`CLUSTER_COMMANDS`](crate::doctor::CLUSTER_COMMANDS).
///
/// ```
/// let rights: Vec<String> =
///     spillgate_redis::CHARGE_COMMANDS.iter().map(|name| format!("+{}", name.to_lowercase().replace(' ', "|"))).collect();
/// let rule = format!("ACL SETUSER eu on >secret ~sg:* {}", rights.join(" "));
/// assert!(rule.ends_with("~sg:* +evalsha +script|load +get +set +hget +hset +pexpire +time"));
/// ```
pub const CHARGE_COMMANDS: [&str; 8] = ["EVALSHA", "SCRIPT LOAD", "GET", "SET", "HGET", "HSET", "PEXPIRE", "TIME"];

/// The key of what the servers of a region write about themselves.
const ABOUT: &str = "sg:{regions}";

/// How much longer the hash lives than what is told of its span, because messages can be under way.
const UNDER_WAY: Duration = Duration::from_secs(10);

impl ChargedStore for RedisStore {
    fn charges_per_call(&self) -> usize {
        // In a cluster, all keys of a call have to be in one slot.
        if self.is_cluster() { 1 } else { MAX_CHARGES }
    }

    async fn charge(
        &self,
        within: Duration,
        charges: &[Charge<'_>],
        results: &mut [Charged],
    ) -> Result<(), StoreError> {
        self.charge_at(None, within, charges, results).await.map_err(|error| self.reason(error))
    }

    async fn about(&self, within: Duration) -> Result<Option<String>, StoreError> {
        let reply = self.send_plain(&about(&cmd("GET")), within).await.map_err(|error| self.reason(error))?;
        Ok(reply.into_iter().next().flatten().map(|text| String::from_utf8_lossy(&text).into_owned()))
    }
}

/// Returns a command on what the servers of a region write about themselves.
fn about(command: &Cmd) -> PlainCommands {
    let commands = vec![command.clone().arg(ABOUT).clone()];
    PlainCommands { commands, key: ABOUT.to_owned(), slot: slot_of_tag(b"regions") }
}

impl RedisStore {
    /// Returns why a call to another region failed. If nothing was sent, the reason is why there is no connection. A request
    /// must not get that error, because it can mean that units were charged. A total can be told again in any case.
    fn reason(&self, error: Error) -> StoreError {
        let is_unsent = error.kind() == StoreErrorKind::NotSent;
        StoreError::from(if is_unsent { self.last_error().unwrap_or(error) } else { error })
    }

    /// Writes what the servers of this region say about themselves, for those of other regions
    /// ([`about`](ChargedStore::about)). The text stays until another one is written.
    ///
    /// # Errors
    /// The store did not answer, or the user may not write.
    pub async fn write_about(&self, text: &str, within: Duration) -> Result<(), Error> {
        let mut write = about(&cmd("SET"));
        write.commands.iter_mut().for_each(|set| {
            set.arg(text);
        });
        self.send_plain(&write, within).await.map(drop)
    }

    /// Returns what servers of other regions have charged of a state in a span: for each, its id and its total. A server of
    /// the own region is not among them, because nobody tells it what it has admitted itself.
    ///
    /// # Errors
    /// The store did not answer, or the user may not read.
    pub async fn charged(
        &self,
        key: u128,
        quota: &Quota,
        span: Span,
        within: Duration,
    ) -> Result<Vec<(u64, u64)>, Error> {
        let hit = Hit::new(key, quota, Op::Peek, Binding::Enforce);
        let name = RedisKey::of_span(&hit, span);
        let commands = vec![cmd("HGETALL").arg(name.as_bytes()).clone()];
        let plain = PlainCommands { commands, key: name.to_string(), slot: name.slot() };
        let reply = self.send_plain(&plain, within).await?;
        let number = |text: &Option<Vec<u8>>| std::str::from_utf8(text.as_deref()?).ok()?.parse().ok();
        let id = |text: &Option<Vec<u8>>| Some(u64::from_be_bytes(text.as_deref()?.try_into().ok()?));
        // What another program has written there is no total.
        Ok(reply.chunks_exact(2).filter_map(|pair| Some((id(&pair[0])?, number(&pair[1])?))).collect())
    }

    /// Charges totals, as [`ChargedStore::charge`] does. A test passes the time of the charge.
    #[doc(hidden)]
    pub async fn charge_at(
        &self,
        now: Option<Time>,
        within: Duration,
        charges: &[Charge<'_>],
        results: &mut [Charged],
    ) -> Result<(), Error> {
        let malformed = |why: &'static str| Err(Error::from(StoreError::malformed(why)));
        if charges.len() != results.len() || charges.len() > self.charges_per_call() {
            return malformed("the number of charges does not fit the call");
        }
        if !charges.iter().all(is_charged) {
            return malformed("such a limit is not charged by other regions");
        }
        let Some(first) = charges.first() else { return Ok(()) };
        let call = call(now, charges);
        let key = RedisKey::of(&hit(first));
        // A script that is missing costs a second call, within the same deadline.
        let ends_at = Instant::now() + within;
        let send = async |commands| {
            let plain = PlainCommands { commands, key: key.to_string(), slot: key.slot() };
            self.send_plain(&plain, ends_at.saturating_duration_since(Instant::now())).await
        };
        let reply = match send(vec![call.clone()]).await {
            Err(error) if error.kind() == StoreErrorKind::NoScript => {
                let load = cmd("SCRIPT").arg("LOAD").arg(Script::MERGE.source).clone();
                send(vec![load, call]).await?
            }
            reply => reply?,
        };
        let codes = reply.into_iter().next().flatten().filter(|codes| codes.len() == charges.len());
        let known = |code: &u8| Charged::ALL.get(usize::from(*code)).copied();
        let told: Option<Vec<Charged>> = codes.and_then(|codes| codes.iter().map(known).collect());
        let garbled = || Error::new(StoreErrorKind::Garbled, "merge did not answer with results");
        results.copy_from_slice(&told.ok_or_else(garbled)?);
        Ok(())
    }
}

/// Returns whether the script can charge the state of this quota.
fn is_charged(charge: &Charge<'_>) -> bool {
    let is_plain = matches!(
        charge.quota.algorithm(),
        Algorithm::TokenBucket
            | Algorithm::FixedWindow(Anchor::Epoch)
            | Algorithm::SlidingWindowCounter { segments: 1 }
    );
    is_plain && charge.quota.limit() > 0 && supports(charge.quota, OpKind::Force)
}

fn hit<'q>(charge: &Charge<'q>) -> Hit<'q> {
    Hit::new(charge.key, charge.quota, Op::Force { cost: 1 }, Binding::Enforce)
}

fn call(now: Option<Time>, charges: &[Charge<'_>]) -> Cmd {
    let (mut time, mut totals) = (Writer::default(), Writer::default());
    if let Some(now) = now {
        time.time(now.as_nanos());
    }
    let mut call = cmd("EVALSHA");
    call.arg(Script::MERGE.sha()).arg(2 * charges.len());
    for charge in charges {
        let hit = hit(charge);
        call.arg(RedisKey::of(&hit).as_bytes()).arg(RedisKey::of_span(&hit, charge.span).as_bytes());
        let life = Duration::from_nanos(charge.quota.span_life_ns(charge.span)) + UNDER_WAY;
        totals.byte(algorithm(charge.quota, LogForm::Packed));
        totals.0.extend(charge.id.to_be_bytes());
        totals.units(charge.total);
        totals.units(u64::try_from(life.as_millis()).unwrap_or(u64::MAX));
        totals.time_us(charge.span.start_ns);
        HitArgs { hit: &hit, state: 0, cost_on_state: 0, log: LogForm::Packed }.write_quota(&mut totals);
    }
    call.arg(&time.0[..]).arg(&totals.0[..]).clone()
}
