//! `spillgate regions`: shows the other regions as a server sees them, and pauses or resumes one of them.

use serde::Deserialize;
use serde_json::json;

use super::answer::{Failure, Server};
use crate::cli::RegionAction;
use crate::command::differences::words;
use crate::command::explained::nanos;
use crate::command::terminal::{Table, Terminal, Tone, clean, count, thousands};

#[derive(Deserialize)]
pub(super) struct Page {
    region: Option<String>,
    keys: usize,
    untold_units: u64,
    regions: Vec<Region>,
}

#[derive(Deserialize)]
struct Region {
    region: String,
    paused: bool,
    cut_off_ns: Option<u64>,
    compared: bool,
    told: bool,
    differs: Vec<String>,
    delay_p50_ns: Option<u64>,
    delay_p99_ns: Option<u64>,
    waiting_keys: usize,
    entries_per_second: f64,
    last_failure: Option<LastFailure>,
}

#[derive(Deserialize)]
struct LastFailure {
    error: String,
    ago_ns: u64,
}

impl Region {
    fn state(&self) -> (Tone, String) {
        match self.cut_off_ns {
            _ if self.paused => (Tone::Warn, "paused".to_owned()),
            Some(ns) => (Tone::Bad, format!("cut off for {}", seconds(ns))),
            None if !self.compared => (Tone::Warn, "not reached yet".to_owned()),
            None if !self.told => (Tone::Bad, "told nothing".to_owned()),
            None if !self.differs.is_empty() => (Tone::Warn, "reached".to_owned()),
            None => (Tone::Good, "reached".to_owned()),
        }
    }
}

pub(super) fn list(page: &Page, terminal: &Terminal) -> String {
    let Some(region) = &page.region else {
        return "this server tells no other region what it admits: it needs regions.peers and a shared store\n"
            .to_owned();
    };
    let mut table = Table::new(0);
    let titles = ["region", "state", "delay p50", "p99", "waiting keys", "entries/s", "last failure"];
    table.row(titles.map(|title| (Tone::Faint, title.to_owned())));
    let plain = |text: String| (Tone::Plain, text);
    let delay = |ns: Option<u64>| plain(ns.map_or_else(|| "-".to_owned(), nanos));
    for region in &page.regions {
        let failure = region.last_failure.as_ref();
        table.row([
            (Tone::Title, clean(&region.region)),
            region.state(),
            delay(region.delay_p50_ns),
            delay(region.delay_p99_ns),
            plain(thousands(region.waiting_keys)),
            plain(format!("{:.1}", region.entries_per_second)),
            plain(failure.map_or_else(
                || "-".to_owned(),
                |failure| format!("{} ago: {}", seconds(failure.ago_ns), clean(&failure.error)),
            )),
        ]);
    }
    let mut text = table.text(true, terminal);
    for Region { region, differs, .. } in &page.regions {
        for what in differs {
            let (found, help) = words(what);
            text.push_str(&format!("\n{} {found}\n  -> {help}", clean(region)));
        }
    }
    let entries = if page.keys == 1 { "1 entry".to_owned() } else { format!("{} entries", page.keys) };
    text.push_str(&format!(
        "\nthis server is in the region {}, and remembers {entries} for the others\n",
        clean(region)
    ));
    if page.untold_units > 0 {
        let units = count(usize::try_from(page.untold_units).unwrap_or(usize::MAX), "unit");
        text.push_str(&format!("the list of keys was full: {units} of new keys were not told (regions.max_keys)\n"));
    }
    text
}

pub(super) fn change(server: &Server, action: &RegionAction, terminal: &mut Terminal) -> Result<(), Failure> {
    let RegionAction { region, is_paused } = action;
    let verb = if *is_paused { "pause" } else { "resume" };
    let answer = server.post(format!("/regions/{region}/{verb}"), &json!({}), terminal)?;
    server.print(&answer, terminal, |_: &serde_json::Value| match is_paused {
        true => vec![
            format!("this server sends nothing to {region} until `spillgate regions resume {region}`"),
            "pause the region at each server. A restart resumes it too, but forgets what waits for it".to_owned(),
        ],
        false => vec![format!("this server sends to {region} again, with what still waits for it")],
    })
}

/// Returns a time in whole seconds.
fn seconds(ns: u64) -> String {
    nanos(ns - ns % 1_000_000_000)
}
