//! The index, which finds the rule for the entries of a descriptor.
//!
//! There can be a million rules, and a request needs one of them for each descriptor. On each level of nested rules, a
//! search does one or two hash look-ups for the entry, and compares its value with each wildcard of its key. A search
//! allocates no memory, except on levels where a key has a wildcard.
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
    /// Whether any level has a wildcard in a key.
    has_key_wildcards: bool,
}

/// The rules of one `descriptors` list in a file. The list is at the top of the file, or it is nested in a rule.
#[derive(Clone, Debug, Default)]
struct Level {
    /// Empty if a key of the level has a wildcard.
    keys: HashMap<Arc<str>, Slot>,
    with_wildcards: Option<Box<KeyWildcards>>,
    /// The maximum work that a search on this level and on all levels below it can need.
    work: Work,
}

/// The keys of a level on which a key has a wildcard. They are not in the level itself, so that a search on another level,
/// which finds its key there, needs no instruction for wildcards.
#[derive(Clone, Debug, Default)]
struct KeyWildcards {
    keys: HashMap<Arc<str>, Slot>,
    /// The nodes whose key has a star, in the order in which they are tried. Their patterns are compared with the key, an
    /// underscore and the value of an entry as one text, as in Envoy's reference rate limit server.
    wildcards: Vec<Wildcard>,
    /// The nodes of `wildcards`, by the text of their patterns. Empty after the load, as `Slot::patterns`.
    patterns: HashMap<Box<str>, u32>,
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

impl Level {
    fn keys(&self) -> &HashMap<Arc<str>, Slot> {
        self.with_wildcards.as_ref().map_or(&self.keys, |with_wildcards| &with_wildcards.keys)
    }

    fn keys_mut(&mut self) -> &mut HashMap<Arc<str>, Slot> {
        self.with_wildcards.as_mut().map_or(&mut self.keys, |with_wildcards| &mut with_wildcards.keys)
    }

    fn key_wildcards(&self) -> &[Wildcard] {
        self.with_wildcards.as_ref().map_or(&[], |with_wildcards| &with_wildcards.wildcards)
    }

