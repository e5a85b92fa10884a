//! `spillgate key`: prints the names of keys in a shared store.
//!
//! Names are hashes. Without this command, an operator could not find the key of a client in Redis.

use serde_json::json;
use spillgate::rules::{Action, LimitDescription, Request, Rules};
use spillgate::{Hit, KeyHasher};

use super::open::store::KeyName;
use super::open::{rules, settings, store};
use super::terminal::{EXIT_DENIED, EXIT_OK, EXIT_USAGE, Problem, Problems, Table, Terminal, Tone};
use crate::cli::{Entries, KeyNames};

/// One limit of a descriptor, and the key of the counter of this limit.
struct Named {
    /// The number of the limit's descriptor, from 0.
    descriptor: usize,
    described: LimitDescription,
    key: KeyName,
}

pub(super) fn run(key: &KeyNames, terminal: &mut Terminal) -> u8 {
    let printed = print(key, terminal);
    printed.unwrap_or_else(|problems| {
        problems.print(key.json, terminal);
        EXIT_USAGE
    })
}

fn print(key: &KeyNames, terminal: &mut Terminal) -> Result<u8, Problems> {
    let settings = settings::load_without_store(key.config.as_deref(), &key.rules, &key.flags)?.settings;
    let name = store::key_names(&settings)?;
    let (rules, _) = rules::load(&settings)?;
    let keys = store::key_hasher(&settings)?;
    let is_secret = settings.store.key_secret_file.is_some();
    let named = named(key, &rules, &keys, &name, settings.limits.bounds.value_bytes)?;
    if key.json {
        let all: Vec<_> = named
            .iter()
            .map(|named| {
                let mut object = json!(named.described);
                object["descriptor"] = json!(named.descriptor);
                object["key"] = json!(named.key.name);
                object["slot"] = json!(named.key.slot);
                object
            })
            .collect();
        terminal.json(&json!({ "secret": is_secret, "keys": all }));
    } else {
        let mut table = Table::new(0);
        let titles = ["descriptor", "limit", "key", "slot", "quota"];
        table.row(titles.map(|title| (Tone::Faint, title.to_owned())));
        for named in &named {
            table.row([
                (Tone::Plain, (named.descriptor + 1).to_string()),
                // A limit without a name is told by its quota, in the last column.
                (Tone::Plain, named.described.name.clone().unwrap_or_else(|| "-".to_owned())),
                (Tone::Title, named.key.name.clone()),
                (Tone::Plain, named.key.slot.to_string()),
                (Tone::Plain, named.described.summary()),
            ]);
        }
        if named.is_empty() {
            terminal.complain("no rule limits these descriptors in the store, so they have no keys there");
        } else {
            let text = table.text(true, terminal);
            terminal.print(&text);
        }
        if !is_secret {
            terminal.complain(store::NO_SECRET);
        }
    }
    Ok(if named.is_empty() { EXIT_DENIED } else { EXIT_OK })
}

fn named<'r>(
    key: &'r KeyNames,
    rules: &'r Rules,
    keys: &KeyHasher,
    name: &dyn Fn(&Hit<'_>) -> KeyName,
    value_bytes: usize,
) -> Result<Vec<Named>, Problems> {
    let pairs = |entries: &'r Entries| entries.0.iter().map(|(key, value)| (&**key, &**value)).collect();
    let entries: Vec<Vec<(&str, &str)>> = key.descriptors.iter().map(pairs).collect();
    if !rules.domains().any(|domain| *domain.name == *key.domain) {
        let help =
            "name a domain of the rules with --domain; `spillgate validate --json` lists the domains of the files";
        return Err(Problem::new(format!("no rules file has the domain `{}`", key.domain), help).into());
    }
    let mut all = Vec::new();
    for (number, entries) in entries.iter().enumerate() {
        let Some(rule) = rules.find(&key.domain, entries) else { continue };
        let mut request = Request::new(&key.domain);
        request.add(entries.iter().copied(), Action::Take(1), None);
        let plan = rules.plan(keys, &request, value_bytes);
        let hits = plan.descriptors.iter().flat_map(|planned| &planned.hits);
        // The limits are taken from the rule, because the limits of the plan do not live long enough.
        for ((hit, _), limit) in hits.zip(&rule.limits) {
            // The counts of a sketch are in the memory of each server, and not in the store.
            if limit.sketch.is_some() {
                continue;
            }
            let key = name(&plan.hits[*hit]);
            let described = LimitDescription::of(rule, limit);
            all.push(Named { descriptor: number, described, key });
        }
    }
    Ok(all)
}
