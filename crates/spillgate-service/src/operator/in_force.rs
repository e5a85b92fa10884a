//! The lists of blocks and shadow switches, as decisions read them.
//!
//! Clients choose keys and values, so the maps hash them with a secret of this process. Otherwise a client could choose
//! many keys with the same hash, which would make the maps slow.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spillgate::rules::Rule;

use super::{ShadowOf, VALUE_BYTES};

/// The name of the limit that refuses blocked descriptors.
pub const BLOCKED: &str = "blocked";

/// When a block or a switch begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// In milliseconds since 1970.
    pub since_ms: u64,
    /// In milliseconds since 1970.
    pub until_ms: u64,
}

impl Term {
    /// Returns whether the term has not ended yet.
    #[must_use]
    pub const fn is_on(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms
    }
}

/// How many requests a block has refused on this server. The copies of a block share their count, so a change of the
/// lists loses nothing. The count is no part of what a block is: it never makes two blocks different.
#[derive(Clone, Debug, Default)]
pub struct RefusedCount(Arc<AtomicU64>);

impl PartialEq for RefusedCount {
    fn eq(&self, _: &RefusedCount) -> bool {
        true
    }
}

impl Eq for RefusedCount {}

impl RefusedCount {
    /// Returns the number of requests.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns whether both are the count of the same block.
    pub(crate) fn is(&self, other: &RefusedCount) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A descriptor entry that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub key: Arc<str>,
    /// The beginning of the entry's value: the bytes that choose the counter of a request.
    pub value: Arc<str>,
    /// The domain whose requests are refused. `None` means all domains.
    pub domain: Option<Arc<str>>,
    pub term: Term,
    /// Why an operator has blocked the entry. `None` if the operator gave no reason.
    pub reason: Option<Arc<str>>,
    /// The requests that this server has refused because of the block.
    pub refused: RefusedCount,
}

/// Which servers a change applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only this server, until it stops.
    Server,
    /// All servers that share the store.
    Fleet,
}

impl Scope {
    /// Returns the name of the scope in requests and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Server => "server",
            Scope::Fleet => "fleet",
        }
    }
}

/// The shadow switches of one rule, or those that apply to all rules. There is at most one for each scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    pub server: Option<Term>,
    pub fleet: Option<Term>,
}

impl Switch {
    /// Returns the switches that are on, each with its scope.
    pub fn on(self, now_ms: u64) -> impl Iterator<Item = (Scope, Term)> {
        let both = [(Scope::Server, self.server), (Scope::Fleet, self.fleet)];
        both.into_iter().filter_map(move |(scope, term)| Some((scope, term.filter(|term| term.is_on(now_ms))?)))
    }

    pub(crate) fn of_mut(&mut self, scope: Scope) -> &mut Option<Term> {
        match scope {
            Scope::Server => &mut self.server,
            Scope::Fleet => &mut self.fleet,
        }
    }

    fn is_on(self, now_ms: u64) -> bool {
        self.on(now_ms).next().is_some()
    }

    /// Removes the switches that have ended. Returns whether a switch is left.
    fn keep_on(&mut self, now_ms: u64) -> bool {
        for term in [&mut self.server, &mut self.fleet] {
            *term = term.filter(|term| term.is_on(now_ms));
        }
        self.server.is_some() || self.fleet.is_some()
    }
}

/// The blocks of one key, by value. The blocks of one value are sorted by domain, and a block for all domains comes
/// first.
type BlocksOfKey = HashMap<Arc<str>, Vec<Arc<Block>>>;

/// All blocks and shadow switches. Those that have ended decide nothing, but can still be in the lists.
#[derive(Clone, Debug, Default)]
pub struct InForce {
    /// The blocks by key.
    blocks: HashMap<Arc<str>, BlocksOfKey>,
    /// The switches by domain and path of their rules.
    switches: HashMap<Arc<str>, HashMap<Arc<str>, Switch>>,
    /// The switches that apply to all rules.
    pub(crate) all: Switch,
}

