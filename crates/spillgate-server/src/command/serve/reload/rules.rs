//! The unit of all rules files. If one file has an error, all current rules stay in use.

use std::path::PathBuf;
use std::sync::Arc;

use spillgate::rules::{Rules, RulesFile};
use spillgate_service::Service;
use spillgate_service::reloads::{Cause, LoadedCounts, UnitName};

use super::reader::Reader;
use super::unit::{Kept, Seen, Taken, Unit};
use crate::command::open::{rule_checks, rules};
use crate::command::serve::banner::Loaded;
use crate::command::serve::rule_changes::{limits_lost, log_lost_counts};
use crate::command::serve::rule_differences::differences;
use crate::command::terminal::Problems;
use crate::settings::Settings;

/// The rules of the server.
pub(super) struct RulesUnit {
    service: Arc<Service>,
    settings: Settings,
    read: Kept<Vec<RulesFile>>,
}

impl RulesUnit {
    pub(super) fn new(service: Arc<Service>, settings: Settings) -> RulesUnit {
        RulesUnit { service, settings, read: Kept::default() }
    }

    fn replace(&self, files: &[RulesFile], cause: Cause) -> Result<Taken, Problems> {
        let mut rules = self.checked(rules::parse(&self.settings, files)?)?;
        let memory = self.service.limiter().store().memory();
        let before = Arc::clone(&self.service.rules());
        rules::open_sketches(&self.settings, Some(&before), &mut rules, memory)?;
        let mut taken = Taken { changes: differences(&before, &rules), ..Taken::default() };
        let Loaded { files, domains, rules: count, warnings } = Loaded::of(&rules, files.len());
        self.service.replace_rules(rules);
        // A line about a reload is written when the new rules are in use, so that a reader of the log can rely on it.
        let after = self.service.rules();
        log_lost_counts(&before, &after);
        match after.insights_begun_again(&before) {
            0 => {}
            1 => taken.notes.add(|| "insight of 1 changed limit begins again".to_owned()),
            limits => taken.notes.add(|| format!("insight of {limits} changed limits begins again")),
        }
        let (cause, domains) = (cause.as_str(), domains.len());
        tracing::info!(cause, files, domains, rules = count, warnings, "rules reloaded");
        taken.loaded = Some(LoadedCounts { files, domains, rules: count, warnings });
        Ok(taken)
    }

    /// Returns the rules if they can replace the current rules.
    fn checked(&self, rules: Rules) -> Result<Rules, Problems> {
        rule_checks::check_for_server(&self.settings, &rules)?;
        Problems::check(limits_lost(&self.service.rules(), &rules)).map(|()| rules)
    }
}

impl Unit for RulesUnit {
    fn name(&self) -> UnitName {
        UnitName::Rules
    }

    fn kept(&self) -> &'static str {
        "the rules were not reloaded; the earlier rules stay in use"
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.settings.rules.clone()
    }

    fn read(&mut self, reader: &mut Reader) -> Seen {
        let paths = self.settings.rules.clone();
        self.read.read(reader, move || rules::files(&paths), |files| seen(files))
    }

    fn take(&mut self, cause: Cause) -> Result<Taken, Problems> {
        let metrics = Arc::clone(self.service.metrics());
        let files = self.read.take();
        let taken = files.and_then(|files| files.map_or(Ok(Taken::default()), |files| self.replace(&files, cause)));
        taken.inspect_err(|_| {
            metrics.reload_failures.inc();
            metrics.reload_successful.set(0);
        })
    }

    fn forget(&mut self) {
        self.read.forget();
    }
}

/// Returns the hash of rules files: of their names and texts.
pub(super) fn seen(files: &[RulesFile]) -> Seen {
    Seen::of(files.iter().flat_map(|file| [file.name.as_bytes(), file.text.as_bytes()]))
}
