//! The index, which finds the rule for the entries of a descriptor.
//!
//! There can be a million rules, and a request needs one of them for each descriptor. On each level of nested rules, a
//! search does one or two hash look-ups for the entry, and compares its value with each wildcard of its key. A search
//! allocates no memory.
//!
//! The maps use a hash that is faster than the one of the standard library, but weaker. A weak hash is safe here:
//! clients only search, so they cannot fill a map with keys that collide.
//!
//! In this index, a node is a rule, and a slot is the list of all nodes on one level that have the same key.
//!
//! ```text
//! level 0   key "user" -> slot: exact {"vip7": node 0}, wildcards ["vip*": node 1], alone: node 2
//!                                              |
//! level 1                                      +-> key "path" -> slot: exact {"/search": node 3}
//! ```
//!
//! Node 0 is the rule `user=vip7`. Node 2 is the rule with the key `user` and no value. Node 3 is the rule
//! `user=vip7 > path=/search`, which is nested in node 0.

mod rules;
mod steps;
mod work;
mod written;

use std::sync::Arc;

use foldhash::HashMap;

use self::work::Work;
use super::model::{Pattern, Rule};

pub use rules::Rules;
pub use steps::{How, Outcome, Step};

pub(super) use rules::DomainEntry;

/// The rules of all domains, as trees of nodes. The number of a node is the index of its rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    levels: Vec<Level>,
    /// For each node, the number of the level with the rules that are nested in it. `None` if it has no nested rules.
    below: Vec<Option<u32>>,
}

/// The rules of one `descriptors` list in a file. The list is at the top of the file, or it is nested in a rule.
#[derive(Clone, Debug, Default)]
struct Level {
    keys: HashMap<Arc<str>, Slot>,
    /// The maximum work that a search on this level and on all levels below it can need.
    work: Work,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// The nodes whose value has no star, by that value.
    exact: HashMap<Arc<str>, u32>,
    /// The length of the longest exact value in bytes. A longer value of a request cannot be equal to an exact value,
    /// so it is not hashed. If it were, clients could make searches slow with very long values.
    longest: usize,
    /// The nodes with a wildcard, in the order in which they are tried.
    wildcards: Vec<Wildcard>,
    /// The nodes of `wildcards`, by the text of their patterns. During the load, this map finds equal patterns.
    /// Afterwards it is empty.
    patterns: HashMap<Box<str>, u32>,
    /// The node that has the key and no value. It fits every value.
    alone: Option<u32>,
}

impl Slot {
    /// Returns the nodes that fit `value`, in the order in which they are tried.
    fn candidates(&self, value: &str) -> impl Iterator<Item = (Tried<'_>, u32)> {
        let exact = if value.len() > self.longest { None } else { self.exact.get(value) };
        let exact = exact.map(|node| (Tried::Exact, *node));
        let wildcards = self.wildcards.iter().filter(move |w| w.pattern.fits(value));
        let wildcards = wildcards.map(|w| (Tried::Wildcard(&w.pattern), w.node));
        exact.into_iter().chain(wildcards).chain(self.alone.map(|node| (Tried::KeyAlone, node)))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Wildcard {
    pub(super) pattern: Pattern,
    pub(super) node: u32,
}

/// How a node fits the value of an entry. Unlike [`How`], it borrows from the index.
enum Tried<'i> {
    Exact,
    Wildcard(&'i Pattern),
    KeyAlone,
}

impl Tried<'_> {
    fn how(&self) -> How {
        match self {
            Tried::Exact => How::Exact,
            Tried::Wildcard(pattern) => How::Wildcard(pattern.as_str().to_owned()),
            Tried::KeyAlone => How::KeyAlone,
        }
    }
}

impl Index {
    /// Adds an empty level, and returns its number.
    pub(super) fn add_level(&mut self) -> u32 {
        self.levels.push(Level::default());
        number(self.levels.len() - 1)
    }

    /// Adds a node to a level, and returns the number of the node. Nodes are numbered in the order of the files, so the
    /// number is also the index of the node's rule.
    ///
    /// # Errors
    /// If the level already has a node with the same key and an equal value, returns the number of the older node, and
    /// the new node is not added.
    pub(super) fn add_node(&mut self, level: u32, key: &Arc<str>, value: Option<&Arc<str>>) -> Result<u32, u32> {
        let node = number(self.below.len());
        let slot = self.levels[level as usize].keys.entry(key.clone()).or_default();
        match value.map(|value| (value, Pattern::new(value))) {
            None => match slot.alone {
                Some(there) => return Err(there),
                None => slot.alone = Some(node),
            },
            Some((_, Some(pattern))) => match slot.patterns.get(pattern.as_str()) {
                Some(there) => return Err(*there),
                None => {
                    slot.patterns.insert(pattern.as_str().into(), node);
                    slot.wildcards.push(Wildcard { pattern, node });
                }
            },
            Some((value, None)) => match slot.exact.get(value) {
                Some(there) => return Err(*there),
                None => {
                    slot.longest = slot.longest.max(value.len());
                    slot.exact.insert(value.clone(), node);
                }
            },
        }
        self.below.push(None);
        Ok(node)
    }