impl InForce {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.switches.is_empty() && self.all == Switch::default()
    }

    pub(crate) fn has_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Returns the block that refuses a descriptor: of all blocks on its entries that have not ended, the one that ends
    /// last. `value_bytes` is how many bytes of a value choose the counter.
    #[must_use]
    pub fn block_on(&self, domain: &str, entries: &[(&str, &str)], value_bytes: usize, now_ms: u64) -> Option<&Block> {
        let of_entry = |(key, value): &(&str, &str)| {
            let blocks = self.blocks.get(*key)?.get(compared(value, value_bytes))?;
            let of_all = blocks.first().filter(|block| block.domain.is_none());
            let of_domain = place_of(blocks, Some(domain)).ok().map(|place| &blocks[place]);
            let on = of_all.into_iter().chain(of_domain).filter(|block| block.term.is_on(now_ms));
            on.max_by_key(|block| block.term.until_ms)
        };
        entries.iter().filter_map(of_entry).max_by_key(|block| block.term.until_ms).map(|block| &**block)
    }

    /// Returns the switches of this rule, and those that apply to all rules.
    #[must_use]
    pub fn switches_of(&self, rule: &Rule) -> (Switch, Switch) {
        (self.switch_of(ShadowOf::Rule { domain: &rule.domain, path: &rule.path }), self.all)
    }

    /// Returns whether a shadow switch applies to the rule.
    pub(crate) fn is_in_shadow(&self, rule: &Rule, now_ms: u64) -> bool {
        let (of_rule, of_all) = self.switches_of(rule);
        of_rule.is_on(now_ms) || of_all.is_on(now_ms)
    }

    /// Returns all blocks that are on, in any order.
    pub fn blocks(&self, now_ms: u64) -> impl Iterator<Item = &Arc<Block>> {
        let all = self.blocks.values().flat_map(HashMap::values).flatten();
        all.filter(move |block| block.term.is_on(now_ms))
    }

    /// Returns the blocks on a value that are on, in any order. `key` and `domain` leave out those of other keys, and those
    /// that refuse nothing in this domain. `value_bytes` is how many bytes of a value choose the counter.
    pub fn blocks_of<'s>(
        &'s self,
        (domain, key, value): (Option<&'s str>, Option<&'s str>, &'s str),
        value_bytes: usize,
        now_ms: u64,
    ) -> impl Iterator<Item = &'s Arc<Block>> {
        let value = compared(value, value_bytes);
        self.blocks(now_ms).filter(move |block| {
            *block.value == *value
                && key.is_none_or(|key| *block.key == *key)
                && (domain.is_none() || block.domain.is_none() || block.domain.as_deref() == domain)
        })
    }

    /// Returns the domain, the path and the switches of each rule that has a switch, in any order. The switches can
    /// have ended.
    pub fn switches(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, Switch)> {
        self.switches.iter().flat_map(|(domain, paths)| paths.iter().map(move |(path, switch)| (domain, path, *switch)))
    }

    /// Returns the switches of one rule, or those that apply to all rules.
    #[must_use]
    pub fn switch_of(&self, of: ShadowOf<'_>) -> Switch {
        match of {
            ShadowOf::All => self.all,
            ShadowOf::Rule { domain, path } => {
                self.switches.get(domain).and_then(|paths| paths.get(path)).copied().unwrap_or_default()
            }
        }
    }

    /// Returns the switches that apply to all rules.
    #[must_use]
    pub const fn switch_of_all(&self) -> Switch {
        self.all
    }

    /// Adds a block, or replaces the block on the same entry in the same domain.
    pub(crate) fn add(&mut self, block: Arc<Block>) {
        let of_key = self.blocks.entry(Arc::clone(&block.key)).or_default();
        let blocks = of_key.entry(Arc::clone(&block.value)).or_default();
        match place_of(blocks, block.domain.as_deref()) {
            Ok(place) => blocks[place] = block,
            Err(place) => blocks.insert(place, block),
        }
    }

    /// Returns the block on this entry in this domain, even if the block has ended.
    pub(crate) fn block(&self, key: &str, value: &str, domain: Option<&str>) -> Option<&Arc<Block>> {
        let blocks = self.blocks.get(key)?.get(value)?;
        place_of(blocks, domain).ok().map(|place| &blocks[place])
    }

    /// Removes the block on this entry in this domain, if there is one.
    pub(crate) fn remove(&mut self, key: &str, value: &str, domain: Option<&str>) {
        let Some(of_key) = self.blocks.get_mut(key) else { return };
        let Some(blocks) = of_key.get_mut(value) else { return };
        let Ok(place) = place_of(blocks, domain) else { return };
        blocks.remove(place);
        if blocks.is_empty() {
            of_key.remove(value);
        }
        if of_key.is_empty() {
            self.blocks.remove(key);
        }
    }

    /// Changes the switches of a rule. If no switch is left, removes the rule from the map.
    pub(crate) fn switch(&mut self, domain: &str, path: &str, change: impl FnOnce(&mut Switch)) {
        let paths = self.switches.entry(domain.into()).or_default();
        let switch = paths.entry(path.into()).or_default();
        change(switch);
        if *switch == Switch::default() {
            paths.remove(path);
        }
        if paths.is_empty() {
            self.switches.remove(domain);
        }
    }

    /// Replaces all blocks, and all switches with the scope [`Scope::Fleet`]. The key `None` is the switch that applies
    /// to all rules.
    pub(crate) fn replace_fleet(&mut self, blocks: Vec<Block>, switches: HashMap<Option<(String, String)>, Term>) {
        let before = std::mem::take(&mut self.blocks);
        for mut block in blocks {
            let of_entry = before.get(&block.key).and_then(|values| values.get(&block.value));
            let same = of_entry.and_then(|blocks| Some(&blocks[place_of(blocks, block.domain.as_deref()).ok()?]));
            // A new block on the same entry begins its own count, whichever server has made it.
            if let Some(same) = same.filter(|same| same.term.since_ms == block.term.since_ms) {
                block.refused = same.refused.clone();
            }
            self.add(Arc::new(block));
        }
        self.all.fleet = None;
        self.switches.values_mut().flat_map(HashMap::values_mut).for_each(|switch| switch.fleet = None);
        for (rule, term) in switches {
            match rule {
                None => self.all.fleet = Some(term),
                Some((domain, path)) => self.switch(&domain, &path, |switch| switch.fleet = Some(term)),
            }
        }
        self.switches.retain(|_, paths| {
            paths.retain(|_, switch| *switch != Switch::default());
            !paths.is_empty()
        });
    }

    pub(crate) fn has_ended(&self, now_ms: u64) -> bool {
        let all = self.blocks.values().flat_map(HashMap::values).flatten();
        let blocks = all.into_iter().map(|block| block.term);
        let switches = self.switches().map(|(.., switch)| switch).chain([self.all]);
        blocks
            .chain(switches.flat_map(|switch| [switch.server, switch.fleet]).flatten())
            .any(|term| !term.is_on(now_ms))
    }

    pub(crate) fn remove_ended(&mut self, now_ms: u64) {
        self.blocks.retain(|_, values| {
            values.retain(|_, blocks| {
                blocks.retain(|block| block.term.is_on(now_ms));
                !blocks.is_empty()
            });
            !values.is_empty()
        });
        self.switches.retain(|_, paths| {
            paths.retain(|_, switch| switch.keep_on(now_ms));
            !paths.is_empty()
        });
        self.all.keep_on(now_ms);
    }
}

/// Returns the part of a value that a block compares: the bytes that choose the counter of a request. If a block
/// compared more bytes, a blocked client could escape the block by changing the end of a long value.
pub(crate) fn compared(value: &str, value_bytes: usize) -> &str {
    &value[..value.floor_char_boundary(value_bytes.min(VALUE_BYTES))]
}

/// Returns the index of the block of this domain. The error is the index at which such a block has to be inserted.
fn place_of(blocks: &[Arc<Block>], domain: Option<&str>) -> Result<usize, usize> {
    blocks.binary_search_by(|block| block.domain.as_deref().cmp(&domain))
}
