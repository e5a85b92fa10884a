//! From paths to settings and rules: where the commands read files.

use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use miette::Diagnostic;
use spillgate::rules::{Defaults, Rules, RulesFile, read_files};

use super::served;
use super::terminal::{Terminal, finding, one_line};
use crate::settings::{Key, Resolved, Settings, SettingsFile, Sources, masked, resolve, shows_secret};

/// No settings file needs more; a larger one is something else.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Everything that is wrong, each with its place and its mend; never empty.
#[derive(Debug)]
pub(super) struct Problems(pub(super) Vec<Box<dyn Diagnostic + Send + Sync>>);

impl Problems {
    /// Tells them all on standard error, or on standard output as one line of JSON.
    pub(super) fn tell(&self, json: bool, terminal: &mut Terminal) {
        if json {
            let errors: Vec<_> = self.0.iter().map(|problem| finding(&**problem)).collect();
            terminal.json(&serde_json::json!({"ok": false, "errors": errors}));
            return;
        }
        for problem in &self.0 {
            terminal.report(&**problem);
        }
    }

    /// One line each, for logs.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|problem| one_line(&**problem))
    }
}

/// Something wrong that stands in no file.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Trouble {
    message: String,
    help: String,
}

impl Trouble {
    pub(super) fn new(message: impl Into<String>, help: impl Into<String>) -> Trouble {
        // A URL may stand where a path should.
        Trouble { message: masked(&message.into()), help: help.into() }
    }
}

impl Diagnostic for Trouble {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.help))
    }
}

impl From<Trouble> for Problems {
    fn from(trouble: Trouble) -> Problems {
        Problems(vec![Box::new(trouble)])
    }
}

/// What was found, if anything was.
pub(super) fn problems(found: Vec<Trouble>) -> Result<(), Problems> {
    if found.is_empty() {
        Ok(())
    } else {
        Err(Problems(found.into_iter().map(|trouble| Box::new(trouble) as _).collect()))
    }
}

/// The settings of a file, the environment and flags together.
pub(super) fn settings(
    config: Option<&Path>,
    arguments: &[PathBuf],
    flags: &[(&'static Key, Vec<String>)],
) -> Result<Resolved, Problems> {
    resolved(sources(config, arguments, flags)?)
}

/// The same for a command that asks no store.
pub(super) fn settings_for_no_store(
    config: Option<&Path>,
    arguments: &[PathBuf],
    flags: &[(&'static Key, Vec<String>)],
) -> Result<Resolved, Problems> {
    resolved(Sources { asks_no_store: true, ..sources(config, arguments, flags)? })
}

fn sources(
    config: Option<&Path>,
    arguments: &[PathBuf],
    flags: &[(&'static Key, Vec<String>)],
) -> Result<Sources, Problems> {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    Ok(Sources {
        file: config.map(settings_file).transpose()?,
        environment: std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect(),
        flags: flags.to_vec(),
        arguments: arguments.to_vec(),
        asks_no_store: false,
    })
}

fn resolved(sources: Sources) -> Result<Resolved, Problems> {
    resolve(&sources).map_err(|errors| Problems(errors.into_iter().map(|error| Box::new(error) as _).collect()))
}

fn settings_file(path: &Path) -> Result<SettingsFile, Trouble> {
    let name = path.display().to_string();
    let unread = |error: std::io::Error| {
        Trouble::new(
            format!("the settings file {name} cannot be read: {error}"),
            "check the path after --config and its permissions",
        )
    };
    // Asked before it is opened: to open a pipe is to wait for its other end.
    if !fs::metadata(path).map_err(unread)?.is_file() {
        let help = "settings are read from a regular file: write them into one";
        return Err(Trouble::new(format!("the settings file {name} is not a regular file"), help));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(unread)?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        let help = "is it a settings file? rules files are given as arguments or under `rules:`";
        return Err(Trouble::new(format!("the settings file {name} is larger than 1 MiB"), help));
    }
    Ok(SettingsFile { name, text })
}

/// All rules that the settings name, or none; and how many files they were.
pub(super) fn rules(settings: &Settings) -> Result<(Rules, usize), Problems> {
    let files = rules_files(&settings.rules)?;
    Ok((rules_of(settings, &files)?, files.len()))
}

/// The texts of the rules files that `paths` name.
pub(super) fn rules_files(paths: &[PathBuf]) -> Result<Vec<RulesFile>, Problems> {
    if paths.is_empty() {
        let help = "name a rules file or a folder of them as an argument, or set `rules:` in the settings file";
        return Err(Trouble::new("no rules were given", help).into());
    }
    read_files(paths).map_err(|error| {
        if masked(&error.to_string()) == error.to_string() {
            return Problems(vec![Box::new(error)]);
        }
        Trouble::new(error.to_string(), error.help()).into()
    })
}

/// What the files say.
pub(super) fn rules_of(settings: &Settings, files: &[RulesFile]) -> Result<Rules, Problems> {
    let parsed = Rules::parse_with(
        files,
        Defaults { compat_envoy: settings.compat_envoy, on_store_failure: settings.on_store_failure },
    );
    let mut rules =
        parsed.map_err(|errors| Problems(errors.iter().map(|error| without_secrets(error.clone())).collect()))?;
    rules.warn_of_long_values(files, settings.limits.value);
    rules.warn_of_unreleased(files, |rule| served::unreleased(settings, rule));
    Ok(rules)
}

/// The error, without the lines around it where these may hold a secret: a settings file was taken for one of rules.
fn without_secrets(error: impl Diagnostic + Send + Sync + 'static) -> Box<dyn Diagnostic + Send + Sync> {
    let excerpt = || {
        let label = error.labels()?.next()?;
        let read = error.source_code()?.read_span(label.inner(), 1, 1).ok()?;
        Some(String::from_utf8_lossy(read.data()).into_owned())
    };
    if excerpt().is_some_and(|text| shows_secret(&text)) {
        return Box::new(Trouble::new(one_line(&error), "its lines are not shown: they may hold a secret"));
    }
    Box::new(error)
}
