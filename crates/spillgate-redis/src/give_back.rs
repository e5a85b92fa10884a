//! Gives back the units of requests that Redis decided, but whose callers no longer wait.
//!
//! A command that is written is executed, even if its reply comes after the deadline or its caller has gone. Without
//! this module, nobody would own the units that such a request took: a permit would stay taken until its lease ends.
//!
//! ```text
//! store:  take 1 permit          (the deadline passes, and the caller gets an error)
//! Redis:  allowed, receipt 17    (late)
//! store:  refund 1 permit of receipt 17
//! ```
//!
//! | what happened to the take | units |
//! |---|---|
//! | it was never written | nothing to give back |
//! | its reply came late, and it was refused | nothing to give back |
//! | its reply came late, and it was allowed | refunded by receipt; counted in `given_back` when Redis confirms it |
//! | the connection ended, or the reply is invalid | counted in `lost`, because there is no receipt |
//! | the refund was not sent, not confirmed, or too late | counted in `lost` |
//! | the take has a turn in a queue, and others are behind it | the turn passes unused; counted in `lost` |
//!
//! A refund is sent on any connection to the node. It bypasses the circuit breaker, because it asks for no decision, and a
//! slow Redis is the usual reason for it. If the state has moved to another node, or the script is missing, the refund is
//! sent once more, as any other request.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use redis::{ServerError, Value};
use spillgate_core::{
    Algorithm, Binding, Decision, Hit, OnStoreFailure, Op, OpKind, Quota, StoreErrorKind, Time, UnclaimedCharge,
    Verdict,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::command::Command;
use crate::command::key::RedisKey;
use crate::command::request::Decoded;
use crate::command::script::Script;
use crate::connection::reply::{Heir, ReplySlot};
use crate::error::{Error, kind_of};
use crate::node::send;
use crate::store::{InFlight, Inner};

/// The most hits of requests that wait for a late reply, or for the reply to their refund. The units of further requests
/// are counted as lost.
const HITS_MAX: usize = 1 << 16;
/// The most memory of these requests: a hit has 176 bytes, and its request 72 if it has no other hit. The rest is for the
/// allocator.
pub const LATE_HITS_BYTES: usize = HITS_MAX * 288;

/// Counts the charges whose callers have left.
#[derive(Default)]
pub(crate) struct GiveBack {
    /// How often units may have stayed taken for a request that was not admitted.
    pub(crate) lost: AtomicU64,
    /// How often units were given back.
    pub(crate) given_back: AtomicU64,
    /// The number of hits of all requests that wait for a late reply, or for the reply to their refund.
    hits: AtomicUsize,
}

/// A request that may have no reply yet. If its caller goes away, or its deadline passes, its units are given back.
pub(crate) struct Pending<'s, 'r, 'q> {
    inner: &'s Arc<Inner>,
    now: Option<Time>,
    hits: &'r [Hit<'q>],
    pub(crate) call: Command<'s, 'r, 'q>,
    slot: Arc<ReplySlot>,
    /// Whether the call was sent and has no reply yet.
    is_sent: bool,
}

