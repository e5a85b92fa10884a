//! What a replay needs: settings, rules, the domain, the templates of descriptors, and the reader of lines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use spillgate::KeyHasher;
use spillgate::rules::Rules;
use spillgate_replay::access_log::{FILES_MAX, FormatError, Reader};
use spillgate_replay::{CALLERS, ClientSettings, RunOptions, TemplateError, Templates};
use spillgate_service::ServiceOptions;

use crate::cli::Replay;
use crate::command::open::{memory, rules, settings};
use crate::command::terminal::{Problem, Problems};
use crate::settings::Settings;

/// How many callers insight watches if the settings switch it off. A replay needs insight for its verdicts.
const WATCHED: usize = 65_536;

/// Rules with the names of their files.
#[derive(Clone)]
pub(super) struct NamedRules {
    pub(super) name: String,
    pub(super) rules: Rules,
    /// The maximum number of callers that are counted one by one.
    pub(super) callers: usize,
}

/// Everything that was read before the log.
pub(super) struct Inputs {
    pub(super) new: NamedRules,
    pub(super) old: Option<NamedRules>,
    pub(super) domain: String,
    pub(super) templates: Templates,
    pub(super) reader: Reader,
    pub(super) out_of_order: Duration,
    pub(super) wait: Duration,
    pub(super) options: RunOptions,
    pub(super) logs: Vec<PathBuf>,
    pub(super) format: String,
    pub(super) descriptors: Vec<String>,
}

impl NamedRules {
    /// Returns changed rules under the same name. Their callers are not counted, because the result of a suggestion
    /// shows none.
    pub(super) fn with(&self, rules: Rules) -> NamedRules {
        NamedRules { name: self.name.clone(), rules, callers: 0 }
    }
}

impl Inputs {
    pub(super) fn read(replay: &Replay) -> Result<Inputs, Problems> {
        let settings = settings::load_without_store(replay.config.as_deref(), &replay.rules, &replay.flags)?.settings;
        let new = named(&settings, &settings.rules)?;
        let old = match &replay.compare[..] {
            [] => None,
            paths => Some(named(&settings, paths)?),
        };
        let domain = domain(replay.domain.as_deref(), &new.rules)?;
        if let Some(old) = old.as_ref().filter(|old| !old.rules.has_domain(&domain)) {
            let message = format!("the rules of --compare ({}) have no domain `{domain}`", old.name);
            return Err(Problem::new(message, "compare rules of the same domain").into());
        }
        let clients = ClientSettings {
            trusted_proxies: settings.trusted_proxies.clone(),
            ipv6_prefix: settings.forward_auth.ipv6_prefix,
        };
        let templates = Templates::parse(&replay.descriptors, clients)
            .map_err(|error| Problem::new(error.to_string(), TemplateError::HELP))?;
        let reader = reader(replay, &templates).map_err(|error| {
            Problem::new(
                error.to_string(),
                "`spillgate replay --help` lists the formats, and shows how to write a pattern",
            )
        })?;
        check_logs(&replay.logs, replay.suggests)?;
        let mut service = ServiceOptions::from(&settings);
        // A replay shows what the rules would do if they were enforced.
        service.shadow = false;
        if service.insight.max_callers == 0 {
            service.insight.max_callers = WATCHED;
        }
        Ok(Inputs {
            new,
            old,
            domain,
            templates,
            reader,
            out_of_order: replay.out_of_order,
            wait: replay.wait,
            options: RunOptions {
                service,
                memory: memory::options(&settings)?,
                keys: KeyHasher::random(),
                callers: CALLERS,
            },
            logs: replay.logs.clone(),
            format: replay.format.clone(),
            descriptors: replay.descriptors.clone(),
        })
    }

    /// Returns the rules of the first pass: the new ones, and the old ones if they are compared.
    pub(super) fn first_runs(&self) -> Vec<NamedRules> {
        std::iter::once(&self.new).chain(&self.old).cloned().collect()
    }
}

/// Returns the reader of the lines. If a template would use the address of the connection, but the format does not have
/// it, the reader does without it.
fn reader(replay: &Replay, templates: &Templates) -> Result<Reader, FormatError> {
    let read = |wanted: &[String]| Reader::new(&replay.format, wanted, replay.time_field.as_deref());
    let own = templates.fields();
    let with_peer = templates.peer_field().map(|peer| [own, &[peer.to_owned()]].concat());
    with_peer.and_then(|wanted| read(&wanted).ok()).map_or_else(|| read(own), Ok)
}

fn named(settings: &Settings, paths: &[PathBuf]) -> Result<NamedRules, Problems> {
    let files = rules::files(paths)?;
    let rules = rules::parse(settings, &files)?;
    let names: Vec<_> = files.iter().map(|file| &*file.name).collect();
    Ok(NamedRules { name: names.join(", "), rules, callers: CALLERS })
}

fn domain(given: Option<&str>, rules: &Rules) -> Result<String, Problem> {
    let names: Vec<&str> = rules.domains().map(|domain| &*domain.name).collect();
    match (given, &names[..]) {
        (Some(given), _) if rules.has_domain(given) => Ok(given.to_owned()),
        (None, [only]) => Ok((*only).to_owned()),
        (Some(given), _) => Err(Problem::new(
            format!("the rules have no domain `{given}`"),
            format!("write one of {}", names.join(", ")),
        )),
        (None, _) => Err(Problem::new(
            "the rules have several domains",
            format!("choose one with --domain: {}", names.join(", ")),
        )),
    }
}

fn check_logs(logs: &[PathBuf], suggests: bool) -> Result<(), Problem> {
    let inputs = logs.iter().filter(|path| is_input(path)).count();
    if inputs > 1 {
        return Err(Problem::new("standard input is given twice as a log", "write `--log -` once"));
    }
    if inputs == 1 && suggests {
        let help = "save the log to a file, because --suggest reads it twice";
        return Err(Problem::new("--suggest cannot read standard input", help));
    }
    if logs.len() > FILES_MAX {
        let message = format!("{} logs are given, but {FILES_MAX} is the most", logs.len());
        return Err(Problem::new(message, "give fewer files, or join some: gzip files can be joined with `cat`"));
    }
    Ok(())
}

/// Returns whether a log is standard input.
pub(super) fn is_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}
