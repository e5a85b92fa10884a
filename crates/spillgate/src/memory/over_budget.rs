//! Decides a request that needs more capacity (space for keys and bytes) than the store has.
//!
//! The store must neither drop a live state nor exceed its bounds. [`OnFull`] says whether such a request is refused,
//! or decided without being counted. In both cases, a state for which there is no capacity is not changed, because
//! its hits are decided on a copy. If no table can have a free slot for a key, its request is decided in the same way.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use spillgate_core::{Binding, Decision, Hit, Op, OpKind, Reason, State, Time, Verdict, Wait, decide_late};

use super::options::OnFull;
use super::store::MemoryStore;

impl MemoryStore {
    /// Decides a request for which the store has too little capacity. `over_budget[j]` says whether there is no
    /// capacity for `states[j]`. The caller must not store such a state.
    ///
    /// `state_of[i]` is the index of the state of `hits[i]`. `newest` is the newest time at which the store has decided
    /// on any of these states, as far as it knows. [`decide_late`] says why this time is needed.
    ///
    /// A shadow hit (one that is decided but never refuses its request) does not make the store refuse the request.
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
        // The whole request is refused. Its takes, forces and settlements become peeks (operations that only read), so
        // that the request charges nothing and settles nothing.
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
