//! Decides requests whose states are in several slots of a cluster.
//!
//! A script can change the states of one slot only. So the request is split into parts, one for each slot, and each
//! slot decides its part. From these decisions, the store computes the verdict on the whole request. If the request is
//! refused, the store sends refunds to the slots that charged their parts. [`RedisStore`](crate::RedisStore) documents
//! what is guaranteed.
//!
//! In this example a request has a hit in slot 5 and a hit in slot 9, and slot 9 refuses:
//!
//! ```text
//! slot 5: take 1         slot 9: take 1
//! slot 5: allowed        slot 9: refused
//! verdict: refused
//! slot 5: refund 1, with the receipt of the take, if the deadline has not passed
//! ```
//!
//! A store without scripts refunds nothing. With scripts, if the request is refused or fails, the reply to each part
//! decides what happens to the units that the part took:
//!
//! | reply to the part | units of the part |
//! |---|---|
//! | allowed | refunded; counted in `refunds_lost` if the refund is not confirmed |
//! | refused | nothing to refund |
//! | an error that says that nothing was applied | nothing to refund |
//! | an error after which the take may have been applied | counted in `refunds_lost`, because there is no receipt |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use spillgate_core::{Binding, Decision, Hit, Op, OpKind, Quota, StoreError, Time, Verdict};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::command::key::RedisKey;
use crate::command::request::Decoded;
use crate::command::{Command, Encoder, ObservedStates};
use crate::deny_cache::DenyCache;
use crate::error::Error;

/// The hits in one slot, and their positions in the request.
struct Part<'q> {
    slot: u16,
    /// The position of each hit in the request.
    positions: Vec<usize>,
    /// The hits. A hit with [`Binding::Quota`] becomes a shadow hit here, so that the hit never refuses the part.
    hits: Vec<Hit<'q>>,
}

/// Returns whether the states of all hits are in one slot.
pub(crate) fn is_in_one_slot(hits: &[Hit<'_>]) -> bool {
    let mut slots = hits.iter().map(|hit| RedisKey::of(hit).slot());
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}

/// Splits a request into parts, one for each slot, in the order of their first hits.
fn split<'q>(hits: &[Hit<'q>]) -> Vec<Part<'q>> {
    let mut parts: Vec<Part<'q>> = Vec::new();
    for (i, hit) in hits.iter().enumerate() {
        let slot = RedisKey::of(hit).slot();
        let known = parts.iter().position(|part| part.slot == slot);
        let position = known.unwrap_or(parts.len());
        if known.is_none() {
            parts.push(Part { slot, positions: Vec::new(), hits: Vec::new() });
        }
        // Hits with `Binding::Quota` refuse a request only if all of them are refused. Another slot may allow such a
        // hit, so these hits must not refuse their part.
        let binding = if hit.binding == Binding::Quota { Binding::Shadow } else { hit.binding };
        parts[position].positions.push(i);
        parts[position].hits.push(hit.with_binding(binding));
    }
    parts
}

/// The reply of a slot to its part, and when it came.
struct PartReply<'f, 'r, 'q> {
    /// The command that was sent. If this part was allowed but the request is not admitted, the command decodes the
    /// reply a second time.
    call: Command<'f, 'r, 'q>,
    bytes: Vec<u8>,
    /// The verdict on this part alone.
    verdict: Verdict,
    decisions: Vec<Decision>,
    /// When the reply came, by the local clock.
    replied_at: Instant,
}

/// Guards the units that a slot may have charged for a request whose outcome is not known yet.
///
/// A guard that is dropped without `settle` counts the slot in `refunds_lost`, because the slot will get no refund. For
/// example, this happens if the caller drops the request before the replies come.
struct UnsettledTake<'s>(Option<&'s AtomicU64>);

impl<'s> UnsettledTake<'s> {
    /// Returns the guard of one part. Only takes are refunded, so the guard of a part without a take counts nothing.
    fn of(part: &Part<'_>, count: &'s AtomicU64) -> UnsettledTake<'s> {
        UnsettledTake(part.hits.iter().any(|hit| hit.op.kind() == OpKind::Take).then_some(count))
    }

    /// Turns the guard off. This is correct in three cases: the slot charged nothing, the request was admitted, or a
    /// refund will be sent.
    fn settle(&mut self) {
        self.0 = None;
    }
}

