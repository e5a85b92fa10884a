//! Hits that contain their own quota, releases and renewals of leases, and resets by an operator.
//!
//! With hits and leases, a program can use the server without rules files.

use std::fmt;

use serde::Serialize;
use smallvec::{SmallVec, smallvec};
use spillgate::rules::{Action, LimitDescription, Request};
use spillgate::{Binding, Clock, Decision, Hit, Op, OpKind, Verdict};
use tracing::Level;

use super::sketched::refuse_sketches;
use super::validate::within;
use super::{Grants, Service, ServiceError};
use crate::metrics::{Metrics, Protocol, ThreadNumber};

impl<C: Clock> Service<C> {
    /// Returns the hash of `bucket` and `key`, which name the counter in a request to `/v1/hit`.
    ///
    /// # Errors
    /// `bucket` is empty, or `bucket` or `key` is too long.
    pub fn key_of_hit(&self, bucket: &str, key: &str) -> Result<u128, ServiceError> {
        let bounds = &self.options.bounds;
        let validate = || {
            if bucket.is_empty() {
                return Err(ServiceError::BadRequest("the bucket is empty: name what is limited".into()));
            }
            within("bytes in the bucket", bucket.len(), bounds.key_bytes)?;
            within("bytes in the key", key.len(), bounds.value_bytes)
        };
        validate().map_err(|error| self.rejected(error))?;
        Ok(self.limiter.keys().start().part(bucket.as_bytes()).part(key.as_bytes()).finish())
    }

    /// Decides hits that contain their own quota. Releases and renewals of leases are such hits too. `named` has the
    /// bucket and the key of the request, for the log.
    ///
    /// # Errors
    /// There are too many hits, or the store failed.
    pub async fn hit(
        &self,
        protocol: Protocol,
        named: Option<(&str, &str)>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, ServiceError> {
        let begun = Metrics::begin_decision();
        let now = self.limiter.now();
        let decided = if self.options.shadow {
            // In shadow mode, every take and every peek is allowed. A renewal keeps its binding, so that even in shadow
            // mode either all of its leases are renewed, or none.
            let binding = |hit: &Hit<'_>| if is_request(hit) { Binding::Shadow } else { hit.binding };
            let shadows: SmallVec<[Hit<'_>; 4]> = hits.iter().map(|hit| hit.with_binding(binding(hit))).collect();
            self.decide_hits(now, None, &shadows, decisions).await
        } else {
            self.decide_hits(now, None, hits, decisions).await
        };
        let verdict = decided.map_err(|error| self.failed(begun, error))?;
        // Releases, renewals and resets ask for no permission, so they are not counted as allowed or refused.
        if hits.iter().any(is_request) {
            self.metrics.count_request(ThreadNumber::current(), protocol, &verdict);
        }
        if tracing::enabled!(Level::DEBUG) {
            self.log.hit(now, named, hits, &verdict);
        }
        self.metrics.end_decision(begun);
        Ok(verdict)
    }

    /// For each descriptor, resets all limits of the rule that the descriptor matches in `domain`. This function writes
    /// into `reset` what was done, even if it then returns an error.
    ///
    /// If a descriptor is invalid or matches no limit, nothing is reset. If the store fails, the limits of the first
    /// descriptors can already be reset. The operator can then send the same request again.
    ///
    /// # Errors
    /// The request is malformed or exceeds a bound, no limit matches a descriptor, or the store failed.
    pub async fn reset(
        &self,
        domain: &str,
        descriptors: &[Vec<(&str, &str)>],
        reset: &mut Reset,
    ) -> Result<(), ServiceError> {
        let loaded = self.rules();
        let mut plans = Vec::with_capacity(descriptors.len());
        for (i, entries) in descriptors.iter().enumerate() {
            let mut request = Request::new(domain);
            request.add(entries.iter().copied(), Action::Take(0), None);
            self.validate(&request, Grants::default())?;
            let plan = loaded.rules.plan(self.limiter.keys(), &request, self.options.bounds.value_bytes);
            let rule = plan.descriptors.first().and_then(|planned| planned.rule);
            let Some((hit, rule)) = plan.hits.first().zip(rule) else {
                return Err(ServiceError::UnknownLimit(i + 1));
            };
            refuse_sketches(&plan)?;
            reset.callers.push(format!(
                "caller {} of rule {} in domain {}",
                self.caller_of(hit.key),
                rule.path,
                rule.domain
            ));
            plans.push((rule, plan));
        }
        for (rule, plan) in &mut plans {
            for hit in &mut plan.hits {
                hit.op = Op::Reset;
                reset.is_shared |= hit.quota.is_shared();
            }
            reset.asked += 1;
            let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); plan.hits.len()];
            let decided = self.decide_hits(self.limiter.now(), None, &plan.hits, &mut decisions).await;
            let verdict = decided.inspect_err(|error| self.end_failed(reset, &plan.hits, error))?;
            if !verdict.allowed {
                return Err(not_reset());
            }
            reset.limits += plan.hits.len();
            reset.done += 1;
            let limits = plan.descriptors.iter().flat_map(|planned| &planned.hits);
            for (_, limit) in limits {
                if reset.named.len() == NAMED_MAX {
                    reset.unnamed += 1;
                    continue;
                }
                let limit = LimitDescription::of(rule, limit).on_server(self.is_in_shadow(rule));
                reset.named.push(ResetLimit { limit, shared: rule.is_shared() });
            }
        }
        Ok(())
    }
}

