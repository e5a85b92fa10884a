//! Looks at limits that never refuse one. Envoy looks first and charges when the stream ends (`apply_on_stream_done`); a
//! limit that is not `post_paid` then lets everything pass.

use spillgate::rules::{Action, Descriptor, Limit};
use spillgate::{Clock, OpKind};

use super::{Answer, Loaded, Service};

/// Rules that have a warning; further ones are counted only.
const MAX_WARNINGS: usize = 100;

/// Whether a look can never be refused, though it could be if the limit were `post_paid`.
fn refuses_no_look(limit: &Limit) -> bool {
    let quota = &limit.quota;
    quota.refusal_is_free() && !limit.post_paid && quota.supports(OpKind::Force)
}

impl<C: Clock> Service<C> {
    /// Counts looks at limits that refuse none, and warns of each rule once.
    #[cold]
    pub fn looked(&self, loaded: &Loaded, descriptors: &[Descriptor<'_>], answer: &Answer<'_>) {
        for (index, descriptor) in descriptors.iter().enumerate().filter(|(_, asked)| asked.action == Action::Take(0)) {
            let Some(rule) = answer.statuses.get(index).and_then(|status| status.rule) else { continue };
            let counters = loaded.counters.get(rule.index()).filter(|_| descriptor.limit.is_none());
            let (Some(counters), true) = (counters, rule.limits.iter().any(refuses_no_look)) else { continue };
            if counters.count_look(&self.metrics, rule).is_some_and(|rules| rules <= MAX_WARNINGS) {
                tracing::warn!(
                    domain = &*rule.domain,
                    rule = &*rule.path,
                    at = %rule.origin,
                    "a question with hits_addend 0 is refused by this limit only after it was lowered: where Envoy \
                     charges at the end of a stream (apply_on_stream_done), give the limit `post_paid: true`"
                );
            }
        }
    }
}
