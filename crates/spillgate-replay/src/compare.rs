//! What differs when two sets of rules decide the same requests.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use spillgate::KeyHasher;
use spillgate::insight::CallerName;
use spillgate::rules::Request;
use spillgate_service::caller_name;

use super::callers::{CALLERS, Names};
use super::report::{Agreement, CallerChange, Comparison, Counts, LimitChange};
use super::run::{Decided, Run};

/// The most callers that a report shows with their changes.
const SHOWN: usize = 20;

/// The callers of two runs, with their requests and refusals.
#[derive(Debug)]
pub(super) struct Callers {
    /// By the hash of the whole descriptor, because two long names can be equal after they are cut.
    by_hash: HashMap<u128, (CallerName, CallerCounts)>,
    hasher: KeyHasher,
    /// Whether there were more callers than [`CALLERS`].
    is_full: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct CallerCounts {
    requests: u64,
    old_refused: u64,
    new_refused: u64,
}

impl Agreement {
    pub(super) fn add(&mut self, old_allowed: bool, new_allowed: bool) {
        let count = match (old_allowed, new_allowed) {
            (true, true) => &mut self.both_allow,
            (false, false) => &mut self.both_refuse,
            (false, true) => &mut self.only_old_refuses,
            (true, false) => &mut self.only_new_refuses,
        };
        *count += 1;
    }
}

impl Callers {
    pub(super) fn new() -> Callers {
        Callers { by_hash: HashMap::new(), hasher: KeyHasher::random(), is_full: false }
    }

    /// Counts each descriptor of a request for which the old or the new rules have a limit.
    pub(super) fn add(&mut self, request: &Request<'_>, old: &Decided, new: &Decided) {
        for (descriptor, (old, new)) in request.descriptors().zip(old.descriptors.iter().zip(&new.descriptors)) {
            if old.is_none() && new.is_none() {
                continue;
            }
            let mut hash = self.hasher.start();
            for (key, value) in descriptor.entries {
                hash.part(key.as_bytes()).part(value.as_bytes());
            }
            let hash = hash.finish();
            let is_full = self.by_hash.len() >= CALLERS;
            let counts = match self.by_hash.entry(hash) {
                Entry::Occupied(known) => &mut known.into_mut().1,
                Entry::Vacant(_) if is_full => {
                    self.is_full = true;
                    continue;
                }
                Entry::Vacant(new) => {
                    &mut new.insert((caller_name(None, descriptor.entries), CallerCounts::default())).1
                }
            };
            counts.requests += 1;
            counts.old_refused += u64::from(*old == Some(true));
            counts.new_refused += u64::from(*new == Some(true));
        }
    }

    /// Returns the callers whose number of refusals changes, and how many more there are than a report shows.
    fn finish(self, names: &Names) -> (Vec<CallerChange>, u64) {
        let changed = self.by_hash.into_values().filter(|(_, counts)| counts.old_refused != counts.new_refused);
        let mut changed: Vec<_> = changed.map(|(name, counts)| (name.to_string(), counts)).collect();
        let change = |counts: &CallerCounts| counts.old_refused.abs_diff(counts.new_refused);
        changed.sort_by(|(name, counts), (other_name, other)| {
            change(other).cmp(&change(counts)).then(name.cmp(other_name)).then(other.requests.cmp(&counts.requests))
        });
        let further = changed.len().saturating_sub(SHOWN) as u64;
        let shown = changed.into_iter().take(SHOWN).map(|(name, counts)| CallerChange {
            caller: names.shown(&name),
            requests: counts.requests,
            old_refused: counts.old_refused,
            new_refused: counts.new_refused,
        });
        (shown.collect(), further)
    }
}

/// Returns what changes from the rules of `old` to those of `new`.
pub(super) fn comparison((old, new): (&Run, &Run), requests: Agreement, callers: Callers, names: &Names) -> Comparison {
    let callers_incomplete = callers.is_full;
    let (callers, further_callers) = callers.finish(names);
    Comparison {
        old: old.name().to_owned(),
        new: new.name().to_owned(),
        requests,
        limits: limits(old, new),
        callers,
        further_callers,
        callers_incomplete,
    }
}

/// A limit of the old rules and one of the new rules are the same limit if they have the same domain, the same rule and
/// the same name. Limits without a name are compared by their positions in the rule.
type Identity<'r> = (&'r str, &'r str, Result<&'r str, usize>);

fn limits(old: &Run, new: &Run) -> Vec<LimitChange> {
    let mut of_old = identified(old);
    let mut changes = Vec::new();
    for ((domain, rule, name), counts) in identified(new) {
        let known = of_old.iter().position(|(identity, _)| *identity == (domain, rule, name));
        let old = known.map(|index| of_old.remove(index).1);
        changes.push(change((domain, rule, name), old, Some(counts)));
    }
    changes.extend(of_old.into_iter().map(|(identity, counts)| change(identity, Some(counts), None)));
    changes
}

fn identified(run: &Run) -> Vec<(Identity<'_>, Counts)> {
    run.counts()
        .map(|(rule, at, limit, counts)| ((&*rule.domain, &*rule.path, limit.name.as_deref().ok_or(at)), counts))
        .collect()
}

fn change((domain, rule, name): Identity<'_>, old: Option<Counts>, new: Option<Counts>) -> LimitChange {
    LimitChange { domain: domain.to_owned(), rule: rule.to_owned(), name: name.ok().map(str::to_owned), old, new }
}
