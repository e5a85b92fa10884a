//! Turns a request into hits for a store.
//!
//! Rules have names and paths, and a store has keys (hashes) and quotas. This module is between the two, so that rules
//! do not depend on stores, and stores not on rules.

use smallvec::{SmallVec, smallvec};
use spillgate_core::{Hit, MAX_HITS, Op};

use super::index::Rules;
use super::model::{Limit, LimitSketch, Rule};
use spillgate_limiter::sketch::Sketch;
use spillgate_limiter::{KeyBuilder, KeyHasher};

/// A request: a domain, and one or more descriptors with their entries. Every protocol builds requests of this type.
///
/// The keys and values are borrowed from the message that the client sent. The entries of all descriptors are in one
/// list. A request with at most four descriptors, and at most eight entries in total, allocates no memory.
///
/// ```
/// use spillgate::rules::{Action, Request};
/// let mut request = Request::new("api").with_max_wait_ns(1_000_000_000);
/// request.add([("user_id", "7")], Action::Take(1), None);
/// request.add([("user_id", "7"), ("path", "/search")], Action::Take(1), None);
/// assert_eq!(request.descriptors().map(|descriptor| descriptor.entries.len()).collect::<Vec<_>>(), [1, 2]);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request<'p> {
    /// The name of the domain whose rules are searched.
    pub domain: &'p str,
    /// The longest time that the caller is ready to wait in a queue, in nanoseconds. The default is 0.
    pub max_wait_ns: u64,
    /// The entries of all descriptors, one descriptor after the other.
    entries: SmallVec<[(&'p str, &'p str); 8]>,
    /// One part for each descriptor.
    parts: SmallVec<[Part<'p>; 4]>,
}

#[derive(Clone, Copy, Debug)]
struct Part<'p> {
    /// The number of entries of this descriptor. In the list of entries, they follow the entries of the previous
    /// descriptor.
    entries: usize,
    action: Action,
    limit: Option<&'p Limit>,
}

impl<'p> Request<'p> {
    /// Makes a request without descriptors.
    #[must_use]
    pub fn new(domain: &'p str) -> Request<'p> {
        Request { domain, max_wait_ns: 0, entries: SmallVec::new(), parts: SmallVec::new() }
    }

    /// Returns the same request with another `max_wait_ns`: the longest time that the caller is ready to wait in a
    /// queue, in nanoseconds.
    ///
    /// Only a limit with a queue uses this time. If the time is 0, such a limit refuses every request that would have
    /// to wait.
    #[must_use]
    pub fn with_max_wait_ns(self, max_wait_ns: u64) -> Request<'p> {
        Request { max_wait_ns, ..self }
    }

    /// Allocates memory for this many further descriptors at once.
    pub fn reserve(&mut self, descriptors: usize) {
        self.parts.reserve(descriptors);
    }

    /// Adds a descriptor.
    ///
    /// `entries` are its keys and values in order, and `action` is the operation. If there is a `limit`, it is used
    /// instead of the limits of the rules.
    ///
    /// ```
    /// use spillgate::rules::{Action, Limit, Request, Unit};
    /// let limit = Limit::overriding(Unit::Minute, 10);
    /// let mut request = Request::new("api");
    /// request.add([("tenant", "acme"), ("user", "ann")], Action::Take(1), Some(&limit));
    /// assert_eq!(request.descriptors().next().unwrap().entries, [("tenant", "acme"), ("user", "ann")]);
    /// ```
    pub fn add(
        &mut self,
        entries: impl IntoIterator<Item = (&'p str, &'p str)>,
        action: Action,
        limit: Option<&'p Limit>,
    ) {
        let before = self.entries.len();
        // Most descriptors have few entries. `push` adds few entries faster than `extend`, because `extend` reserves
        // memory first.
        entries.into_iter().for_each(|entry| self.entries.push(entry));
        self.parts.push(Part { entries: self.entries.len() - before, action, limit });
    }

    /// Returns the descriptors in order. [`Rules::plan`] searches for the rule of each descriptor.
    #[must_use]
    pub fn descriptors(&self) -> impl ExactSizeIterator<Item = Descriptor<'_, 'p>> {
        let mut rest = &self.entries[..];
        self.parts.iter().map(move |part| {
            let (entries, others) = rest.split_at(part.entries);
            rest = others;
            Descriptor { entries, action: part.action, limit: part.limit }
        })
    }
}

/// One descriptor of a request. [`Request::descriptors`] returns it, and [`Request`] has an example.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Descriptor<'r, 'p> {
    /// The keys and values. A rule matches only if its path has one level for each entry, in the order of the entries.
    pub entries: &'r [(&'p str, &'p str)],
    /// Whether units are taken or given back, and how many.
    pub action: Action,
    /// A limit that comes with the request. It is used instead of the limits of the rules.
    pub limit: Option<&'p Limit>,
}

/// The operation of a descriptor on its limits. [`Request`] has an example. Later versions may add operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Takes this many units if they fit.
    ///
    /// With 0 units, this is a peek: nothing is taken.
    ///
    /// A limit with `post_paid` is different. It counts the units even if they do not fit, and it refuses only requests
    /// of 0 units. Such a refusal starts the penalty of the limit.
    Take(u64),
    /// Gives this many units back.
    Refund(u64),
}

