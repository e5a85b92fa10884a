//! The changes that operators make: they begin or end a block, or turn a shadow switch on or off.
//!
//! This module checks whether the settings and the rules permit a change. [`crate::operator`] keeps the lists.

use std::sync::Arc;

use spillgate::Clock;
use spillgate::rules::{Rule, RuleStep, path_text};
use spillgate::text::nearest;

use super::Service;
use crate::operator::{
    BLOCKS_MAX, Block, ChangeError, Known, NAME_BYTES, NewBlock, PATH_BYTES, REASON_BYTES, RefusedCount, SWITCHES_MAX,
    Scope, ShadowOf, Shared, Switch, Term, compared, millis, term,
};
use crate::shared_store::SharedError;

/// An error names at most this many nested rules.
const NESTED_MAX: usize = 8;

/// What [`Service::block`] has done.
#[derive(Debug)]
pub struct BlockMade {
    /// The block that is on now.
    pub block: Arc<Block>,
    /// The block on the same entry in the same domain that was on until now, with its count of refused requests.
    pub replaced: Option<Arc<Block>>,
    /// How many blocks are on now.
    pub blocks: usize,
}

impl<C: Clock> Service<C> {
    /// Returns the scope of all blocks, and of a shadow switch that names no scope: the fleet if this server shares its
    /// lists, and otherwise only this server.
    pub fn scope(&self) -> Scope {
        if self.operator.shared.is_some() { Scope::Fleet } else { Scope::Server }
    }

    /// Returns whether the rule refuses nothing now because of a shadow switch, or because the whole server is in shadow
    /// mode.
    pub fn is_in_shadow(&self, rule: &Rule) -> bool {
        self.options.shadow || self.operator.in_force().is_in_shadow(rule, self.now_ms())
    }

    /// Returns the current time of the service's clock, in milliseconds since 1970. This clock decides when blocks and
    /// shadow switches end.
    pub fn now_ms(&self) -> u64 {
        millis(self.limiter.now())
    }

    /// Blocks an entry, or replaces the block on the same entry in the same domain.
    ///
    /// # Errors
    /// The block is invalid, too many blocks are on, or the shared store failed.
    pub async fn block(&self, new: &NewBlock<'_>) -> Result<BlockMade, ChangeError> {
        self.check_names(new.key, new.domain)?;
        if new.reason.is_some_and(|reason| reason.len() > REASON_BYTES) {
            return Err(ChangeError::Invalid(
                format!("the reason has more than {REASON_BYTES} bytes"),
                "shorten it".into(),
            ));
        }
        let now_ms = self.now_ms();
        let term = term(now_ms, new.lasts)?;
        let (domain, reason) = (new.domain.map(Arc::from), new.reason.map(Arc::from));
        let value = compared(new.value, self.options.bounds.value_bytes).into();
        let block =
            Arc::new(Block { key: new.key.into(), value, domain, term, reason, refused: RefusedCount::default() });
        // The list in the shared store has the blocks of all servers, so `put_block` checks whether the list is full.
        // `version` is a lock, which is held until this server's copy of the list has the block too.
        let version = match &self.operator.shared {
            Some(shared) => {
                let mut version = shared.lock().await;
                shared.put_block(&mut version, &self.operator.in_force_full(), &block, now_ms).await?;
                Some(version)
            }
            None => None,
        };
        self.operator.change(|in_force| {
            let mut blocks = in_force.blocks(now_ms).count();
            let before = in_force.block(&block.key, &block.value, block.domain.as_deref());
            let replaced = before.filter(|before| before.term.is_on(now_ms)).map(Arc::clone);
            if replaced.is_none() {
                if blocks >= BLOCKS_MAX && version.is_none() {
                    return Err(ChangeError::too_many_blocks());
                }
                blocks += 1;
            }
            in_force.add(Arc::clone(&block));
            Ok(BlockMade { block, replaced, blocks })
        })
    }

    /// Ends the block on an entry in `domain`. If `domain` is `None`, ends all blocks on the entry, in whatever domain.
    /// Returns the blocks that were ended, each with its count of refused requests.
    ///
    /// # Errors
    /// There is no such block, or the shared store failed.
    pub async fn unblock(&self, key: &str, value: &str, domain: Option<&str>) -> Result<Vec<Arc<Block>>, ChangeError> {
        let (value, now_ms) = (compared(value, self.options.bounds.value_bytes), self.now_ms());
        let is_meant = |block: &&Arc<Block>| {
            (&*block.key, &*block.value) == (key, value) && (domain.is_none() || block.domain.as_deref() == domain)
        };
        let meant = || self.operator.in_force().blocks(now_ms).filter(is_meant).cloned().collect::<Vec<_>>();
        // `_version` is a lock, which is held until this server's copy of the list has changed too.
        let (meant, _version) = match &self.operator.shared {
            Some(shared) => {
                let mut version = shared.lock().await;
                self.read_lists(shared, &mut version).await?;
                let meant = meant();
                if !meant.is_empty() {
                    shared.remove_blocks(&mut version, &meant).await?;
                }
                (meant, Some(version))
            }
            None => (meant(), None),
        };
        self.operator.change(|in_force| {
            for block in &meant {
                in_force.remove(key, value, block.domain.as_deref());
            }
            if meant.is_empty() { Err(no_block()) } else { Ok(()) }
        })?;
        Ok(meant)
    }