impl Drop for UnsettledTake<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A part with its reply, and the guard of the units that it may have taken.
struct DecidedPart<'p, 'f, 'q, 's> {
    part: &'p Part<'q>,
    reply: PartReply<'f, 'p, 'q>,
    unsettled: UnsettledTake<'s>,
}

/// Sends one part and decodes its reply. If a script for takes cannot decide the part, the part is sent again as a call
/// of the general script `decide`.
async fn send_part<'f, 'r, 'q>(
    cluster: &Arc<Cluster>,
    mut call: Command<'f, 'r, 'q>,
    hits: usize,
    deadline: Instant,
) -> Result<PartReply<'f, 'r, 'q>, Error> {
    let mut decisions = vec![Decision::default(); hits];
    // The loop ends, because the general script never asks for a second call.
    loop {
        let bytes = cluster.send(&call, deadline).await.map_err(|error| call.name_keys(error))?;
        let decoded = call.decode(&bytes, &mut decisions).map_err(|error| call.name_keys(error.into()))?;
        if let Decoded::Verdict(verdict) = decoded {
            return Ok(PartReply { call, bytes, verdict, decisions, replied_at: Instant::now() });
        }
    }
}

pub(crate) struct Decided {
    pub(crate) verdict: Result<Verdict, Error>,
    /// The takes to refund, if the request was refused or failed.
    pub(crate) refunds: Refunds,
    /// The states of slots that refused, for the deny cache. Empty if the cache is off.
    pub(crate) observed: Vec<ObservedStates>,
}

