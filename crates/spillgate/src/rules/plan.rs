//! From a request to the hits that a store decides.

use smallvec::SmallVec;
use spillgate_core::{Hit, MAX_HITS, Op};

use super::{Domain, Limit, Rule, Rules};
use crate::KeyHasher;

/// What one request asks.
#[derive(Clone, Copy, Debug)]
pub struct Request<'p> {
    /// Which set of rules.
    pub domain: &'p str,
    /// What is counted, each judged by its own rule.
    pub descriptors: &'p [Descriptor<'p>],
    /// The longest delay the caller can wait for its turn, in nanoseconds.
    pub max_wait_ns: u64,
}

/// One descriptor of a request.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'p> {
    /// Keys and values in order; the order and the number count.
    pub entries: &'p [(&'p str, &'p str)],
    /// What to do.
    pub action: Action,
    /// A limit that the caller brings instead of the rules'.
    pub limit: Option<&'p Limit>,
}

/// What a descriptor does to its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take this many units; 0 looks without taking. A `post_paid` limit is charged in any case, and refuses only looks;
    /// a refused one starts its penalty.
    Take(u64),
    /// Give so many units back.
    Refund(u64),
}

/// The hits of one request, and which descriptor each belongs to.
#[derive(Clone, Debug)]
pub struct Plan<'p> {
    /// Merged and ready for a store; at most [`MAX_HITS`].
    pub hits: SmallVec<[Hit<'p>; 4]>,
    /// One for each descriptor of the request, in order.
    pub descriptors: SmallVec<[Planned<'p>; 4]>,
    /// `compat: envoy`: each descriptor is to be decided alone, in order.
    pub separately: bool,
    /// The request asks for more hits than [`MAX_HITS`]; some are missing, so refuse it.
    pub too_large: bool,
}

/// What became of one descriptor.
#[derive(Clone, Debug, Default)]
pub struct Planned<'p> {
    /// The rule that matched; `None` without one, or where the caller brought a limit.
    pub rule: Option<&'p Rule>,
    /// The rule passes everything uncounted.
    pub unlimited: bool,
    /// A limit of the rule was left out, since another rule of this request replaces it.
    pub replaced: bool,
    /// For each limit: the index of its hit in [`Plan::hits`]. Empty if nothing limits it.
    pub hits: SmallVec<[(usize, &'p Limit); 2]>,
}

impl Rules {
    /// Turns a request into hits: matches each descriptor, leaves out what is replaced, and
    /// merges what is the same.
    ///
    /// A rule is found by whole values. What is counted is the first `value_bytes` bytes of each value, so that
    /// longer ones with the same beginning share a counter.
    ///
    /// Nothing is allocated for up to four descriptors with two limits each.
    ///
    /// ```
    /// use spillgate::KeyHasher;
    /// use spillgate::rules::{Action, Descriptor, Request, Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user_id, rate_limit: {unit: minute, requests_per_unit: 5}}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let descriptor = Descriptor { entries: &[("user_id", "7")], action: Action::Take(1), limit: None };
    /// let request = Request { domain: "api", descriptors: &[descriptor], max_wait_ns: 0 };
    /// assert_eq!(rules.plan(&KeyHasher::random(), &request, 1024).hits[0].quota.limit(), 5);
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn plan<'p>(&'p self, keys: &KeyHasher, request: &Request<'p>, value_bytes: usize) -> Plan<'p> {
        let mut plan =
            Plan { hits: SmallVec::new(), descriptors: SmallVec::new(), separately: false, too_large: false };
        let Some((number, domain)) = self.domain(request.domain) else {
            plan.descriptors.resize_with(request.descriptors.len(), Planned::default);
            return plan;
        };
        plan.separately = domain.compat_envoy;
        for descriptor in request.descriptors {
            let rule = match descriptor.limit {
                Some(_) => None,
                None => self.find_in(number, descriptor.entries),
            };
            let unlimited = rule.is_some_and(|rule| rule.unlimited);
            plan.descriptors.push(Planned { rule, unlimited, ..Planned::default() });
        }
        self.drop_replaced(number, &mut plan.descriptors);
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            plan.add(&Counter { keys, domain, value_bytes }, descriptor, at, request.max_wait_ns);
        }
        plan
    }

    /// Marks the rules of which at least one limit is replaced.
    fn drop_replaced(&self, domain: usize, planned: &mut [Planned<'_>]) {
        if !self.has_replaces(domain) {
            return;
        }
        for at in 0..planned.len() {
            let Some(rule) = planned[at].rule else { continue };
            planned[at].replaced = rule.names().any(|name| is_replaced(planned, name));
            planned[at].unlimited &= !planned[at].replaced;
        }
    }
}

impl<'p> Plan<'p> {
    /// Adds the hits of descriptor `at`.
    fn add(&mut self, counter: &Counter<'_>, asked: &Descriptor<'p>, at: usize, max_wait_ns: u64) {
        let planned = &self.descriptors[at];
        let (rule, replaced) = (planned.rule, planned.replaced);
        let limits = match (asked.limit, rule) {
            (Some(limit), _) => std::slice::from_ref(limit),
            (None, Some(rule)) => &*rule.limits,
            (None, None) => &[],
        };
        if limits.is_empty() {
            return;
        }
        let compat_envoy = counter.domain.compat_envoy;
        let key = counter.state_key(counter.counted(rule, asked.entries));
        let first_of_descriptor = self.hits.len();
        for limit in limits {
            let name = limit.name.as_deref();
            if replaced && name.is_some_and(|name| is_replaced(&self.descriptors, name)) {
                continue;
            }
            let quota = match &limit.charged {
                Some(charged) if compat_envoy => charged,
                _ => &limit.quota,
            };
            let key = match &limit.slot_by {
                Some(by) => in_slot(key, counter.slot_key(counter.counted(rule, asked.entries), by)),
                None => key,
            };
            let op = operation(asked.action, limit.post_paid, max_wait_ns);
            let binding = rule.map(Rule::binding).unwrap_or_default();
            let mergeable = if compat_envoy { first_of_descriptor } else { 0 };
            match self.place(Hit::new(key, quota, op, binding), mergeable) {
                Some(index) => self.descriptors[at].hits.push((index, limit)),
                None => self.too_large = true,
            }
        }
    }

    /// Merges `hit` with an equal one from `first` on, or adds it; `None` if there is no room.
    fn place(&mut self, hit: Hit<'p>, first: usize) -> Option<usize> {
        let same_key = |there: &Hit<'p>| if there.key == hit.key { there.merged(&hit) } else { None };
        for (index, there) in self.hits.iter_mut().enumerate().skip(first) {
            if let Some(merged) = same_key(there) {
                *there = merged;
                return Some(index);
            }
        }
        if self.hits.len() == MAX_HITS {
            return None;
        }
        self.hits.push(hit);
        Some(self.hits.len() - 1)
    }
}

/// Whether a matched rule of the request takes limits called `name` out of it.
fn is_replaced(planned: &[Planned<'_>], name: &str) -> bool {
    planned.iter().filter_map(|planned| planned.rule).flat_map(Rule::replaces).any(|replaced| replaced == name)
}

/// What is counted of a request, and under which keys.
struct Counter<'k> {
    keys: &'k KeyHasher,
    domain: &'k Domain,
    /// Of each value, in bytes.
    value_bytes: usize,
}

impl Counter<'_> {
    /// The entries as they are counted: each key with its value, or with the pattern that its values share. A longer
    /// value is cut: refusing it instead would let it pass wherever a proxy fails open, and values come from the clients
    /// that are to be limited.
    fn counted<'e>(
        &self,
        rule: Option<&'e Rule>,
        entries: &'e [(&'e str, &'e str)],
    ) -> impl Iterator<Item = (&'e str, &'e str)> {
        let steps = rule.map_or(&[][..], |rule| &rule.steps);
        let value_bytes = self.value_bytes;
        entries.iter().enumerate().map(move |(level, (key, value))| {
            let shared = steps.get(level).filter(|step| step.shared).and_then(|step| step.value.as_deref());
            (*key, shared.unwrap_or_else(|| &value[..value.floor_char_boundary(value_bytes)]))
        })
    }

    /// The key of the counter: of the domain, then each key and value.
    fn state_key<'e>(&self, counted: impl Iterator<Item = (&'e str, &'e str)>) -> u128 {
        let mut builder = self.keys.start();
        builder.part(self.domain.name.as_bytes());
        for (key, value) in counted {
            builder.part(key.as_bytes()).part(value.as_bytes());
        }
        builder.finish()
    }

    /// The key that picks the slot: that of a descriptor with the entry called `by` alone.
    fn slot_key<'e>(&self, counted: impl Iterator<Item = (&'e str, &'e str)>, by: &str) -> u128 {
        self.state_key(counted.filter(|(key, _)| *key == by).take(1))
    }
}

/// The bits of a key, its lowest 98, that do not pick the slot of a Redis Cluster: the highest 30 do.
const UNSLOTTED: u128 = (1 << Hit::SLOT_SHIFT) - 1;

/// `key` in the slot of `slot`, for a limit with `slot_by`.
///
/// All keys of one value of that entry have the same 30 highest bits then, so 98 bits tell them apart: of n such keys
/// two are one with probability below n^2 / 2^99, less than that of the 88 bits which the memory store keeps. Bits
/// that say which value it is are lost to none: keys of different values differ in those 30 bits and in the 98.
const fn in_slot(key: u128, slot: u128) -> u128 {
    (slot & !UNSLOTTED) | (key & UNSLOTTED)
}

fn operation(action: Action, post_paid: bool, max_wait_ns: u64) -> Op {
    match action {
        // The question before the work: unlike a look, its refusal starts the penalty.
        Action::Take(0) if post_paid => Op::take(0),
        Action::Take(0) => Op::Peek,
        Action::Take(cost) if post_paid => Op::Force { cost },
        Action::Take(cost) => Op::Take { cost, max_wait_ns },
        Action::Refund(cost) => Op::Refund { cost, receipt: None },
    }
}