/// The hits of one request, and for each descriptor the list of its hits. [`Rules::plan`] makes a plan and has an
/// example.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Plan<'p> {
    /// The hits for a store, at most [`MAX_HITS`]. Hits that differ only in their costs are merged.
    pub hits: SmallVec<[Hit<'p>; 4]>,
    /// The parts of the plan, one for each descriptor of the request, in the same order.
    pub descriptors: SmallVec<[Planned<'p>; 4]>,
    /// Whether the descriptors are decided one after the other, each alone (`compat: envoy`).
    pub separately: bool,
    /// Whether a hit is on a limit with `representation: sketch`. [`Plan::sketches`] returns the sketches.
    pub sketched: bool,
    /// Whether the request needs more than [`MAX_HITS`] hits. Some hits are then missing, so the caller must reject the
    /// request.
    pub too_large: bool,
}

/// The part of a plan for one descriptor. [`Plan::descriptors`] lists the parts of all descriptors.
///
/// ```
/// use spillgate::KeyHasher;
/// use spillgate::rules::{Action, Request, Rules, RulesFile};
/// let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]";
/// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
/// let mut request = Request::new("api");
/// request.add([("user", "ann")], Action::Take(1), None);
/// request.add([("color", "red")], Action::Take(1), None);
/// let plan = rules.plan(&KeyHasher::random(), &request, 1024);
/// assert_eq!(plan.descriptors[0].rule.map(|rule| &*rule.path), Some("user"));
/// assert!(plan.descriptors[1].rule.is_none() && plan.descriptors[1].hits.is_empty());
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Planned<'p> {
    /// The rule that matches. `None` if no rule matches, or if the request contains a limit for this descriptor.
    pub rule: Option<&'p Rule>,
    /// Whether the rule allows everything and counts nothing (`unlimited: true`). False if another rule of the request
    /// replaces this.
    pub unlimited: bool,
    /// Whether the rule never refuses a request (`shadow_mode: true`).
    pub shadow: bool,
    /// Whether another rule that matches this request replaces a limit of this rule (`replaces`). The list `hits` does
    /// not have the replaced limit.
    pub replaced: bool,
    /// The limits of the descriptor, each with the index of its hit in [`Plan::hits`]. The list is empty if no limit
    /// applies to the descriptor.
    pub hits: SmallVec<[(usize, &'p Limit); 2]>,
}

impl Rules {
    /// Turns a request into hits: finds the rule of each descriptor, leaves out the limits that are replaced, and
    /// merges hits that differ only in their costs.
    ///
    /// Rules match whole values, but only the first `value_bytes` bytes of a value choose the counter. Longer values
    /// that begin with the same bytes share a counter. So a long value takes no more time to hash than a value of
    /// `value_bytes` bytes.
    ///
    /// No memory is allocated if the request has at most four descriptors, at most two limits for each descriptor, and
    /// at most four limits in total, and no rule has a `*` in its key.
    ///
    /// ```
    /// use spillgate::KeyHasher;
    /// use spillgate::rules::{Action, Request, Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user_id, rate_limit: {unit: minute, requests_per_unit: 5}}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let mut request = Request::new("api");
    /// request.add([("user_id", "7")], Action::Take(1), None);
    /// assert_eq!(rules.plan(&KeyHasher::random(), &request, 1024).hits[0].quota.limit(), 5);
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn plan<'p, 'q: 'p>(&'p self, keys: &KeyHasher, request: &Request<'q>, value_bytes: usize) -> Plan<'p> {
        let mut plan = Plan {
            hits: SmallVec::new(),
            descriptors: SmallVec::new(),
            separately: false,
            sketched: false,
            too_large: false,
        };
        let Some((number, domain)) = self.domain(request.domain) else {
            plan.descriptors.resize_with(request.parts.len(), Planned::default);
            return plan;
        };
        plan.separately = domain.compat_envoy;
        for descriptor in request.descriptors() {
            let rule = match descriptor.limit {
                Some(_) => None,
                None => self.find_in(number, descriptor.entries),
            };
            let (unlimited, shadow) = rule.map_or((false, false), |rule| (rule.unlimited, rule.shadow_mode));
            plan.descriptors.push(Planned { rule, unlimited, shadow, ..Planned::default() });
        }
        self.drop_replaced(number, &mut plan.descriptors);
        let mut key = keys.start();
        key.domain(&domain.name);
        let counter = Counter { key, compat_envoy: domain.compat_envoy, value_bytes };
        for (at, descriptor) in request.descriptors().enumerate() {
            plan.add(&counter, &descriptor, at, request.max_wait_ns);
        }
        plan
    }

    /// Marks each descriptor whose rule has a limit that another rule of the request replaces.
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
    /// Returns, for each hit, the sketch that decides the hit, or `None` if the store decides it.
    /// [`Sketch::decide_beside`](spillgate_limiter::sketch::Sketch::decide_beside) takes this list.
    #[must_use]
    pub fn sketches(&self) -> SmallVec<[Option<&'p Sketch>; 4]> {
        let mut sketches = smallvec![None; self.hits.len()];
        for (index, limit) in self.descriptors.iter().flat_map(|planned| &planned.hits) {
            sketches[*index] = limit.sketch.as_ref().and_then(LimitSketch::opened);
        }
        sketches
    }

    /// Adds the hits of the descriptor with the index `at`. There is one hit for each limit that is not replaced.
    fn add(&mut self, counter: &Counter, asked: &Descriptor<'_, 'p>, at: usize, max_wait_ns: u64) {
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
        let compat_envoy = counter.compat_envoy;
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
            match self.place(Hit::new(key, quota, op, binding), limit, mergeable) {
                Some(index) => {
                    self.sketched |= limit.sketch.is_some();
                    self.descriptors[at].hits.push((index, limit));
                }
                None => self.too_large = true,
            }
        }
    }

    /// Adds `hit` to the list of hits, and returns its index. Returns `None` if there are too many hits.
    ///
    /// Two descriptors of a request can have the same counter. If their hits differ only in their costs, the hits are
    /// merged, and the cost of the merged hit is the sum of both costs. Only hits at the index `first` or later are
    /// merged with `hit`. A hit that a sketch counts is never merged with a hit that the store counts.
    fn place(&mut self, hit: Hit<'p>, limit: &Limit, first: usize) -> Option<usize> {
        let counter = |limit: &Limit| limit.sketch.as_ref().and_then(LimitSketch::opened).map(std::ptr::from_ref);
        let placed = || self.descriptors.iter().flat_map(|planned| &planned.hits);
        let has_counter = |index| placed().any(|(at, other)| *at == index && counter(other) == counter(limit));
        let same_key = |there: &Hit<'p>| if there.key == hit.key { there.merged(&hit) } else { None };
        for (index, there) in self.hits.iter_mut().enumerate().skip(first) {
            if let Some(merged) = same_key(there)
                && has_counter(index)
            {
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

/// Returns whether a rule of the request replaces limits with this name.
fn is_replaced(planned: &[Planned<'_>], name: &str) -> bool {
    planned.iter().filter_map(|planned| planned.rule).flat_map(Rule::replaces).any(|replaced| replaced == name)
}

/// Makes the keys of counters.
struct Counter {
    /// The beginning of all keys of the request: the name of its domain. Each key is a hash with a secret, so clients
    /// cannot find two values with the same key.
    key: KeyBuilder,
    /// Whether the domain has `compat: envoy`.
    compat_envoy: bool,
    /// How many bytes of each value are part of the key. The rest of a longer value is ignored.
    value_bytes: usize,
}

impl Counter {
    /// Returns the entries that identify the counter. If all values that match a wildcard share one counter
    /// (`share_threshold`), the entry has the wildcard instead of the value.
    ///
    /// A value that is too long is cut. If a long value caused an error instead, clients could avoid the limit with
    /// long values, because many proxies allow a request when the rate limiter returns an error.
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

    /// Returns the key of the counter: a hash of the domain, and of the key and value of each entry.
    fn state_key<'e>(&self, counted: impl Iterator<Item = (&'e str, &'e str)>) -> u128 {
        let mut builder = self.key.clone();
        for (key, value) in counted {
            builder.part(key.as_bytes()).part(value.as_bytes());
        }
        builder.finish()
    }

    /// Returns a key that chooses the slot of a Redis Cluster. It is a hash of the domain and of the entry `by`.
    fn slot_key<'e>(&self, counted: impl Iterator<Item = (&'e str, &'e str)>, by: &str) -> u128 {
        self.state_key(counted.filter(|(key, _)| *key == by).take(1))
    }
}

/// A mask with the lowest 98 bits of a key. The other 30 bits, the highest bits, choose the slot of a Redis Cluster.
const UNSLOTTED: u128 = (1 << Hit::SLOT_SHIFT) - 1;

/// Returns `key` with its highest 30 bits replaced by the bits of `slot`. Limits with `slot_by` have such keys.
///
/// All keys with the same `slot` have the same highest 30 bits, so only the other 98 bits distinguish these keys. The
/// probability that two of `n` such keys are equal is below `n^2 / 2^99`. In the memory store the probability is
/// larger, because its hash tables store only 88 bits of most keys.
const fn in_slot(key: u128, slot: u128) -> u128 {
    (slot & !UNSLOTTED) | (key & UNSLOTTED)
}

/// Returns the operation on one limit. A `post_paid` limit is charged after the work, so a take becomes a force: the
/// units are counted even if they do not fit.
fn operation(action: Action, post_paid: bool, max_wait_ns: u64) -> Op {
    match action {
        // With cost 0, a client checks a `post_paid` limit before the work. The operation is a take of 0 units and not
        // a peek, because only the refusal of a take starts the penalty.
        Action::Take(0) if post_paid => Op::take(0),
        Action::Take(0) => Op::Peek,
        Action::Take(cost) if post_paid => Op::Force { cost },
        Action::Take(cost) => Op::Take { cost, max_wait_ns },
        Action::Refund(cost) => Op::Refund { cost, receipt: None },
    }
}
