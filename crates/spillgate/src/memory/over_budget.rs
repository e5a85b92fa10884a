//! The decision of a request that needs more capacity than the store has.
//!
//! The store may neither drop a live state nor exceed its bounds. Such a request is refused or is not counted, as
//! [`OnFull`] says. In both cases the states that lack capacity are decided on copies.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use spillgate_core::{Binding, Decision, Hit, Op, OpKind, Reason, State, Time, Verdict, Wait, decide_late};

use super::options::OnFull;
use super::store::MemoryStore;

impl MemoryStore {
    /// Decides a request with states for which there is no capacity. `over_budget` says which states these are. The
    /// caller does not store them.
    ///
    /// `state_of[i]` is the index of the state of `hits[i]`, and `over_budget` has an item for each state. `newest` is
    /// as in [`decide_late`].
    ///
    /// A shadow hit never makes the store refuse a request.
    #[cold]
    pub(super) fn decide_over_budget(
        &self,
        (now, newest): (Time, Time),
        hits: &[Hit<'_>],
        (states, state_of): (&mut [State], &[usize]),
        over_budget: &[bool],
        decisions: &mut [Decision],
    ) -> Verdict {
        self.full_requests.fetch_add(1, Ordering::Relaxed);
        let refuses = |i: usize| {
            let take = hits[i].op.kind() == OpKind::Take && hits[i].binding != Binding::Shadow;
            over_budget[state_of[i]] && take && self.on_full == OnFull::Deny
        };
        let Some(first) = (0..hits.len()).find(|&i| refuses(i)) else {
            return decide_late(states, state_of, hits, now, newest, decisions);
        };
        // The whole request is refused. To charge nothing, its takes and forces become peeks.
        let peek = |hit: &Hit<'_>| match hit.op.kind() {
            OpKind::Take | OpKind::Force => Op::Peek,
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
