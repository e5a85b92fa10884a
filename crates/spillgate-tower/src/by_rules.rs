//! A layer that asks the limits of rules files.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use spillgate_core::{Algorithm, Binding, Decision, Op};

use spillgate_limiter::KeyHasher;
use spillgate_rules::{Action, Request, Rules};

use super::ask::{Asked, CONCURRENCY, TOO_MANY};
use super::head::RequestHead;
use super::outcome::LimitOutcome;

/// Only this many bytes at the beginning of a value choose its counter. The spillgate server has the same default.
const VALUE_BYTES: usize = 1024;

/// The rules of a layer, and how a request becomes descriptors.
#[derive(Clone)]
pub(super) struct ByRules {
    pub(super) rules: Arc<Rules>,
    pub(super) describe: Arc<Describe>,
}

pub(super) type Describe = dyn for<'r> Fn(&RequestHead<'r>, &mut Descriptors<'r>) + Send + Sync;

/// The descriptors of one request, for [`RateLimitLayer::rules`](super::RateLimitLayer::rules), which has an example.
#[derive(Debug, Default)]
pub struct Descriptors<'r> {
    domain: Cow<'r, str>,
    /// The entries of all descriptors.
    entries: SmallVec<[(&'static str, Cow<'r, str>); 8]>,
    /// For each descriptor, the index after its last entry.
    ends: SmallVec<[usize; 4]>,
}

impl<'r> Descriptors<'r> {
    pub(super) fn new() -> Descriptors<'r> {
        Descriptors::default()
    }

    /// Sets the domain, whose rules are searched. Without a domain, no rule matches.
    pub fn domain(&mut self, domain: impl Into<Cow<'r, str>>) -> &mut Self {
        self.domain = domain.into();
        self
    }

    /// Begins a descriptor with its first entry. [`and`](Descriptors::and) adds further entries to this descriptor.
    pub fn add(&mut self, key: &'static str, value: impl Into<Cow<'r, str>>) -> &mut Self {
        self.ends.push(self.entries.len());
        self.and(key, value)
    }

    /// Adds an entry to the descriptor that was begun last. If no descriptor was begun, the entry begins one.
    pub fn and(&mut self, key: &'static str, value: impl Into<Cow<'r, str>>) -> &mut Self {
        self.entries.push((key, value.into()));
        match self.ends.last_mut() {
            Some(end) => *end = self.entries.len(),
            None => self.ends.push(self.entries.len()),
        }
        self
    }

    /// Returns the request for the rules. Each descriptor takes `cost` units.
    fn request(&self, cost: u64) -> Request<'_> {
        let mut request = Request::new(&self.domain);
        let mut start = 0;
        for &end in &self.ends {
            let entries = self.entries[start..end].iter().map(|(key, value)| (*key, &**value));
            request.add(entries, Action::Take(cost), None);
            start = end;
        }
        request
    }
}

impl ByRules {
    /// Adds the limits of the rules that apply to this request.
    pub(super) fn limits_of(
        &self,
        request: &RequestHead<'_>,
        cost: u64,
        is_shadow: bool,
        keys: &KeyHasher,
        asked: &mut Asked,
    ) -> Result<(), &'static str> {
        let mut descriptors = Descriptors::new();
        (self.describe)(request, &mut descriptors);
        let asked_for = descriptors.request(cost);
        let plan = self.rules.plan(keys, &asked_for, VALUE_BYTES);
        if plan.too_large {
            return Err(TOO_MANY);
        }
        // Several limits can have equal hits. Equal hits become one hit, which has the name of the last of these
        // limits, and is hidden if one of the limits is hidden.
        let mut names: SmallVec<[(Option<&str>, bool); 4]> = SmallVec::from_elem((None, true), plan.hits.len());
        for (index, limit) in plan.descriptors.iter().flat_map(|descriptor| &descriptor.hits) {
            names[*index] = (limit.name.as_deref(), names[*index].1 && limit.exposed);
        }
        for (hit, (name, exposed)) in plan.hits.iter().zip(names) {
            match (hit.quota.algorithm(), hit.binding) {
                // A rule in shadow mode never refuses, so its concurrency limit can be left out.
                (Algorithm::Concurrency, Binding::Shadow) => continue,
                (Algorithm::Concurrency, _) => return Err(CONCURRENCY),
                _ => {}
            }
            // In the spillgate server, a post-paid limit counts the units after the work, even if they do not fit. The
            // layer asks before the work, so here the limit takes the units, and can refuse.
            let op = match hit.op {
                Op::Force { cost } => Op::take(cost),
                op => op,
            };
            let binding = if is_shadow { Binding::Shadow } else { hit.binding };
            let name = name.map(|name| Cow::Owned(name.to_owned()));
            let (quota, decision, key) = (hit.quota.clone().into(), Decision::default(), hit.key);
            asked.push(LimitOutcome { name, quota, decision, exposed, key, op, binding });
        }
        Ok(())
    }
}