impl<'s, 'r, 'q> Pending<'s, 'r, 'q> {
    /// Returns a request that is not sent yet. `call` is its encoded form.
    #[inline]
    pub(crate) fn new(
        inner: &'s Arc<Inner>,
        now: Option<Time>,
        hits: &'r [Hit<'q>],
        call: Command<'s, 'r, 'q>,
    ) -> Pending<'s, 'r, 'q> {
        Pending { inner, now, hits, call, slot: Arc::default(), is_sent: false }
    }

    /// Sends the request, and returns the verdict and the reply.
    ///
    /// If a script cannot decide, the next call uses the general script. That script decides every request, so the loop
    /// ends.
    pub(crate) async fn send(
        &mut self,
        decisions: &mut [Decision],
        deadline: Instant,
    ) -> Result<(Verdict, Vec<u8>), Error> {
        loop {
            self.is_sent = true;
            let sent = self.inner.topology.send(&self.call, &self.slot, deadline).await;
            self.is_sent = false;
            let reply = sent.map_err(|error| self.call.name_keys(error))?;
            let decoded = self.call.decode(&reply, decisions);
            if let Decoded::Verdict(verdict) = decoded.map_err(|error| self.call.name_keys(error.into()))? {
                if let Some(new_keys) = &self.inner.new_keys {
                    self.call.made(&reply).iter().for_each(|i| new_keys.charge(&self.hits[*i]));
                }
                return Ok((verdict, reply));
            }
        }
    }

    /// Returns what this request may have charged although it failed with this error. `None` if it charged nothing.
    pub(crate) fn unclaimed(&mut self, error: &Error) -> Option<Unclaimed> {
        if !error.kind.may_have_been_applied() {
            return None;
        }
        let Some(late) = self.late() else {
            self.make_unseen();
            // Otherwise a request beyond the bound would count once more when it is dropped.
            self.slot.leave(|| None);
            return None;
        };
        // The reply to a script can still come if the deadline has passed, but not after any other error.
        let is_awaited = error.kind == StoreErrorKind::Timeout && late.script.is_some();
        let slot = is_awaited.then(|| std::mem::take(&mut self.slot));
        Some(Unclaimed { slot, late: Some(late) })
    }

    /// Gives back the units of a request that this reply has allowed. `until_done` is dropped when the refund has ended.
    pub(crate) fn give_back(&self, reply: &[u8], until_done: Option<Arc<UntilRefunded>>) {
        if let Some(late) = self.late() {
            late.give_back(reply, until_done);
        }
    }

    /// Counts the keys that this request could make, because nobody will see its reply.
    fn make_unseen(&self) {
        if let Some(new_keys) = &self.inner.new_keys {
            let probe = self.inner.probe.identity();
            new_keys.charge_unseen(self.hits.iter().filter(|hit| hit.quota.identity() != probe).copied());
        }
    }

    /// Returns the heir of this request. `None` if the request takes nothing, or if too many hits wait already.
    fn late(&self) -> Option<Box<LateTake>> {
        // Nobody needs the units of a probe.
        let probe = self.inner.probe.identity();
        let is_take = |hit: &Hit<'_>| hit.op.kind() == OpKind::Take && hit.quota.identity() != probe;
        if !self.hits.iter().any(is_take) {
            return None;
        }
        let (counts, counted) = (&self.inner.give_back, self.hits.len());
        if counts.hits.fetch_add(counted, Ordering::Relaxed) + counted > HITS_MAX {
            counts.hits.fetch_sub(counted, Ordering::Relaxed);
            counts.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let script = match &self.call {
            Command::Script(call) => Some(call.script()),
            Command::Transaction(_) | Command::Plain(_) => None,
        };
        let inner = Arc::clone(self.inner);
        let hits = self.hits.iter().map(OwnedHit::of).collect();
        Some(Box::new(LateTake { inner, now: self.now, hits, counted, script, is_kept: false }))
    }
}

/// If the caller has gone before the reply, the heir gets the reply. The reply to a transaction shows no receipt.
impl Drop for Pending<'_, '_, '_> {
    fn drop(&mut self) {
        let heir = || {
            let late = self.late();
            if late.is_none() {
                self.make_unseen();
            }
            late
        };
        if self.is_sent && !self.call.is_refundable() {
            return heir().into_iter().for_each(|late| late.lost());
        }
        self.slot.leave(|| heir().map(|late| late as Box<dyn Heir>));
    }
}

/// Held by the refunds of one request. When the last of them ends, the request ends too.
pub(crate) struct UntilRefunded {
    pub(crate) _ended: oneshot::Sender<Infallible>,
    pub(crate) _in_flight: InFlight,
}

/// The charge of a request that failed: it is given back, unless the caller says that the request passes nevertheless.
pub(crate) struct Unclaimed {
    /// Where the reply will come. `None` if no reply comes.
    slot: Option<Arc<ReplySlot>>,
    late: Option<Box<LateTake>>,
}

impl UnclaimedCharge for Unclaimed {
    fn keep(&mut self) {
        if let Some(late) = &mut self.late {
            late.is_kept = true;
        }
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some(late) = self.late.take() else { return };
        match &self.slot {
            Some(slot) => slot.leave(|| Some(late)),
            None => late.lost(),
        }
    }
}

/// A hit that owns its quota.
struct OwnedHit {
    key: u128,
    quota: Quota,
    op: Op,
    binding: Binding,
}

