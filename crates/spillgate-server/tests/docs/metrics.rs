//! Makes the table of all metrics from `/metrics` of real servers, and checks that the pages name no other metric.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tempfile::TempDir;

use super::links::book;
use super::page::read;
use super::tables::table;
use crate::support::redis::Redis;
use crate::support::spillgate::{REGIONS, Spillgate};
use crate::support::{eventually, http, root};

#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    /// The labels of the metric, with their values. A label whose values come from users has no values here.
    labels: BTreeMap<String, Vec<String>>,
}

/// Labels whose values come from the rules or the settings.
const OF_USERS: [&str; 4] = ["domain", "limit", "region", "rule"];
/// Labels with too many values for the table, or with a value that changes with each version.
const NOT_LISTED: [&str; 2] = ["le", "version"];

/// All metrics. Some exist only with a snapshot or with TLS, and others only with a shared store and other regions, so two
/// servers are started.
static FAMILIES: LazyLock<BTreeMap<String, Family>> = LazyLock::new(|| {
    let (rules, folder) =
        (root().join("examples/quickstart.yaml"), TempDir::new().expect("a temporary folder can be made"));
    let path = folder.path().join("state").display().to_string();
    let key = rcgen::KeyPair::generate().expect("a key can be made");
    let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("the name is valid");
    let certificate = params.self_signed(&key).expect("a certificate can be made");
    let [cert, key] = [("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem())].map(|(name, text)| {
        std::fs::write(folder.path().join(name), text).expect("the file can be written");
        folder.path().join(name).display().to_string()
    });
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &cert, "--tls-listeners", "http"];
    let snapshot = ["--memory-snapshot-path", &path, "--memory-snapshot-interval", "100ms"];
    let snapshot = [&snapshot[..], &tls].concat();
    let redis = Redis::start();
    let url = redis.url();
    let store = [&["--store", &*url, "--store-expected-nodes", "1"][..], &REGIONS].concat();
    let mut families = BTreeMap::new();
    let polls = (&["--watch", "poll"][..], "watch_polls 1");
    for (arguments, shown) in [(&snapshot[..], "snapshot_timestamp"), (&store, "store_up 1"), polls] {
        let server = Spillgate::serve(&rules, arguments);
        let page = eventually("the gauge that only this server has", || {
            let page = http::get(server.admin(), "/metrics", &[]).body;
            page.contains(shown).then_some(page)
        });
        add(&page, &mut families);
    }
    families
});

fn add(page: &str, families: &mut BTreeMap<String, Family>) {
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((name, rest)) = line.split_once('{') {
            // The lines of a histogram have a suffix.
            let whole = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let name = whole.filter(|whole| families.contains_key(*whole)).unwrap_or(name);
            let family = families.get_mut(name).expect("the line `# HELP` comes before the values of a metric");
            let labels = rest.split_once('}').expect("the labels end with a brace").0;
            for (label, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
                let values = family.labels.entry(label.to_owned()).or_default();
                let value = value.trim_matches('"').to_owned();
                if !OF_USERS.contains(&label) && !NOT_LISTED.contains(&label) && !values.contains(&value) {
                    values.push(value);
                }
            }
        }
    }
}

pub(crate) fn table_of_all() -> String {
    let rows = FAMILIES.iter().map(|(name, family)| {
        let label = |(name, values): (&String, &Vec<String>)| {
            let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
            let values = if values.is_empty() { String::new() } else { format!(": {}", values.join(", ")) };
            format!("`{name}`{values}")
        };
        let labels = family.labels.iter().map(label).collect::<Vec<_>>().join("; ");
        [format!("`{name}`"), family.kind.clone(), labels, family.help.clone()]
    });
    table(["metric", "type", "labels", "meaning"], rows)
}

#[test]
fn metrics_that_pages_name_exist() {
    let mut problems = Vec::new();
    for page in book().into_iter().chain(["README.md".to_owned()]) {
        let text = read(&page);
        for (at, _) in text.match_indices("spillgate_") {
            let rest = &text[at..];
            let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            // The names of crates and modules also begin with `spillgate_`, but they are not metrics.
            let is_code = text[..at].ends_with('/') || after.starts_with("::") || rest.starts_with("spillgate_core");
            if !is_code && !FAMILIES.contains_key(name) {
                problems.push(format!("{page}: {name}"));
            }
        }
    }
    assert!(problems.is_empty(), "no server has these metrics:\n{}", problems.join("\n"));
}
