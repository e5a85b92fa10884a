//! One request in several slots of a cluster.

use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use spillgate_core::{Binding, Decision, Hit, Op, Quota, StoreError, Time, Verdict};
use tokio::time::Instant;

use crate::call::{Call, Forms};
use crate::cluster::Cluster;
use crate::deny_cache::DenyCache;
use crate::failure::Failed;
use crate::name::Name;
use crate::request::Answer;
use crate::slots::slot;

/// The hits in one slot, and their places in the request.
struct Part<'q> {
    slot: u16,
    places: Vec<usize>,
    hits: Vec<Hit<'q>>,
}

/// Whether all hits are in one slot.
pub(crate) fn is_one(hits: &[Hit<'_>]) -> bool {
    let mut slots = hits.iter().map(|hit| slot(&Name::of(hit)));
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}

fn split<'q>(hits: &[Hit<'q>]) -> Vec<Part<'q>> {
    let mut parts: Vec<Part<'q>> = Vec::new();
    for (i, hit) in hits.iter().enumerate() {
        let slot = slot(&Name::of(hit));
        let known = parts.iter().position(|part| part.slot == slot);
        let place = known.unwrap_or(parts.len());
        if known.is_none() {
            parts.push(Part { slot, places: Vec::new(), hits: Vec::new() });
        }
        // What refuses here may pass by another slot.
        let binding = if hit.binding == Binding::Quota { Binding::Shadow } else { hit.binding };
        parts[place].places.push(i);
        parts[place].hits.push(Hit { binding, ..*hit });
    }
    parts
}

/// What a slot said to its part.
struct Answered<'f, 'r, 'q> {
    call: Call<'f, 'r, 'q>,
    reply: Vec<u8>,
    verdict: Verdict,
    decisions: Vec<Decision>,
}

async fn ask<'f, 'r, 'q>(
    cluster: &Arc<Cluster>,
    mut call: Call<'f, 'r, 'q>,
    hits: usize,
    deadline: Instant,
) -> Result<Answered<'f, 'r, 'q>, Failed> {
    let mut decisions = vec![Decision::default(); hits];
    // The general script is not asked again.
    loop {
        let reply = cluster.ask(&call, deadline).await?;
        if let Answer::Verdict(verdict) = call.answer(&reply, &mut decisions)? {
            return Ok(Answered { call, reply, verdict, decisions });
        }
    }
}

/// Asks all slots at once, and forms the verdict over all. With a refusal comes what has to be given back: what slots took
/// that did not know of it.
pub(crate) async fn decide(
    cluster: &Arc<Cluster>,
    forms: &Forms,
    now: Option<Time>,
    hits: &[Hit<'_>],
    decisions: &mut [Decision],
    deadline: Instant,
) -> Result<(Verdict, GiveBack), Failed> {
    // All is checked before anybody is asked.
    forms.check(hits)?;
    let parts = split(hits);
    let calls: Result<Vec<_>, StoreError> = parts.iter().map(|part| forms.call(now, &part.hits)).collect();
    let asked = calls?.into_iter().zip(&parts);
    let asked = asked.map(|(call, part)| ask(cluster, call, part.hits.len(), deadline));
    let mut answers = try_join_all(asked).await?;
    let latest = answers.iter().map(|answer| answer.verdict.now).max().unwrap_or_default();
    place(&parts, &answers, decisions);
    let verdict = Verdict::of(hits, decisions, latest);
    let mut taken = Vec::new();
    if verdict.allowed {
        return Ok((verdict, GiveBack { now, taken }));
    }
    for (part, answer) in parts.iter().zip(&mut answers).filter(|(_, answer)| answer.verdict.allowed) {
        taken.push(
            part.hits.iter().zip(&answer.decisions).filter_map(|(hit, decision)| taken_by(hit, decision)).collect(),
        );
        answer.call.answer_refused(&answer.reply, &mut answer.decisions)?;
    }
    place(&parts, &answers, decisions);
    taken.retain(|taken: &Vec<Taken>| !taken.is_empty());
    Ok((Verdict::of(hits, decisions, latest), GiveBack { now, taken }))
}

fn place(parts: &[Part<'_>], answers: &[Answered<'_, '_, '_>], decisions: &mut [Decision]) {
    for (part, answer) in parts.iter().zip(answers) {
        for (&place, decision) in part.places.iter().zip(&answer.decisions) {
            decisions[place] = *decision;
        }
    }
}

/// A take that was charged, as the refund that undoes it.
struct Taken {
    key: u128,
    quota: Quota,
    refund: Op,
}

fn taken_by(hit: &Hit<'_>, decision: &Decision) -> Option<Taken> {
    let Op::Take { cost, .. } = hit.op else { return None };
    decision.receipt?;
    Some(Taken { key: hit.key, quota: hit.quota.clone(), refund: Op::Refund { cost, receipt: decision.receipt } })
}

/// What slots took for a request that was refused: for each slot its takes.
pub(crate) struct GiveBack {
    now: Option<Time>,
    taken: Vec<Vec<Taken>>,
}

impl GiveBack {
    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Gives it back, in all slots at once and once; how many slots did not say that they have it.
    pub(crate) async fn run(
        self,
        cluster: &Arc<Cluster>,
        forms: &Forms,
        deny_cache: &DenyCache,
        deadline: Instant,
    ) -> u64 {
        let given_back = join_all(self.taken.iter().map(|taken| async {
            let hits = taken.iter().map(|it| Hit::new(it.key, &it.quota, it.refund, Binding::Enforce));
            let hits: Vec<Hit<'_>> = hits.collect();
            // What was refused because of them is so no longer.
            let _question = deny_cache.question(&hits, Instant::now());
            ask(cluster, forms.call(self.now, &hits)?, hits.len(), deadline).await.map(drop)
        }));
        given_back.await.iter().map(|given_back| u64::from(given_back.is_err())).sum()
    }
}