/// Sends the parts, and computes the verdict from all replies.
///
/// Parts for nodes that may be down are sent first, all at the same time. If one of these parts fails, the other parts
/// are not sent. If all of these parts are decided, the other parts are sent, also at the same time.
/// `Cluster::refunds_lost` counts each slot that may have charged its part and that cannot be asked for a refund.
///
/// # Errors
/// The request cannot be encoded. Nothing was sent.
pub(crate) async fn decide(
    cluster: &Arc<Cluster>,
    encoder: &Encoder,
    deny_cache: &DenyCache,
    now: Option<Time>,
    hits: &[Hit<'_>],
    decisions: &mut [Decision],
    deadline: Instant,
) -> Result<Decided, Error> {
    // All parts are encoded before one is sent, so an error here means that nothing was sent.
    let parts = split(hits);
    let calls: Result<Vec<_>, StoreError> = parts.iter().map(|part| encoder.encode(now, &part.hits)).collect();
    let calls = parts.iter().zip(calls?).map(|(part, call)| (cluster.serves(part.slot), part, call));
    let (sound, doubtful): (Vec<_>, Vec<_>) = calls.partition(|(serves, ..)| *serves);
    let (mut decided_parts, mut first_error) = (Vec::with_capacity(parts.len()), None);
    for round in [doubtful, sound] {
        if first_error.is_some() {
            break;
        }
        let sent = round.into_iter().map(async |(_, part, call)| {
            let mut unsettled = UnsettledTake::of(part, &cluster.refunds_lost);
            let reply = send_part(cluster, call, part.hits.len(), deadline).await;
            let may_have_taken = match &reply {
                Ok(reply) => reply.verdict.allowed,
                Err(error) => error.kind.may_have_been_applied(),
            };
            if !may_have_taken {
                unsettled.settle();
            }
            reply.map(|reply| DecidedPart { part, reply, unsettled })
        });
        // Even if one part fails, the replies to the other parts are awaited, because a take can be refunded only after
        // its reply.
        for outcome in join_all(sent).await {
            match outcome {
                Ok(decided_part) => decided_parts.push(decided_part),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
    }
    let is_admitted = first_error.is_none() && {
        copy_decisions(&decided_parts, decisions);
        Verdict::of(hits, decisions, Time::EPOCH).allowed
    };
    let (mut refunds, mut observed) = (Refunds { now, parts: Vec::new() }, Vec::new());
    if !is_admitted {
        for DecidedPart { part, reply, .. } in &mut decided_parts {
            if reply.verdict.allowed {
                refunds.parts.extend(ChargedPart::of(part, reply));
                reply.call.decode_refused(&reply.bytes, &mut reply.decisions)?;
            } else if deny_cache.is_on() {
                observed.extend(reply.call.observed(&reply.bytes, reply.replied_at));
            }
        }
    }
    for DecidedPart { reply, unsettled, .. } in &mut decided_parts {
        // A store without scripts refunds nothing. So if a part has failed, the guards of the other parts stay on, and
        // `refunds_lost` counts their slots. If no part has failed, `refunds_lost` counts nothing, even if a part was
        // refused.
        if first_error.is_none() || reply.call.is_refundable() {
            unsettled.settle();
        }
    }
    copy_decisions(&decided_parts, decisions);
    let latest = decided_parts.iter().map(|decided_part| decided_part.reply.verdict.now).max().unwrap_or_default();
    let verdict = first_error.map_or_else(|| Ok(Verdict::of(hits, decisions, latest)), Err);
    Ok(Decided { verdict, refunds, observed })
}

/// Copies the decisions of each part to the positions of its hits in the request.
fn copy_decisions(decided_parts: &[DecidedPart<'_, '_, '_, '_>], decisions: &mut [Decision]) {
    for DecidedPart { part, reply, .. } in decided_parts {
        for (&position, decision) in part.positions.iter().zip(&reply.decisions) {
            decisions[position] = *decision;
        }
    }
}

/// The refund of a take that was charged.
struct ChargedTake {
    key: u128,
    quota: Quota,
    refund: Op,
}

/// Returns the refund of this hit. `None` if the hit is not a take, or if the slot charged nothing for it.
fn taken_by(hit: &Hit<'_>, decision: &Decision) -> Option<ChargedTake> {
    let Op::Take { cost, .. } = hit.op else { return None };
    decision.receipt?;
    Some(ChargedTake { key: hit.key, quota: hit.quota.clone(), refund: Op::Refund { cost, receipt: decision.receipt } })
}

/// The takes that one slot charged.
struct ChargedPart {
    taken: Vec<ChargedTake>,
    /// The time of the decision, by the clock of the slot's node.
    now: Time,
    /// When the reply came, by the local clock.
    replied_at: Instant,
}

impl ChargedPart {
    fn of(part: &Part<'_>, reply: &PartReply<'_, '_, '_>) -> Option<ChargedPart> {
        let hits = part.hits.iter().zip(&reply.decisions);
        let taken: Vec<ChargedTake> = hits.filter_map(|(hit, decision)| taken_by(hit, decision)).collect();
        (!taken.is_empty()).then_some(ChargedPart { taken, now: reply.verdict.now, replied_at: reply.replied_at })
    }
}

/// The refunds for a request that was refused or failed.
pub(crate) struct Refunds {
    now: Option<Time>,
    parts: Vec<ChargedPart>,
}

impl Refunds {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Sends the refunds to all slots at the same time, once. Returns how many slots did not confirm their refund.
    ///
    /// A refund that arrives after the deadline has no effect. If a token bucket gets units back `d` seconds after they
    /// were taken, it can admit in `s` seconds as many units as its limit allows in `s + d` seconds. The deadline
    /// bounds `d`.
    pub(crate) async fn run(
        self,
        cluster: &Arc<Cluster>,
        encoder: &Encoder,
        deny_cache: &DenyCache,
        deadline: Instant,
    ) -> u64 {
        let results = join_all(self.parts.iter().map(async |part| {
            let hits = part.taken.iter().map(|it| Hit::new(it.key, &it.quota, it.refund, Binding::Enforce));
            let hits: Vec<Hit<'_>> = hits.collect();
            // The refund can make a cached refusal wrong. After the reply, this guard removes the states from the deny
            // cache.
            let _guard = deny_cache.guard(&hits, Instant::now());
            let mut call = encoder.encode(self.now, &hits)?;
            // When the reply came, the clock of the slot's node showed `part.now` or a later time. So this clock shows
            // `part.now + (deadline - part.replied_at)` no later than at the deadline.
            call.not_after(part.now.after(deadline.saturating_duration_since(part.replied_at)));
            send_part(cluster, call, hits.len(), deadline).await.map(drop)
        }));
        results.await.iter().map(|result| u64::from(result.is_err())).sum()
    }
}
