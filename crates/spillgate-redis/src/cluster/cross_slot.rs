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
//! slot 5: refund 1, with the receipt of the take
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
//! | no reply before the deadline, or none before the caller went away | given back when the reply comes ([`give_back`](crate::give_back)) |
//! | another error after which the take may have been applied | counted in `refunds_lost`, because there is no receipt |

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::future::join_all;
use spillgate_core::{Binding, Decision, Hit, Time, Verdict};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::command::ObservedStates;
use crate::command::key::RedisKey;
use crate::error::Error;
use crate::give_back::{Pending, UntilRefunded};
use crate::store::{InFlight, Inner};

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

/// The decision of a slot about its part.
///
/// If the part is dropped before it is settled, for example because the caller drops the request before all replies
/// have come, the units that the slot took are given back.
struct DecidedPart<'p, 'f, 'q> {
    part: &'p Part<'q>,
    pending: Pending<'f, 'p, 'q>,
    /// The reply. It is decoded again if this part was allowed but the request is not admitted.
    bytes: Vec<u8>,
    /// The verdict on this part alone.
    verdict: Verdict,
    decisions: Vec<Decision>,
    /// When the reply came, by the local clock.
    replied_at: Instant,
    /// Whether somebody owns the units, because the request was admitted.
    is_settled: bool,
}

impl Drop for DecidedPart<'_, '_, '_> {
    fn drop(&mut self) {
        if !self.is_settled && self.verdict.allowed {
            self.pending.give_back(&self.bytes, None);
        }
    }
}

/// Sends one part and decodes its reply.
async fn send_part<'p, 'f, 'q>(
    part: &'p Part<'q>,
    mut pending: Pending<'f, 'p, 'q>,
    deadline: Instant,
) -> Result<DecidedPart<'p, 'f, 'q>, Error> {
    let mut decisions = vec![Decision::default(); part.hits.len()];
    match pending.send(&mut decisions, deadline).await {
        Ok((verdict, bytes)) => {
            let replied_at = Instant::now();
            Ok(DecidedPart { part, pending, bytes, verdict, decisions, replied_at, is_settled: false })
        }
        Err(error) => {
            // The other parts are refunded, whatever the policies say. So is this one.
            drop(pending.unclaimed(&error));
            Err(error)
        }
    }
}

pub(crate) struct Decided {
    pub(crate) verdict: Result<Verdict, Error>,
    /// Ends when all units that a slot took for the refused or failed request are given back. `None` if there are none.
    pub(crate) refunded: Option<oneshot::Receiver<Infallible>>,
    /// The states of slots that refused, for the deny cache. Empty if the cache is off.
    pub(crate) observed: Vec<ObservedStates>,
}

/// Sends the parts, and computes the verdict from all replies.
///
/// Parts for nodes that may be down are sent first, all at the same time. If one of these parts fails, the other parts
/// are not sent. If all of these parts are decided, the other parts are sent, also at the same time.
///
/// # Errors
/// The request cannot be encoded. Nothing was sent.
pub(crate) async fn decide(
    inner: &Arc<Inner>,
    cluster: &Cluster,
    now: Option<Time>,
    hits: &[Hit<'_>],
    decisions: &mut [Decision],
    (in_flight, deadline): (InFlight, Instant),
) -> Result<Decided, Error> {
    // All parts are encoded before one is sent, so an error here means that nothing was sent.
    let parts = split(hits);
    let calls: Result<Vec<_>, Error> = parts.iter().map(|part| Ok(inner.encoder.encode(now, &part.hits)?)).collect();
    let all = parts
        .iter()
        .zip(calls?)
        .map(|(part, call)| (cluster.serves(part.slot), part, Pending::new(inner, now, &part.hits, call)));
    let (sound, doubtful): (Vec<_>, Vec<_>) = all.partition(|(serves, ..)| *serves);
    let (mut decided_parts, mut first_error) = (Vec::with_capacity(parts.len()), None);
    for round in [doubtful, sound] {
        if first_error.is_some() {
            break;
        }
        // Even if one part fails, the replies to the other parts are awaited, so that they are refunded before the
        // answer.
        for outcome in join_all(round.into_iter().map(|(_, part, pending)| send_part(part, pending, deadline))).await {
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
    let (ended, refunded) = oneshot::channel();
    let until_done = Arc::new(UntilRefunded { _ended: ended, _in_flight: in_flight });
    let (mut are_refunds_sent, mut observed) = (false, Vec::new());
    for decided in &mut decided_parts {
        // A store without scripts refunds nothing. Its refused requests stay charged, and are not counted.
        decided.is_settled = is_admitted || first_error.is_none() && !decided.pending.call.is_refundable();
        if !is_admitted && decided.verdict.allowed {
            if !decided.is_settled {
                decided.pending.give_back(&decided.bytes, Some(Arc::clone(&until_done)));
                (decided.is_settled, are_refunds_sent) = (true, true);
            }
            decided.pending.call.decode_refused(&decided.bytes, &mut decided.decisions)?;
        } else if !is_admitted && inner.deny_cache.is_on() {
            observed.extend(decided.pending.call.observed(&decided.bytes, decided.replied_at));
        }
    }
    copy_decisions(&decided_parts, decisions);
    let latest = decided_parts.iter().map(|decided| decided.verdict.now).max().unwrap_or_default();
    let verdict = first_error.map_or_else(|| Ok(Verdict::of(hits, decisions, latest)), Err);
    Ok(Decided { verdict, refunded: are_refunds_sent.then_some(refunded), observed })
}

/// Copies the decisions of each part to the positions of its hits in the request.
fn copy_decisions(decided_parts: &[DecidedPart<'_, '_, '_>], decisions: &mut [Decision]) {
    for decided in decided_parts {
        for (&position, decision) in decided.part.positions.iter().zip(&decided.decisions) {
            decisions[position] = *decision;
        }
    }
}