    /// Returns the nodes that fit an entry, in the order in which they are tried, for a level with wildcards in keys. With
    /// `as_declared`, all wildcards are tried in the order of the file.
    ///
    /// This function allocates memory. Wildcards in keys are so rare that a search without memory is not worth its code:
    /// only files of the reference server have them.
    fn candidates(&self, key: &str, value: &str, as_declared: bool) -> Vec<(Tried<'_>, u32)> {
        let joined = joined(key, Some(value));
        let by_key = self.key_wildcards().iter().filter(|wildcard| wildcard.pattern.fits(&joined));
        let mut by_key: Vec<_> = by_key.map(|w| (Tried::Wildcard(&w.pattern), w.node)).collect();
        let Some(slot) = self.keys().get(key) else { return by_key };
        let (mut before, mut alone): (Vec<_>, Vec<_>) =
            slot.candidates(value).partition(|(tried, _)| !matches!(tried, Tried::KeyAlone));
        let exact = usize::from(matches!(before.first(), Some((Tried::Exact, _))));
        before.append(&mut by_key);
        if as_declared {
            before[exact..].sort_by_key(|(_, node)| *node);
        }
        before.append(&mut alone);
        before
    }
}

/// Returns the text that is compared with wildcards in keys.
fn joined(key: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{key}_{value}"),
        None => key.to_owned(),
    }
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
        if let Some(pattern) = Some(key).filter(|key| key.contains('*')).and_then(|_| {
            let value = value.map(|value| &**value);
            Pattern::new(&joined(key, value))
        }) {
            let Level { keys, with_wildcards, .. } = &mut self.levels[level as usize];
            let with_wildcards = with_wildcards.get_or_insert_with(|| {
                Box::new(KeyWildcards { keys: std::mem::take(keys), ..KeyWildcards::default() })
            });
            if let Some(there) = with_wildcards.patterns.get(pattern.as_str()) {
                return Err(*there);
            }
            self.has_key_wildcards = true;
            with_wildcards.patterns.insert(pattern.as_str().into(), node);
            with_wildcards.wildcards.push(Wildcard { pattern, node });
            self.below.push(None);
            return Ok(node);
        }
        let slot = self.levels[level as usize].keys_mut().entry(key.clone()).or_default();
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
        for slot in self.levels[level as usize].keys_mut().values_mut() {
            slot.patterns = HashMap::default();
            if !as_declared {
                slot.wildcards.sort_by_key(|wildcard| std::cmp::Reverse(wildcard.pattern.literals()));
            }
        }
        let level = level as usize;
        if let Some(with_wildcards) = &mut self.levels[level].with_wildcards {
            with_wildcards.patterns = HashMap::default();
            if !as_declared {
                with_wildcards.wildcards.sort_by_key(|wildcard| std::cmp::Reverse(wildcard.pattern.literals()));
            }
        }
        let by_key = self.work_of_keys(level, as_declared);
        let of_keys = self.levels[level]
            .keys()
            .iter()
            .map(|(key, slot)| (key, self.work(slot, as_declared).and(Work::lookup(key.len())).and(by_key)));
        let mut of_keys: Vec<(&Arc<str>, Work)> = of_keys.collect();
        let any_key = Arc::from("*");
        if !self.levels[level].key_wildcards().is_empty() {
            of_keys.push((&any_key, by_key));
        }
        let too_much = of_keys.iter().filter_map(|(key, work)| Some((*key, work.too_much()?)));
        if let Some((key, (message, help))) = too_much.min_by_key(|(key, _)| *key) {
            return Some((key.clone(), message, help));
        }
        self.levels[level].work = of_keys.iter().fold(Work::default(), |most, (_, work)| most.or(*work));
        None
    }

    /// Returns the work to compare an entry with the wildcards in the keys of a level, and of the search below them.
    fn work_of_keys(&self, level: usize, first_only: bool) -> Work {
        let wildcards = self.levels[level].key_wildcards();
        if wildcards.is_empty() {
            return Work::default();
        }
        let compared = wildcards.iter().fold(Work::whole_value(), |sum, w| sum.and(Work::of(&w.pattern)));
        let below = wildcards.iter().map(|w| (w.pattern.prefix(), self.work_below(w.node)));
        compared.and(match first_only {
            true => below.fold(Work::default(), |most, (_, work)| most.or(work)),
            false => work::together(below),
        })
    }

    fn work_below(&self, node: u32) -> Work {
        self.below[node as usize].map_or(Work::default(), |level| self.levels[level as usize].work)
    }

    /// Returns the work of a search in `slot` and on the levels below it, for the most expensive values that a client
    /// could send. With `first_only`, only the first node that fits is tried.
    ///
    /// A value is equal to at most one exact value, so only the most expensive exact value counts. Several wildcards
    /// can fit the same value, and the search can then try all these wildcards.
    fn work(&self, slot: &Slot, first_only: bool) -> Work {
        let below = |node| self.work_below(node);
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
        let (number, level) = (level, &self.levels[level as usize]);
        match level.keys.get(*key) {
            Some(slot) => self.first_match(slot.candidates(value).map(|(_, node)| node), rest, first_only),
            None if !self.has_key_wildcards => None,
            None => self.find_with_key_wildcards(number, entries, first_only),
        }
    }

    /// Does what [`find`](Index::find) does, on a level with wildcards in keys. It is a function of its own, so that searches
    /// on other levels need no instructions for its list.
    #[cold]
    #[inline(never)]
    fn find_with_key_wildcards(&self, level: u32, entries: &[(&str, &str)], first_only: bool) -> Option<u32> {
        let ((key, value), rest) = entries.split_first()?;
        let candidates = self.levels[level as usize].candidates(key, value, first_only);
        self.first_match(candidates.into_iter().map(|(_, node)| node), rest, first_only)
    }

    /// Returns the first node that matches, or below which a node matches the entries `rest`.
    #[inline]
    fn first_match(
        &self,
        candidates: impl Iterator<Item = u32>,
        rest: &[(&str, &str)],
        first_only: bool,
    ) -> Option<u32> {
        for node in candidates {
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
        let candidates = self.levels[level as usize].candidates(key, value, search.first_only);
        let mut fitted = false;
        for (tried, node) in candidates {
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
        self.levels[level as usize].keys().iter().map(|(key, slot)| (&**key, SlotView { slot }))
    }

    /// Returns the nodes that have this key on a level.
    pub(super) fn slot(&self, level: u32, key: &str) -> Option<SlotView<'_>> {
        self.levels[level as usize].keys().get(key).map(|slot| SlotView { slot })
    }

    /// Returns the nodes of a level whose keys have stars, in the order in which they are tried.
    pub(super) fn key_wildcards(&self, level: u32) -> &[Wildcard] {
        self.levels[level as usize].key_wildcards()
    }

    /// Sets how much of a value the wildcards of a domain search, on the level `root` and all levels below it. Call it
    /// after the level `root` was finished.
    pub(super) fn bound_searches(&mut self, root: u32) {
        let bytes = self.levels[root as usize].work.searched_bytes();
        let mut levels = vec![root];
        while let Some(level) = levels.pop() {
            let level = &mut self.levels[level as usize];
            let of_values = level.keys_mut().values_mut().flat_map(|slot| &mut slot.wildcards);
            of_values.for_each(|wildcard| wildcard.pattern.search_at_most(bytes));
            let of_keys = level.with_wildcards.iter_mut().flat_map(|with_wildcards| &mut with_wildcards.wildcards);
            of_keys.for_each(|wildcard| wildcard.pattern.search_at_most(bytes));
            let slots = level.keys().values();
            let nodes = slots.flat_map(|slot| {
                let wildcards = slot.wildcards.iter().map(|wildcard| wildcard.node);
                slot.exact.values().copied().chain(wildcards).chain(slot.alone)
            });
            let nodes = nodes.chain(level.key_wildcards().iter().map(|wildcard| wildcard.node));
            levels.extend(nodes.filter_map(|node| self.below[node as usize]));
        }
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