impl<C: Clock> Service<C> {
    /// Corrects `reset` after its last reset has failed, if the store has certainly not applied it. If the limits are in
    /// several slots of a cluster, the error of one slot says nothing about the others.
    pub fn end_failed(&self, reset: &mut Reset, hits: &[Hit<'_>], error: &ServiceError) {
        let is_atomic = || self.limiter.store().shared().is_none_or(|shared| shared.is_atomic(hits));
        if let ServiceError::Store(error) = error
            && !error.kind().may_have_been_applied()
            && is_atomic()
        {
            reset.asked -= 1;
        }
    }
}

/// An answer to a reset names at most this many limits.
const NAMED_MAX: usize = 100;

/// A limit of a rule that was reset.
#[derive(Debug, Serialize)]
pub struct ResetLimit {
    pub limit: LimitDescription,
    /// Whether all requests of the rule share the counter, so that the reset was for all callers.
    pub shared: bool,
}

/// What a reset has done, perhaps before it failed.
#[derive(Debug, Default)]
pub struct Reset {
    /// The number of limits that were reset.
    pub limits: usize,
    /// The first limits of rules that were reset, at most 100. A hit with its own quota has no rule.
    pub named: Vec<ResetLimit>,
    /// How many limits of rules that were reset are not in `named`.
    pub unnamed: usize,
    /// For each descriptor, a text that names the caller by its hash and its rule. For a hit with its own quota, the
    /// text has the bucket of the request instead of a rule.
    pub callers: Vec<String>,
    /// For how many of `callers` a reset was sent to the store. This is one more than `done` if the last reset failed, and
    /// may have been applied.
    pub asked: usize,
    /// How many of `callers` were certainly reset.
    pub done: usize,
    /// Whether regions share one of the limits. Then each region has to be reset.
    pub is_shared: bool,
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.done > 0 {
            let (limits, callers) = (self.limits, self.callers[..self.done].join(", "));
            write!(f, "{limits} {} reset: {callers}", if limits == 1 { "limit" } else { "limits" })?;
        }
        // If the store failed, the last reset may have been applied.
        let unknown = self.callers.get(self.done).filter(|_| self.asked > self.done);
        match (unknown, self.done) {
            (Some(caller), 0) => write!(f, "unknown: {caller}"),
            (Some(caller), _) => write!(f, "; unknown: {caller}"),
            (None, 0) => f.write_str("nothing"),
            (None, _) => Ok(()),
        }
    }
}

/// Returns the error for a reset of a key that the full memory store limits by its sketch.
pub fn not_reset() -> ServiceError {
    ServiceError::BadRequest(
        "the memory for counts is full, and the sketch that limits this key cannot give units back: wait until the key has \
         its units again, or raise memory.max_keys"
            .into(),
    )
}

/// Returns whether the hit asks for permission, and is therefore counted as allowed or refused.
fn is_request(hit: &Hit<'_>) -> bool {
    matches!(hit.op.kind(), OpKind::Take | OpKind::Peek)
}