    /// Stores that the rules on `level` are nested in `node`.
    pub(super) fn set_below(&mut self, node: u32, level: u32) {
        self.below[node as usize] = Some(level);
    }

    /// Finishes a level. Call it after all nodes of the level were added, and all levels below it were finished.
    ///
    /// This function sorts the wildcards of each key, so that the most specific wildcard is first. Equally specific
    /// wildcards stay in the order of the file. With `as_declared`, all wildcards stay in the order of the file.
    ///
    /// If a search could need too much work, the function returns the key that causes the work, an error message and a
    /// help text.
    pub(super) fn finish_level(&mut self, level: u32, as_declared: bool) -> Option<(Arc<str>, String, &'static str)> {
        for slot in self.levels[level as usize].keys.values_mut() {
            slot.patterns = HashMap::default();
            if !as_declared {
                slot.wildcards.sort_by_key(|wildcard| std::cmp::Reverse(wildcard.pattern.literals()));
            }
        }
        let of_keys = self.levels[level as usize]
            .keys
            .iter()
            .map(|(key, slot)| (key, self.work(slot, as_declared).and(Work::lookup(key.len()))));
        let of_keys: Vec<(&Arc<str>, Work)> = of_keys.collect();
        let too_much = of_keys.iter().filter_map(|(key, work)| Some((*key, work.too_much()?)));
        if let Some((key, (message, help))) = too_much.min_by_key(|(key, _)| *key) {
            return Some((key.clone(), message, help));
        }
        self.levels[level as usize].work = of_keys.iter().fold(Work::default(), |most, (_, work)| most.or(*work));
        None
    }

    /// Returns the work of a search in `slot` and on the levels below it, for the most expensive values that a client
    /// could send. With `first_only`, only the first node that fits is tried.
    ///
    /// A value is equal to at most one exact value, so only the most expensive exact value counts. Several wildcards
    /// can fit the same value, and the search can then try all these wildcards.
    fn work(&self, slot: &Slot, first_only: bool) -> Work {
        let below =
            |node: u32| self.below[node as usize].map_or(Work::default(), |level| self.levels[level as usize].work);
        let compared = slot.wildcards.iter().fold(Work::lookup(slot.longest), |sum, w| sum.and(Work::of(&w.pattern)));
        let exact = slot.exact.values().fold(Work::default(), |most, node| most.or(below(*node)));
        let alone = slot.alone.map_or(Work::default(), below);
        let wildcards = slot.wildcards.iter().map(|w| (w.pattern.prefix(), below(w.node)));
        // Without `first_only`, the search can try several nodes one after the other, so their work is added.
        compared.and(match first_only {
            true => wildcards.fold(exact.or(alone), |most, (_, work)| most.or(work)),
            false => exact.and(work::together(wildcards)).and(alone),
        })
    }

    /// Returns the node that matches `entries`. The first entry is matched on `level`.
    ///
    /// If a node fits an entry, but no node below it fits the rest, the search tries the next node that fits the entry.
    /// With `first_only`, the search ends instead, as in Envoy's reference rate limit server. Each node is visited at
    /// most once. The depth and the [work](Work) of a search were checked when the rules were loaded.
    pub(super) fn find(&self, level: u32, entries: &[(&str, &str)], first_only: bool) -> Option<u32> {
        let ((key, value), rest) = entries.split_first()?;
        let slot = self.levels[level as usize].keys.get(*key)?;
        for (_, node) in slot.candidates(value) {
            if rest.is_empty() {
                return Some(node);
            }
            let below = self.below[node as usize];
            if let Some(found) = below.and_then(|level| self.find(level, rest, first_only)) {
                return Some(found);
            }
            if first_only {
                return None;
            }
        }
        None
    }

