//! Reads rules from the paths of files and folders.
//!
//! All commands use this code. So they report errors of rules files in the same way, and never show a line that
//! contains a password.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use spillgate::MemoryStore;
use spillgate::rules::{Defaults, Diagnostic, Rules, RulesFile, left_out, read_files};

use super::{forward_auth, rule_checks};
use crate::command::terminal::{Problem, Problems};
use crate::settings::{Settings, StoreUrl, has_store_password};

/// Returns all rules that the settings name, and the number of their files.
pub(crate) fn load(settings: &Settings) -> Result<(Rules, usize), Problems> {
    let files = files(&settings.rules)?;
    Ok((parse(settings, &files)?, files.len()))
}

/// Returns the texts of the rules files that `paths` name.
pub(crate) fn files(paths: &[PathBuf]) -> Result<Vec<RulesFile>, Problems> {
    if paths.is_empty() {
        let help = "name a rules file or a folder of them as an argument, or set `rules:` in the settings file";
        return Err(Problem::new("no rules were given", help).into());
    }
    let in_words = |error: Diagnostic| Problem::new(error.message(), error.help()).in_file(Path::new(error.file()));
    read_files(paths).map_err(|error| in_words(error).into())
}

/// Reads rules from the texts of files.
pub(crate) fn parse(settings: &Settings, files: &[RulesFile]) -> Result<Rules, Problems> {
    let parsed = Rules::parse_with(
        files,
        Defaults {
            compat_envoy: settings.compat_envoy,
            on_store_failure: settings.on_store_failure,
            regions: settings.regions.count(),
            across: settings.regions.across(),
        },
    );
    let mut rules = parsed.map_err(|errors| Problems(errors.iter().map(without_secrets).collect()))?;
    rules.warn_of_left_out(&left_out(&settings.rules));
    rules.warn_of_long_values(files, settings.limits.bounds.value_bytes);
    rules.warn_of_unreleased(files, |rule| rule_checks::unreleased(settings, rule));
    let of_forward_auth = forward_auth::findings(settings, &rules);
    rules.warn_of_rules(files, |rule| of_forward_auth.get(&rule.index()).cloned().unwrap_or_default());
    rules.warn_of_rules(files, |rule| rule_checks::unused_queues(settings, rule));
    Ok(rules)
}

/// Opens the sketches of the rules, which allocates their memory. Limits that have not changed since the rules `before`
/// keep their sketches.
pub(crate) fn open_sketches(
    settings: &Settings,
    before: Option<&Rules>,
    rules: &mut Rules,
    store: &MemoryStore,
) -> Result<(), Problem> {
    let nodes = match settings.store.url {
        StoreUrl::Memory => None,
        StoreUrl::Shared(_) => settings.store.expected_nodes.and_then(NonZeroU32::new),
    };
    let help = "lower its `sketch_memory`, or give the server more memory";
    let opened = rules.open_sketches(before, nodes.unwrap_or(NonZeroU32::MIN));
    opened.map_err(|error| Problem::new(error.to_string(), help))?;
    store.reserve_heap(rules.sketch_bytes());
    Ok(())
}

/// Returns the error without its lines if they contain a URL with a password. This happens if a user passes a settings
/// file as a rules file by mistake.
fn without_secrets(error: &Diagnostic) -> Diagnostic {
    let error = error.clone();
    if has_store_password(&error.lines()) { error.without_lines() } else { error }
}