impl OwnedHit {
    fn of(hit: &Hit<'_>) -> OwnedHit {
        OwnedHit { key: hit.key, quota: hit.quota.clone(), op: hit.op, binding: hit.binding }
    }

    fn hit(&self) -> Hit<'_> {
        Hit::new(self.key, &self.quota, self.op, self.binding)
    }
}

/// A request whose caller has left before the reply came.
struct LateTake {
    inner: Arc<Inner>,
    now: Option<Time>,
    hits: Vec<OwnedHit>,
    /// How many hits of [`HITS_MAX`] this request has. Its refund may have fewer hits.
    counted: usize,
    /// The script that was called last. `None` for a transaction, which cannot be refunded.
    script: Option<&'static Script>,
    /// Whether the request was admitted nevertheless. The units of hits that their policy allowed then stay taken,
    /// because the caller does the work.
    is_kept: bool,
}

impl Heir for LateTake {
    fn receive(self: Box<Self>, reply: Option<Value>) {
        match reply {
            Some(Value::BulkString(bytes)) => self.give_back(&bytes, None),
            // Redis changes nothing if it replies with an error.
            Some(Value::ServerError(_)) => {}
            _ => self.lost(),
        }
    }
}

impl LateTake {
    /// Returns whether the units of this hit belong to nobody.
    fn is_unowned(&self, hit: &OwnedHit) -> bool {
        let is_passed = matches!(hit.quota.on_store_failure(), OnStoreFailure::Allow | OnStoreFailure::Error);
        !(self.is_kept && is_passed)
    }

    fn lost(&self) {
        if let Some(new_keys) = &self.inner.new_keys {
            new_keys.charge_unseen(self.hits.iter().map(OwnedHit::hit));
        }
        if self.hits.iter().any(|hit| hit.op.kind() == OpKind::Take && self.is_unowned(hit)) {
            self.inner.give_back.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends the refunds of all units that the reply shows as taken and that belong to nobody.
    fn give_back(mut self: Box<Self>, reply: &[u8], until_done: Option<Arc<UntilRefunded>>) {
        let Some((now, refunds)) = self.refunds(reply) else { return self.lost() };
        if refunds.is_empty() {
            return;
        }
        let window = self.inner.refund_within;
        self.hits = refunds;
        self.forget();
        let refund = LateRefund { take: self, latest: now.after(window), _until_done: until_done };
        let hits: Vec<Hit<'_>> = refund.take.hits.iter().map(OwnedHit::hit).collect();
        let slot = hits.first().map_or(0, |hit| RedisKey::of(hit).slot());
        let Some(Command::Script(call)) = refund.take.encoded(&hits, refund.latest) else { return refund.lost() };
        let command = send::command(&call);
        drop(hits);
        match refund.take.inner.topology.connection(slot) {
            Some(connection) => connection.post(&command, Box::new(refund)),
            None => refund.lost(),
        }
    }

    /// Returns the time of the decision, and a refund for each take that was charged. `None` if the reply does not show
    /// it.
    fn refunds(&self, reply: &[u8]) -> Option<(Time, Vec<OwnedHit>)> {
        let hits: Vec<Hit<'_>> = self.hits.iter().map(OwnedHit::hit).collect();
        let Command::Script(mut call) = self.inner.encoder.encode(self.now, &hits).ok()? else { return None };
        if self.script? == Script::DECIDE {
            call.call_again();
        }
        let mut decisions = vec![Decision::default(); hits.len()];
        let Decoded::Verdict(verdict) = call.decode(reply, &mut decisions).ok()? else {
            // The script has changed nothing.
            return Some((Time::EPOCH, Vec::new()));
        };
        if let Some(new_keys) = &self.inner.new_keys {
            call.made(reply).iter().for_each(|i| new_keys.charge(&hits[*i]));
        }
        let refund = |(hit, decision): (&OwnedHit, &Decision)| {
            let op = match hit.op {
                Op::Take { cost, .. } if decision.receipt.is_some() => Op::Refund { cost, receipt: decision.receipt },
                // A take by the guaranteed share is settled on the shared bucket, without a take there. Nobody else settles
                // a limit that regions share.
                Op::Settle { change: change @ 1.., .. } if hit.quota.is_shared() => {
                    Op::Refund { cost: change.unsigned_abs(), receipt: None }
                }
                _ => return None,
            };
            let (key, quota) = (hit.key, hit.quota.clone());
            self.is_unowned(hit).then_some(OwnedHit { key, quota, op, binding: Binding::Enforce })
        };
        // In reverse order, because a queue takes back only its last turn.
        let charged = self.hits.iter().zip(&decisions).rev().filter_map(refund);
        Some((verdict.now, if verdict.allowed { charged.collect() } else { Vec::new() }))
    }

    /// Returns the call of the refunds.
    fn encoded<'a>(&'a self, hits: &'a [Hit<'a>], latest: Time) -> Option<Command<'a, 'a, 'a>> {
        let mut call = self.inner.encoder.encode(self.now, hits).ok()?;
        call.not_after(latest);
        Some(call)
    }

    /// Removes the states from the deny cache, because their refusals may become wrong.
    fn forget(&self) {
        let hits: Vec<Hit<'_>> = self.hits.iter().map(OwnedHit::hit).collect();
        drop(self.inner.deny_cache.guard(&hits, Instant::now()));
    }
}

