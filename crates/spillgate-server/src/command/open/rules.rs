//! From paths to rules.
//!
//! Commands report the errors of rules files in one way, and never show a line that may hold a secret.

use std::path::PathBuf;

use miette::Diagnostic;
use spillgate::rules::{Defaults, Rules, RulesFile, read_files};

use super::rule_checks;
use crate::command::terminal::{Problem, Problems, one_line};
use crate::settings::{Settings, masked, shows_secret};

/// All rules that the settings name, and the number of files they are in.
pub(crate) fn load(settings: &Settings) -> Result<(Rules, usize), Problems> {
    let files = files(&settings.rules)?;
    Ok((parse(settings, &files)?, files.len()))
}

/// The texts of the rules files that `paths` name.
pub(crate) fn files(paths: &[PathBuf]) -> Result<Vec<RulesFile>, Problems> {
    if paths.is_empty() {
        let help = "name a rules file or a folder of them as an argument, or set `rules:` in the settings file";
        return Err(Problem::new("no rules were given", help).into());
    }
    read_files(paths).map_err(|error| {
        if masked(&error.to_string()) == error.to_string() {
            return Problems(vec![Box::new(error)]);
        }
        Problem::new(error.to_string(), error.help()).into()
    })
}

/// Reads rules from the texts of files.
pub(crate) fn parse(settings: &Settings, files: &[RulesFile]) -> Result<Rules, Problems> {
    let parsed = Rules::parse_with(
        files,
        Defaults { compat_envoy: settings.compat_envoy, on_store_failure: settings.on_store_failure },
    );
    let mut rules =
        parsed.map_err(|errors| Problems(errors.iter().map(|error| without_secrets(error.clone())).collect()))?;
    rules.warn_of_long_values(files, settings.limits.value);
    rules.warn_of_unreleased(files, |rule| rule_checks::unreleased(settings, rule));
    Ok(rules)
}

/// The error without its excerpt if the excerpt may show a secret.
///
/// This happens when a settings file is given as a rules file.
fn without_secrets(error: impl Diagnostic + Send + Sync + 'static) -> Box<dyn Diagnostic + Send + Sync> {
    let excerpt = || {
        let label = error.labels()?.next()?;
        let read = error.source_code()?.read_span(label.inner(), 1, 1).ok()?;
        Some(String::from_utf8_lossy(read.data()).into_owned())
    };
    if excerpt().is_some_and(|text| shows_secret(&text)) {
        return Box::new(Problem::new(one_line(&error), "its lines are not shown: they may hold a secret"));
    }
    Box::new(error)
}
