//! The text of `serve` on standard output: that the server is ready, or all settings (`--show-settings`).
//!
//! Scripts wait for this text (with `--json`) to know that the server is ready, and on which ports.

use spillgate::rules::{Rules, Severity};

use crate::command::terminal::{Table, Terminal, Tone, count, json_line, thousands};
use crate::listener::{Listen, worst_case};
use crate::settings::{KEYS, Origin, Resolved, Settings, StoreUrl};

/// A summary of the rules that were loaded.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) files: usize,
    pub(super) domains: Vec<String>,
    pub(super) rules: usize,
    pub(super) warnings: usize,
}

impl Loaded {
    pub(super) fn of(rules: &Rules, files: usize) -> Loaded {
        Loaded {
            files,
            domains: rules.domains().map(|domain| domain.name.to_string()).collect(),
            rules: rules.rules().count(),
            warnings: rules.warnings().iter().filter(|warning| warning.severity() != Severity::Note).count(),
        }
    }

    /// Returns `2 files, 2 domains (api, web), 14 rules, 1 warning`, for example.
    fn text(&self) -> String {
        const NAMED: usize = 5;
        let mut names = self.domains[..self.domains.len().min(NAMED)].join(", ");
        if self.domains.len() > NAMED {
            names.push_str(", ...");
        }
        let (files, domains) = (count(self.files, "file"), count(self.domains.len(), "domain"));
        let mut text = format!("{files}, {domains} ({names}), {}", count(self.rules, "rule"));
        if self.warnings > 0 {
            text.push_str(&format!(", {} (see `spillgate validate`)", count(self.warnings, "warning")));
        }
        text
    }
}

/// Returns the text that the server is ready, with its addresses and what it has loaded.
pub(super) fn ready(
    settings: &Settings,
    listening: &[(&str, Listen)],
    loaded: &Loaded,
    json: bool,
    terminal: &Terminal,
) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if json {
        let mut ready = serde_json::json!({
            "version": version,
            "pid": std::process::id(),
            "files": loaded.files,
            "domains": loaded.domains,
            "rules": loaded.rules,
            "warnings": loaded.warnings,
            "store": settings.store.url.to_string(),
            "shadow": settings.shadow,
        });
        // A listener that is off is null.
        for (name, _) in settings.listeners() {
            let bound = listening.iter().find(|(bound, _)| *bound == name);
            ready[name] = bound.map(|(_, listen)| listen.to_string()).into();
        }
        return json_line(&ready);
    }
    let mut table = Table::new(2);
    let mut row = |tone, name: &str, text| table.row([(Tone::Faint, name.to_owned()), (tone, text)]);
    for (name, listen) in listening {
        let tls = match (settings.wants_certificates(name), settings.has_tls(name)) {
            (true, _) => ", TLS with client certificates",
            (false, true) if settings.tls.allows_plain => ", with and without TLS",
            (false, true) => ", TLS",
            (false, false) => "",
        };
        row(Tone::Title, name, format!("{listen}{tls}"));
    }
    row(if loaded.warnings > 0 { Tone::Warn } else { Tone::Plain }, "rules", loaded.text());
    row(Tone::Plain, "store", store(settings));
    if settings.shadow {
        row(Tone::Warn, "shadow", "on: every request is decided and counted, but none is refused".to_owned());
    }
    let text = table.text(false, terminal);
    let head = terminal.paint(Tone::Title, &format!("spillgate {version}"));
    format!("{head} is ready\n{text}")
}

/// Returns where the counts are stored.
fn store(settings: &Settings) -> String {
    match (&settings.store.url, settings.store.expected_nodes) {
        (StoreUrl::Memory, _) => format!("memory, {} keys at most", thousands(settings.memory.max_keys)),
        (url, None) => url.to_string(),
        (url, Some(nodes)) => format!("{url}, shared by {} at most", count(nodes as usize, "server")),
    }
}

/// Prints every setting and where its value comes from.
pub(super) fn settings(resolved: &Resolved, json: bool, terminal: &mut Terminal) {
    let origins = &resolved.origins;
    if json {
        let value = |(origin, text): &(Origin, String)| serde_json::json!({"value": text, "from": origin.as_str()});
        let mut all: serde_json::Map<_, _> = origins.iter().map(|(key, set)| ((*key).to_owned(), value(set))).collect();
        let sum: usize = memory_of_clients(&resolved.settings).iter().map(|(_, bytes)| bytes).sum();
        all.insert("memory_of_clients".to_owned(), serde_json::json!({"value": mib(sum), "from": "computed"}));
        terminal.json(&all.into());
        return;
    }
    let mut table = Table::new(0);
    for key in KEYS {
        if let Some((origin, text)) = origins.get(key.path) {
            let tone = if *origin == Origin::Default { Tone::Faint } else { Tone::Title };
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            table.row([(Tone::Plain, key.path.to_owned()), (tone, text), (Tone::Faint, origin.as_str().to_owned())]);
        }
    }
    let mut text = table.text(false, terminal);
    let mut memory = Table::new(0);
    let rows = memory_of_clients(&resolved.settings);
    let sum = rows.iter().map(|(_, bytes)| bytes).sum();
    for (what, bytes) in rows.into_iter().chain([("all together", sum)]) {
        memory.row([(Tone::Plain, what.to_owned()), (Tone::Title, mib(bytes))]);
    }
    text.push_str("\nMemory that clients can hold at most, without the store and insight (sizing.md explains it):\n");
    text.push_str(&memory.text(false, terminal));
    if sum >= USUAL_SUM {
        text.push_str(
            "This is 1GiB or more. Without TLS, the defaults stay below it with up to 8 workers. Each worker adds 4MiB: lower `workers` \
             or `limits.connections` on a small machine.\n",
        );
    }
    terminal.print(&text);
}

/// Without TLS, the defaults stay below this sum on most machines.
const USUAL_SUM: usize = 1 << 30;

/// Returns the memory that clients can hold at most, by what holds it.
fn memory_of_clients(settings: &Settings) -> Vec<(&'static str, usize)> {
    let listeners = settings.listeners_for_clients().iter().filter(|(_, listen)| listen.is_some()).count();
    let of_operators = (settings.admin.is_some(), settings.health.is_some());
    let workers = settings.workers.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let is_shared = settings.store.url != StoreUrl::Memory;
    let limits = &settings.limits.clients;
    let connections = |has: &dyn Fn(&str) -> bool| {
        let names = settings.listeners().map(|(name, _)| name).into_iter().filter(|name| has(name));
        names.map(|name| if name == "admin" { limits.admin_connections() } else { limits.connections }).sum()
    };
    let of_tls = (connections(&|name| settings.has_tls(name)), connections(&|name| settings.wants_certificates(name)));
    worst_case(limits, listeners, of_operators, workers, is_shared, of_tls)
}

fn mib(bytes: usize) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}