    /// Searches like [`find`](Index::find), and also records each step in `search`. Returns whether a node matches.
    ///
    /// `depth` is the index of the entry that is matched on `level`.
    pub(super) fn explain(&self, search: &mut Explained<'_>, level: u32, depth: usize) -> bool {
        let Some((key, value)) = search.entries.get(depth).copied() else { return false };
        let last = depth + 1 == search.entries.len();
        let slot = self.levels[level as usize].keys.get(key);
        let mut fitted = false;
        for (tried, node) in slot.into_iter().flat_map(|slot| slot.candidates(value)) {
            fitted = true;
            let outcome = if last { Outcome::Matched } else { Outcome::WentDeeper };
            let at = search.steps.len();
            search.record(depth, outcome, || (tried.how(), Some(node)));
            if last {
                return true;
            }
            let outcome = match self.below[node as usize] {
                Some(below) if self.explain(search, below, depth + 1) => return true,
                Some(_) if !search.first_only => Outcome::WentBack,
                Some(_) => Outcome::WentDeeper,
                None => Outcome::Failed,
            };
            if let Some(step) = search.steps.get_mut(at) {
                step.outcome = outcome;
            }
            if search.first_only {
                return false;
            }
        }
        if !fitted {
            search.record(depth, Outcome::Failed, || (How::Nothing, None));
        }
        false
    }

    /// Returns the keys of a level, each with its nodes, for the checks that produce warnings.
    pub(super) fn slots(&self, level: u32) -> impl Iterator<Item = (&str, SlotView<'_>)> {
        self.levels[level as usize].keys.iter().map(|(key, slot)| (&**key, SlotView { slot }))
    }

    /// Returns the nodes that have this key on a level.
    pub(super) fn slot(&self, level: u32, key: &str) -> Option<SlotView<'_>> {
        self.levels[level as usize].keys.get(key).map(|slot| SlotView { slot })
    }

    /// Returns the number of the level with the rules that are nested in a node. `None` if there are none.
    pub(super) fn below(&self, node: u32) -> Option<u32> {
        self.below[node as usize]
    }
}

/// A search that records its steps, for [`Index::explain`].
pub(super) struct Explained<'e> {
    pub(super) entries: &'e [(&'e str, &'e str)],
    /// All rules, by the number of their node. A step records the line of its rule.
    pub(super) rules: &'e [Rule],
    /// Whether only the first node that fits is tried on each level.
    pub(super) first_only: bool,
    pub(super) steps_max: usize,
    /// The value in a step is cut to this many bytes.
    pub(super) value_bytes: usize,
    pub(super) steps: Vec<Step>,
    /// The number of steps after the first `steps_max`, which are only counted.
    pub(super) left_out: usize,
}

impl Explained<'_> {
    /// Records a step at the entry with the index `depth`. After `steps_max` steps, a step is only counted. `found`
    /// returns how the entry matched, and the node that fits.
    fn record(&mut self, depth: usize, outcome: Outcome, found: impl FnOnce() -> (How, Option<u32>)) {
        if self.steps.len() >= self.steps_max {
            self.left_out += 1;
            return;
        }
        let (key, value) = self.entries[depth];
        let value = &value[..value.floor_char_boundary(self.value_bytes)];
        let (how, node) = found();
        let origin = node.and_then(|node| self.rules.get(node as usize)).map(|rule| rule.origin.clone());
        self.steps.push(Step { level: depth, key: key.into(), value: value.into(), how, outcome, origin });
    }
}

/// A read-only view of the nodes of one key on one level, for the checks that produce warnings.
pub(super) struct SlotView<'i> {
    slot: &'i Slot,
}

impl<'i> SlotView<'i> {
    /// Returns the node that has exactly this value.
    pub(super) fn exact(&self, value: &str) -> Option<u32> {
        self.slot.exact.get(value).copied()
    }

    /// Returns all exact values, each with its node.
    pub(super) fn exacts(&self) -> impl Iterator<Item = (&'i str, u32)> + use<'i> {
        self.slot.exact.iter().map(|(value, node)| (&**value, *node))
    }

    /// Returns the wildcards, in the order in which they are tried.
    pub(super) fn wildcards(&self) -> &'i [Wildcard] {
        &self.slot.wildcards
    }

    /// Returns the node that has the key and no value.
    pub(super) fn alone(&self) -> Option<u32> {
        self.slot.alone
    }

    /// Returns the node of the first wildcard for which `fits` returns true. If there is no such wildcard, returns the
    /// node that has the key and no value. Only the first `most` wildcards are checked.
    pub(super) fn first_that(&self, most: usize, fits: impl Fn(&Pattern) -> bool) -> Option<u32> {
        let wildcard = self.slot.wildcards.iter().take(most).find(|wildcard| fits(&wildcard.pattern));
        wildcard.map(|wildcard| wildcard.node).or(self.slot.alone)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> + use<'i> {
        let wildcards = self.slot.wildcards.iter().map(|wildcard| wildcard.node);
        self.slot.exact.values().copied().chain(wildcards).chain(self.slot.alone)
    }
}

/// Converts the index of a node or of a level to a `u32`. [`MAX_RULES`](crate::MAX_RULES) bounds the number of nodes
/// and of levels.
fn number(index: usize) -> u32 {
    u32::try_from(index).expect("invariant: the number of rules is bounded far below 2^32")
}