impl Drop for LateTake {
    fn drop(&mut self) {
        self.inner.give_back.hits.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// The refund of a late take.
struct LateRefund {
    /// Its hits are the refunds.
    take: Box<LateTake>,
    /// After this time, Redis does not execute the refund.
    latest: Time,
    _until_done: Option<Arc<UntilRefunded>>,
}

impl LateRefund {
    fn lost(&self) {
        self.take.inner.give_back.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the reply shows that all units came back. A queue takes back only its last turn.
    fn is_done(&self, reply: &[u8]) -> bool {
        let hits: Vec<Hit<'_>> = self.take.hits.iter().map(OwnedHit::hit).collect();
        let mut decisions = vec![Decision::default(); hits.len()];
        let Some(mut call) = self.take.encoded(&hits, self.latest) else { return false };
        let Ok(Decoded::Verdict(verdict)) = call.decode(reply, &mut decisions) else { return false };
        hits.iter().zip(&decisions).all(|(hit, decision)| {
            let Op::Refund { cost, receipt: Some(receipt) } = hit.op else { return true };
            let begins_ns = receipt.mark.saturating_sub(cost.saturating_mul(hit.quota.interval_ns()));
            let ends_ns = verdict.now.as_nanos().saturating_add(decision.reset_after_ns);
            hit.quota.algorithm() != Algorithm::LeakyBucket || ends_ns <= begins_ns.max(verdict.now.as_nanos())
        })
    }

    /// Sends the refund once more, as any other request: it follows redirections, and loads the script.
    async fn send_again(self) {
        let inner = &self.take.inner;
        let hits: Vec<Hit<'_>> = self.take.hits.iter().map(OwnedHit::hit).collect();
        let deadline = Instant::now() + inner.refund_within;
        let is_done = match inner.encoder.encode(self.take.now, &hits) {
            Ok(call) => {
                let mut refund = Pending::new(inner, self.take.now, &hits, call);
                refund.call.not_after(self.latest);
                let sent = refund.send(&mut vec![Decision::default(); hits.len()], deadline).await;
                sent.is_ok_and(|(_, reply)| self.is_done(&reply))
            }
            Err(_) => false,
        };
        self.end(is_done);
    }

    fn end(&self, is_done: bool) {
        // Another request may have seen the state before the refund.
        self.take.forget();
        if is_done {
            self.take.inner.give_back.given_back.fetch_add(1, Ordering::Relaxed);
        } else {
            self.lost();
        }
    }
}

impl Heir for LateRefund {
    fn receive(self: Box<Self>, reply: Option<Value>) {
        match reply {
            // The reply is empty if it is too late for the refund.
            Some(Value::BulkString(bytes)) => self.end(self.is_done(&bytes)),
            // Another node has the state, or the script is missing: in both cases nothing was executed.
            Some(Value::ServerError(error)) if may_succeed_elsewhere(&error) => match Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(self.send_again())),
                Err(_) => self.lost(),
            },
            _ => self.lost(),
        }
    }
}

fn may_succeed_elsewhere(error: &ServerError) -> bool {
    matches!(kind_of(error), StoreErrorKind::Moved | StoreErrorKind::NoScript)
}
