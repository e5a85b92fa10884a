//! `spillgate validate`: finds errors in rules and settings files.
//!
//! Like `serve`, it checks the settings, the rules and the files that the settings name. Unlike `serve`, it opens no
//! ports, does not connect to the store, and does not check the snapshot file. Editors and continuous integration use
//! it.

use std::collections::BTreeMap;

use spillgate::rules::{Diagnostic, Rules, Severity};

use super::open::{listener_tls, rule_checks, rules, secret_file, settings, store};
use super::shared_limits::{self, SharedLimit};
use super::terminal::{EXIT_DENIED, EXIT_OK, EXIT_USAGE, Terminal, Tone, count, diagnostic_json};
use crate::cli::Validate;
use crate::settings::Resolved;

pub(super) fn run(validate: &Validate, terminal: &mut Terminal) -> u8 {
    let loaded =
        settings::load(validate.config.as_deref(), &validate.rules, &[]).and_then(|Resolved { settings, .. }| {
            let (rules, files) = rules::load(&settings)?;
            store::check_settings(&settings)?;
            secret_file::admin_access(&settings)?;
            listener_tls::check_settings(&settings)?;
            rule_checks::check_for_server(&settings, &rules)?;
            Ok((rule_checks::notes(&settings, &rules), shared_limits::of(&settings, &rules), rules, files))
        });
    let (store_notes, shared, rules, files) = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => {
            problems.print(validate.json, terminal);
            if !validate.json {
                terminal.complain(&format!("\n{}", count(problems.0.len(), "error")));
            }
            return EXIT_USAGE;
        }
    };
    let (notes, warnings): (Vec<&Diagnostic>, Vec<&Diagnostic>) =
        rules.warnings().iter().partition(|warning| warning.severity() == Severity::Note);
    let code = if validate.deny_warnings && !warnings.is_empty() { EXIT_DENIED } else { EXIT_OK };
    if validate.json {
        terminal.json(&summary(&rules, (&store_notes, &shared), files, code));
        return code;
    }
    for warning in &warnings {
        terminal.report(warning);
    }
    let notes: Vec<_> = notes.into_iter().map(Diagnostic::one_line).chain(store_notes).collect();
    for note in &notes {
        terminal.complain(&format!("note: {note}"));
    }
    let domains = rules.domains().count();
    let mut text =
        format!("{}: {}, {}", count(files, "file"), count(domains, "domain"), count(rules.rules().count(), "rule"));
    if warnings.is_empty() {
        text.push_str(&terminal.paint(Tone::Good, ", good"));
    } else {
        text.push_str(&terminal.paint(Tone::Warn, &format!(", {}", count(warnings.len(), "warning"))));
    }
    if !notes.is_empty() {
        text.push_str(&format!(", {}", count(notes.len(), "note")));
    }
    text.push('\n');
    shared.iter().for_each(|limit| text.push_str(&limit.text(terminal)));
    terminal.print(&text);
    code
}

fn summary(
    rules: &Rules,
    (store_notes, shared): (&[String], &[SharedLimit]),
    files: usize,
    code: u8,
) -> serde_json::Value {
    let note = |message| serde_json::json!({"severity": "note", "message": message});
    let warnings: Vec<_> = rules.warnings().iter().map(diagnostic_json).chain(store_notes.iter().map(note)).collect();
    let shared = shared.iter().map(|limit| {
        let lines: BTreeMap<_, _> = shared_limits::NAMES.iter().zip(limit.lines.iter().map(|(_, text)| text)).collect();
        serde_json::json!({"limit": limit.name, "lines": lines})
    });
    let shared: Vec<_> = shared.collect();
    let domains: Vec<_> = rules.domains().map(|domain| &*domain.name).collect();
    serde_json::json!({
        "ok": code == EXIT_OK,
        "errors": [],
        "warnings": warnings,
        "files": files,
        "domains": domains,
        "rules": rules.rules().count(),
        "shared_limits": shared,
    })
}
