//! Decides each descriptor alone, as `compat: envoy` demands.
//!
//! Envoy's reference server charges a descriptor even if another descriptor refuses the request. Rules files that were
//! written for that server can rely on this.

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use spillgate::rules::{Plan, Planned};
use spillgate::sketch::Sketch;
use spillgate::{Clock, Decision, Hit, Source, Time, Verdict};
use tokio::time::Instant;

use super::{Service, ServiceError};
use crate::metrics::Counter;

impl<C: Clock> Service<C> {
    /// Decides and charges each descriptor alone. All these decisions have the same time `now`.
    ///
    /// Descriptors that share a counter form a chain. The descriptors of a chain are decided one after another, in
    /// their order in the request. Different chains do not wait for each other.
    pub(super) async fn decide_separately(
        &self,
        now: Time,
        timeout: Option<Duration>,
        plan: &Plan<'_>,
        decisions: &mut [Decision],
    ) -> Result<Verdict, ServiceError> {
        let hits_of = |planned: &Planned<'_>| planned.hits.iter().map(|(index, _)| plan.hits[*index]).collect();
        let hits: SmallVec<[SmallVec<[Hit<'_>; 4]>; 4]> = plan.descriptors.iter().map(hits_of).collect();
        let sketches = if plan.sketched { plan.sketches() } else { SmallVec::new() };
        let sketches = &sketches;
        let deadline = self.limiter.store().timeout(timeout).map(|timeout| Instant::now() + timeout);
        let chains = chains(&hits);
        let (hits, chains) = (&hits, &chains);
        let answers = (0..hits.len()).filter(|index| chains[*index] == *index).map(|first| async move {
            let mut chain = Chain { unanswered: &self.metrics.unanswered_charges, decided: SmallVec::new() };
            for index in (first..hits.len()).filter(|index| chains[*index] == first) {
                let hits = &hits[index];
                let mut own: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len()];
                // The timeout is for the whole request, so a later descriptor of a chain has only the time that is
                // left.
                let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                let timeout = if chain.decided.is_empty() { timeout } else { left() };
                let verdict = if plan.sketched {
                    let beside = plan.descriptors[index].hits.iter().map(|(hit, _)| sketches[*hit]);
                    let beside: SmallVec<[Option<&Sketch>; 4]> = beside.collect();
                    self.decide_beside(now, timeout, plan, (&beside, hits), &mut own).await?
                } else {
                    self.decide_hits(now, timeout, hits, &mut own).await?
                };
                chain.decided.push((index, verdict.source, own));
            }
            Ok::<_, ServiceError>(chain)
        });
        let mut source = Source::Store;
        let answered: Vec<Chain<'_>> = join_all(answers).await.into_iter().collect::<Result<_, _>>()?;
        for chain in answered {
            for (index, own_source, own) in chain.keep() {
                if own_source != Source::Store {
                    source = own_source;
                }
                for ((hit, _), decision) in plan.descriptors[index].hits.iter().zip(own) {
                    decisions[*hit] = decision;
                }
            }
        }
        Ok(Verdict::of(&plan.hits, decisions, now).with_source(source))
    }
}

/// The index of a descriptor, who decided it, and the decisions.
type Decided = (usize, Source, SmallVec<[Decision; 4]>);

/// The descriptors of a chain that are decided. If their request gets no answer, because another descriptor fails or the
/// client hangs up, what they have taken stays charged, as in the reference server. It is counted then.
struct Chain<'m> {
    unanswered: &'m Counter,
    decided: SmallVec<[Decided; 1]>,
}

impl Chain<'_> {
    /// The request gets its answer.
    fn keep(mut self) -> SmallVec<[Decided; 1]> {
        std::mem::take(&mut self.decided)
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        let charges = self.decided.iter().flat_map(|(.., own)| own).filter(|decision| decision.receipt.is_some());
        match charges.count() {
            0 => {}
            charges => self.unanswered.inc_by(charges as u64),
        }
    }
}

/// Returns, for each descriptor, the index of the first descriptor in its chain.
fn chains(hits: &[SmallVec<[Hit<'_>; 4]>]) -> SmallVec<[usize; 4]> {
    let mut chains: SmallVec<[usize; 4]> = (0..hits.len()).collect();
    for (index, own) in hits.iter().enumerate() {
        for other in 0..index {
            if hits[other].iter().any(|hit| own.iter().any(|own| own.key == hit.key)) {
                let (first, last) = (chains[index].min(chains[other]), chains[index].max(chains[other]));
                chains.iter_mut().filter(|chain| **chain == last).for_each(|chain| *chain = first);
            }
        }
    }
    chains
}
