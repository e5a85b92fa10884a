//! Counts peeks (requests of cost 0) at limits that refuse no peek.
//!
//! With `apply_on_stream_done`, Envoy peeks when a stream begins, and charges when the stream ends. A limit without
//! `post_paid` allows every peek, so it never refuses a stream, and no error shows this mistake. Therefore the service
//! counts such peeks, and warns of them in the log.

use spillgate::rules::{Action, Limit, Request};
use spillgate::{Clock, OpKind};

use super::{Answer, Loaded, Service};

/// The log warns of peeks at no more than this many rules. Peeks at further rules are only counted.
const MAX_WARNINGS: usize = 100;

/// Returns whether this limit refuses no peek, although it would refuse some with the option `post_paid`.
///
/// Rarely, such a limit does refuse a peek: for example, if a reload has lowered the limit below what is already used.
fn never_refuses_a_peek(limit: &Limit) -> bool {
    let quota = &limit.quota;
    quota.refusal_is_free() && !limit.post_paid && quota.supports(OpKind::Force)
}

impl<C: Clock> Service<C> {
    /// Counts the peeks of a request at limits that never refuse a peek. Warns once for each rule with such a limit.
    #[cold]
    pub fn count_peeks(&self, loaded: &Loaded, request: &Request<'_>, answer: &Answer<'_>) {
        let peeks = request.descriptors().enumerate().filter(|(_, descriptor)| descriptor.action == Action::Take(0));
        for (index, descriptor) in peeks {
            let Some(rule) = answer.statuses.get(index).and_then(|status| status.rule) else { continue };
            let counters = loaded.counters.get(rule.index()).filter(|_| descriptor.limit.is_none());
            let (Some(counters), true) = (counters, rule.limits.iter().any(never_refuses_a_peek)) else { continue };
            if counters.count_peek(&self.metrics, rule).is_some_and(|rules| rules <= MAX_WARNINGS) {
                tracing::warn!(
                    domain = &*rule.domain,
                    rule = &*rule.path,
                    at = %rule.origin,
                    "this limit refuses no request with hits_addend 0 unless the limit was lowered. If Envoy charges at \
                     the end of a stream (apply_on_stream_done), set `post_paid: true`"
                );
            }
        }
    }
}