    /// Turns a shadow switch on for the time `lasts`, such as `30m`. Returns its scope, and when it ends.
    ///
    /// # Errors
    /// There is no such rule, the time or the scope is invalid, too many switches are on, or the shared store failed.
    pub async fn shadow_on(
        &self,
        of: ShadowOf<'_>,
        lasts: &str,
        scope: Option<Scope>,
    ) -> Result<(Scope, Term), ChangeError> {
        let scope = self.shadow_scope(scope)?;
        self.check_rule(of)?;
        let now_ms = self.now_ms();
        let term = term(now_ms, lasts)?;
        let version = match &self.operator.shared {
            Some(shared) if scope == Scope::Fleet => {
                check_path(of)?;
                let mut version = shared.lock().await;
                shared.put_switch(&mut version, &self.operator.in_force_full(), (of, term), now_ms).await?;
                Some(version)
            }
            _ => None,
        };
        self.operator.change(|in_force| {
            in_force.remove_ended(now_ms);
            match of {
                ShadowOf::All => *in_force.all.of_mut(scope) = Some(term),
                ShadowOf::Rule { domain, path } => {
                    in_force.switch(domain, path, |switch| *switch.of_mut(scope) = Some(term));
                    let mut on = in_force.switches().flat_map(|(.., switch)| switch.on(now_ms));
                    if version.is_none() && on.by_ref().filter(|(of, _)| *of == scope).count() > SWITCHES_MAX {
                        return Err(ChangeError::too_many_switches());
                    }
                }
            }
            Ok(())
        })?;
        Ok((scope, term))
    }

    /// Turns off the shadow switches of one rule, or those that apply to all rules. If `scope` names a scope, only the
    /// switch of this scope is turned off. Returns the scopes of the switches that were turned off.
    ///
    /// # Errors
    /// No such switch is on, or the shared store failed.
    pub async fn shadow_off(&self, of: ShadowOf<'_>, scope: Option<Scope>) -> Result<Vec<Scope>, ChangeError> {
        let now_ms = self.now_ms();
        let mut lock = None;
        if let Some(shared) = self.operator.shared.as_ref().filter(|_| scope != Some(Scope::Server)) {
            let mut version = shared.lock().await;
            self.read_lists(shared, &mut version).await?;
            if self.operator.in_force().switch_of(of).fleet.is_some() {
                shared.remove_switch(&mut version, of).await?;
            }
            lock = Some(version);
        }
        let ended = self.operator.change(|in_force| {
            let mut ended = Vec::new();
            let mut end = |switch: &mut Switch| {
                ended =
                    switch.on(now_ms).map(|(of, _)| of).filter(|of| scope.is_none_or(|scope| scope == *of)).collect();
                ended.iter().for_each(|scope| *switch.of_mut(*scope) = None);
            };
            match of {
                ShadowOf::All => end(&mut in_force.all),
                ShadowOf::Rule { domain, path } => in_force.switch(domain, path, end),
            }
            if ended.is_empty() { Err(no_switch()) } else { Ok(ended) }
        });
        drop(lock);
        ended
    }

    /// Removes the blocks and switches that have ended. Then, if the lists in the shared store have changed, reads
    /// them. The server calls this function each second.
    ///
    /// # Errors
    /// The shared store did not answer, or refused a command. This server's copy of the lists stays in use.
    pub async fn refresh_operator(&self) -> Result<(), SharedError> {
        self.operator.remove_ended(self.now_ms());
        match &self.operator.shared {
            Some(shared) => self.read_lists(shared, &mut *shared.lock().await).await,
            None => Ok(()),
        }
    }

    async fn read_lists(&self, shared: &Shared, known: &mut Known) -> Result<(), SharedError> {
        let in_force = self.operator.in_force_full();
        if let Some(read) = shared.read(known, &in_force, self.now_ms()).await? {
            self.operator.replace_fleet(read);
        }
        Ok(())
    }

    pub(super) fn update_operator_metrics(&self) {
        let (in_force, now_ms) = (self.operator.in_force(), self.now_ms());
        let blocks = in_force.blocks(now_ms).count();
        let switches = in_force.switches().map(|(.., switch)| switch).chain([in_force.switch_of_all()]);
        let switches = switches.flat_map(|switch| switch.on(now_ms)).count();
        self.metrics.operator.blocks.set(i64::try_from(blocks).unwrap_or(i64::MAX));
        self.metrics.operator.shadow_switches.set(i64::try_from(switches).unwrap_or(i64::MAX));
        self.metrics.operator.lost.raise_to(self.operator.losses());
        if let Some(ms) = self.operator.read_ms_ago(now_ms) {
            self.metrics.operator.copy_age.set(i64::try_from(ms / 1000).unwrap_or(i64::MAX));
        }
    }

