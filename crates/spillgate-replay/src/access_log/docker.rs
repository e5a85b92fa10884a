//! Unpacks the lines that Docker writes with its log driver `json-file`: `{"log":"LINE\n","stream":"stdout","time":"..."}`.

use std::borrow::Cow;

use serde::Deserialize;

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
}

/// Returns the line that the program in the container has written, without its line end. Returns `None` if the line is
/// not one of Docker.
pub(super) fn inner(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let Line { log } = serde_json::from_str(&text).ok()?;
    Some(log.trim_end_matches(['\n', '\r']).to_owned())
}
