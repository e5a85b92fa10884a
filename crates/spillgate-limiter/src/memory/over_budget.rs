//! Decides a request that needs more capacity than the store has.
//!
//! The store must neither drop a live state nor exceed its bounds. [`OnFull`] says whether such a request is refused,
//! decided without being counted, or limited by a sketch. In all three cases, a state for which there is no capacity is
//! not changed, because its hits are decided on a copy. This module also decides requests for a key that gets no slot
//! in a table of any size.

use std::sync::atomic::Ordering;

use smallvec::{SmallVec, smallvec};
use spillgate_core::{
    Algorithm, Binding, Decision, Hit, Op, OpKind, Quota, Reason, State, Time, Verdict, Wait, decide_late,
};

use super::options::OnFull;
use super::overflow::{Lack, substitute};
use super::store::MemoryStore;

impl MemoryStore {
    /// Decides a request for which the store has too little capacity. `lacks[j]` says what the store lacks for
    /// `states[j]`. The caller must not store a state that lacks something.
    ///
    /// `state_of[i]` is the index of the state of `hits[i]`. `newest` is the newest time at which the store has decided
    /// on any of these states, as far as it knows. [`decide_late`] says why this time is needed.
    ///
    /// A shadow hit does not make the store refuse the request.
    #[cold]
    pub(super) fn decide_over_budget(
        &self,
        (now, newest): (Time, Time),
        hits: &[Hit<'_>],
        (states, state_of): (&mut [State], &[usize]),
        lacks: &[Lack],
        decisions: &mut [Decision],
    ) -> Verdict {
        self.full_requests.fetch_add(1, Ordering::Relaxed);
        let substitutes: SmallVec<[Option<Quota>; 1]> = match self.overflow {
            None => smallvec![None; hits.len()],
            Some(_) => {
                let takes_permit = hits
                    .iter()
                    .any(|hit| hit.quota.algorithm() == Algorithm::Concurrency && matches!(hit.op, Op::Take { .. }));
                let of = |(hit, j): (&Hit<'_>, &usize)| substitute_of(hit, lacks[*j]).filter(|_| !takes_permit);
                hits.iter().zip(state_of).map(of).collect()
            }
        };
        let refuses = |i: usize| {
            let take = matches!(hits[i].op, Op::Take { .. }) && hits[i].binding != Binding::Shadow;
            let lacking = lacks[state_of[i]] != Lack::Nothing && substitutes[i].is_none();
            lacking && take && self.on_full != OnFull::Allow
        };
        let Some(first) = (0..hits.len()).find(|&i| refuses(i)) else {
            let verdict = match &self.overflow {
                None => decide_late(states, state_of, hits, now, newest, decisions),
                Some(overflow) => {
                    overflow.decide((now, newest), (hits, &substitutes), (states, state_of), lacks, decisions)
                }
            };
            // The store keeps no units for these hits, so their takes get no receipt: nothing can be given back or
            // released.
            let lacking = |i: &usize| lacks[state_of[*i]] != Lack::Nothing;
            for i in (0..hits.len()).filter(lacking) {
                let decision = &mut decisions[i];
                let is_lost = decision.receipt.is_some() && substitutes[i].is_none();
                let reason = if is_lost { Reason::StoreFull } else { decision.reason };
                *decision = decision.with_reason(reason).without_receipt();
            }
            return verdict;
        };
        // The whole request is refused. Its takes, forces and settlements become peeks, so that the request charges
        // nothing and settles nothing.
        let peek = |hit: &Hit<'_>| match hit.op.kind() {
            OpKind::Take | OpKind::Force | OpKind::Settle => Op::Peek,
            _ => hit.op,
        };
        let peeks: SmallVec<[Hit<'_>; 4]> = hits.iter().map(|hit| hit.with_op(peek(hit))).collect();
        let mut verdict = decide_late(states, state_of, &peeks, now, newest, decisions);
        for i in (first..hits.len()).filter(|&i| refuses(i)) {
            decisions[i].allowed = false;
            decisions[i].reason = Reason::StoreFull;
            decisions[i].remaining = 0;
            decisions[i].retry_after = Wait::Unknown;
        }
        (verdict.allowed, verdict.binding, verdict.retry_after) = (false, Some(first), Wait::Unknown);
        verdict
    }
}

/// Returns the quota by which a sketch decides the hit, or `None` if the hit is not decided by a sketch.
fn substitute_of(hit: &Hit<'_>, lack: Lack) -> Option<Quota> {
    let substitute = matches!(lack, Lack::Slot(_)).then(|| substitute(hit.quota)).flatten()?;
    // A take that costs more than the capacity of the substitute can never fit the substitute, although it could fit
    // the limit.
    let is_too_large = matches!(hit.op, Op::Take { cost, .. } if cost > substitute.hard_capacity() && cost <= hit.quota.hard_capacity());
    (!is_too_large).then_some(substitute)
}