    fn shadow_scope(&self, scope: Option<Scope>) -> Result<Scope, ChangeError> {
        match scope {
            Some(Scope::Fleet) if self.scope() == Scope::Server => {
                let detail = "this server shares no store with other servers, so there is no fleet".to_owned();
                Err(ChangeError::Invalid(detail, "use the scope `server`, or set `store.url`".into()))
            }
            scope => Ok(scope.unwrap_or_else(|| self.scope())),
        }
    }

    /// Checks the lengths of a key and a domain. A block with a longer key or domain would be useless, because requests
    /// with such a key or domain are rejected, or because the entry in the shared store would not be valid.
    fn check_names(&self, key: &str, domain: Option<&str>) -> Result<(), ChangeError> {
        let max = self.options.bounds.key_bytes.min(NAME_BYTES);
        for (name, text) in [("key", Some(key)), ("domain", domain)] {
            let Some(bytes) = text.map(str::len).filter(|bytes| !(1..=max).contains(bytes)) else { continue };
            let detail = format!("`{name}` has {bytes} bytes, and 1 to {max} are possible");
            let help = "write it as requests have it; the setting `limits.key` is the bound";
            return Err(ChangeError::Invalid(detail, help.into()));
        }
        Ok(())
    }

    /// Checks that the rule exists and has a limit. If it does not exist, the error suggests the rule or domain with the most
    /// similar name.
    fn check_rule(&self, of: ShadowOf<'_>) -> Result<(), ChangeError> {
        let ShadowOf::Rule { domain, path } = of else { return Ok(()) };
        let loaded = self.rules();
        let of_domain = || loaded.rules.rules().filter(|rule| &*rule.domain == domain);
        if let Some(rule) = of_domain().find(|rule| &*rule.path == path) {
            return if rule.limits.is_empty() { Err(no_limit(rule, of_domain())) } else { Ok(()) };
        }
        let near = match loaded.rules.has_domain(domain) {
            true => nearest(path, of_domain().map(|rule| &*rule.path)).map(|near| format!("the rule `{near}`")),
            false => {
                let domains = loaded.rules.domains().map(|domain| &*domain.name);
                nearest(domain, domains).map(|near| format!("the domain `{near}`"))
            }
        };
        let help = near.map_or_else(
            || "`spillgate explain` and GET /rules show the paths of rules".to_owned(),
            |near| format!("did you mean {near}?"),
        );
        Err(ChangeError::NotFound("there is no such rule in this domain".to_owned(), help))
    }
}

/// Checks that the domain and path of a rule are short enough for an entry in the shared store.
fn check_path(of: ShadowOf<'_>) -> Result<(), ChangeError> {
    match of {
        ShadowOf::Rule { domain, path } if domain.len() > NAME_BYTES || path.len() > PATH_BYTES => {
            let detail = format!("the domain has more than {NAME_BYTES} bytes, or the path more than {PATH_BYTES}");
            Err(ChangeError::Invalid(detail, "use the scope `server`, on each server".into()))
        }
        _ => Ok(()),
    }
}

/// Returns the error of a switch for a rule that refuses nothing. The limits that its name makes one think of can be those
/// of nested rules.
fn no_limit<'r>(rule: &Rule, of_domain: impl Iterator<Item = &'r Rule>) -> ChangeError {
    let is_nested = |other: &&Rule| {
        let outer = other.steps.get(..rule.steps.len()).unwrap_or_default();
        other.steps.len() > outer.len() && path_text(outer.iter().map(RuleStep::as_path)) == *rule.path
    };
    let nested: Vec<_> = of_domain.filter(is_nested).filter(|rule| !rule.limits.is_empty()).collect();
    let shown: Vec<_> =
        nested.iter().take(NESTED_MAX).map(|rule| format!("`{}: {}`", rule.domain, rule.path)).collect();
    let more = nested.len().saturating_sub(NESTED_MAX);
    let help = match (shown.is_empty(), more) {
        (true, _) => "`spillgate insight` and GET /rules show which rules have limits".to_owned(),
        (false, 0) => format!("name a nested rule that has limits: {}", shown.join(", ")),
        (false, more) => format!("name a nested rule that has limits: {}, or one of {more} more", shown.join(", ")),
    };
    let detail = format!("the rule `{}: {}` has no limit, so it refuses nothing", rule.domain, rule.path);
    ChangeError::Invalid(detail, help.into())
}

fn no_block() -> ChangeError {
    let help = "`spillgate blocks` and GET /blocks list all blocks; key, value and domain must be the same".to_owned();
    ChangeError::NotFound("there is no such block".to_owned(), help)
}

fn no_switch() -> ChangeError {
    let help =
        "`spillgate shadows` and GET /shadows list the switches; `shadow_mode: true` of a rules file is no switch"
            .to_owned();
    ChangeError::NotFound("no such shadow switch is on".to_owned(), help)
}
