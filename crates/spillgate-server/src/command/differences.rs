//! Says what another region has otherwise than this one, for the log, the doctor and `spillgate regions`.

/// Returns what is different, and how to fix it. `what` is the name in metrics.
pub(crate) fn words(what: &str) -> (&'static str, &'static str) {
    match what {
        "secret" => ("has another key secret, so it is told nothing", "give all regions one store.key_secret_file"),
        "format" => {
            ("has another version of what regions tell each other, so it is told nothing", "upgrade the older one")
        }
        "own_store" => ("has the store of this region, so it is told nothing", "correct regions.peers"),
        "name" => (
            "has another name in its own settings, so perhaps another region is told in its place",
            "correct the URL in regions.peers, or use the regions.name of that region here",
        ),
        "nobody" => (
            "has not said yet what it is, so it may be the wrong store",
            "start a server of that region with the setting regions.peers, or correct the URL here",
        ),
        "regions" => {
            ("has another number of regions, so guaranteed shares do not add up", "name all regions in each of them")
        }
        _ => ("differs in what this version does not know", "upgrade the older one"),
    }
}
