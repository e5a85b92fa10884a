//! Finds out which values of a line are needed for the wanted fields and for the time.
//!
//! The same field has different names in different logs, and some fields are parts of others: the path is a part of the
//! request line. So each wanted field has a list of sources, and the first source that has a value is used.

use spillgate::text::nearest;

use super::fields::{Fields, Part};
use super::reader::FormatError;

/// The names of fields that can contain the time. The first one that a line has is used.
pub(super) const TIME_FIELDS: [&str; 11] = [
    // Traefik writes its own `time` when a request ends.
    "StartUTC",
    "time",
    "ts",
    "@timestamp",
    "timestamp",
    "time_iso8601",
    "msec",
    "time_local",
    "start_time",
    "datetime",
    "date",
];
/// The name of the field with the date, if another field has the time of day.
const DATE: &str = "date";
/// No rule has that many keys. The bound keeps the work for a line small.
const WANTED_MAX: usize = 64;

/// Where the values of one line are. The positions are in `decoded` if the format has to decode its values (JSON, CSV),
/// and otherwise in the line.
#[derive(Debug, Clone, Default)]
pub(super) struct Values {
    pub(super) spans: Vec<Option<(u32, u32)>>,
    pub(super) decoded: Vec<u8>,
}

impl Values {
    pub(super) fn clear(&mut self, sources: usize) {
        self.spans.clear();
        self.spans.resize(sources, None);
        self.decoded.clear();
    }

    /// Sets the value of a source to the bytes of `decoded` after `begin`.
    pub(super) fn set_decoded(&mut self, source: usize, begin: usize) {
        self.spans[source] = Some((begin as u32, self.decoded.len() as u32));
    }
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// The names that the needed values can have in a line.
    pub(super) sources: Vec<String>,
    times: Vec<usize>,
    date: Option<usize>,
    wanted: Vec<Vec<(usize, Part)>>,
}

impl Plan {
    /// `known` has the names of all values of the format. It is `None` if the lines of the log name their values.
    pub(super) fn new(
        wanted: &[String],
        time_field: Option<&str>,
        known: Option<&[String]>,
    ) -> Result<Plan, FormatError> {
        if wanted.len() > WANTED_MAX {
            return Err(FormatError(format!("{} fields are wanted, but {WANTED_MAX} is the maximum", wanted.len())));
        }
        let mut plan = Plan { sources: Vec::new(), times: Vec::new(), date: None, wanted: Vec::new() };
        let is_known = |name: &str| known.is_none_or(|known| known.iter().any(|one| one == name));
        let times = time_field.map_or(TIME_FIELDS.to_vec(), |field| vec![field]);
        for name in times.iter().filter(|name| is_known(name)) {
            let source = plan.source(name);
            plan.times.push(source);
        }
        plan.date = is_known(DATE).then(|| plan.source(DATE));
        if plan.times.is_empty() {
            return Err(match (time_field, known) {
                (Some(field), Some(known)) => unknown_field(field, known),
                _ => FormatError(String::from(
                    "the pattern has no time: add $time_local, $time_iso8601 or $msec, or name the field that has the time",
                )),
            });
        }
        for name in wanted {
            let sources: Vec<_> = sources_of(name).into_iter().filter(|(source, _)| is_known(source)).collect();
            if let (Some(known), true) = (known, sources.is_empty()) {
                return Err(unknown_field(name, known));
            }
            let sources = sources.into_iter().map(|(source, part)| (plan.source(&source), part)).collect();
            plan.wanted.push(sources);
        }
        Ok(plan)
    }

    fn source(&mut self, name: &str) -> usize {
        let found = self.sources.iter().position(|source| source == name);
        found.unwrap_or_else(|| {
            self.sources.push(name.to_owned());
            self.sources.len() - 1
        })
    }

    /// Returns the text of the time. `base` is the text to which the positions of `values` belong.
    pub(super) fn time<'b>(&self, values: &Values, base: &'b [u8]) -> Option<&'b [u8]> {
        self.times.iter().map(|source| value(values, base, *source)).find(|text| !text.is_empty())
    }

    /// Returns the text of the date, if the time is only a time of day.
    pub(super) fn date<'b>(&self, values: &Values, base: &'b [u8]) -> Option<&'b [u8]> {
        self.date.map(|source| value(values, base, source)).filter(|text| !text.is_empty())
    }

    pub(super) fn fill(&self, values: &Values, base: &[u8], escapes: bool, fields: &mut Fields) {
        fields.clear();
        for sources in &self.wanted {
            let parts = sources.iter().map(|(source, part)| part.of(value(values, base, *source)));
            fields.push(parts.into_iter().find(|part| !part.is_empty()).unwrap_or_default(), escapes);
        }
    }
}

/// Returns a value. The result is empty if the line does not have the value, for which servers write `-`.
fn value<'b>(values: &Values, base: &'b [u8], source: usize) -> &'b [u8] {
    let span = values.spans.get(source).copied().flatten();
    let text = span.and_then(|(begin, end)| base.get(begin as usize..end as usize)).unwrap_or_default();
    if text == b"-" { &[] } else { text }
}

/// Returns the values that a field can be read from: the name of each value, and which part of it is the field. A value
/// with the name of the field comes first.
fn sources_of(field: &str) -> Vec<(String, Part)> {
    let request = |part| ("request", part);
    let more: &[(&str, Part)] = match field {
        "request_method" | "method" => {
            &[("request_method", Part::Whole), ("method", Part::Whole), request(Part::Method)]
        }
        "request_uri" | "uri" => &[("request_uri", Part::Whole), request(Part::Target)],
        "path" => &[("request_uri", Part::Path), request(Part::TargetPath), ("uri", Part::Path)],
        "args" | "query" => &[
            ("args", Part::Whole),
            ("query_string", Part::Whole),
            ("request_uri", Part::Query),
            request(Part::TargetQuery),
        ],
        "server_protocol" | "protocol" => {
            &[("server_protocol", Part::Whole), ("protocol", Part::Whole), request(Part::Protocol)]
        }
        "bytes" => &[("body_bytes_sent", Part::Whole), ("bytes_sent", Part::Whole)],
        "referer" => &[("http_referer", Part::Whole)],
        "user_agent" => &[("http_user_agent", Part::Whole)],
        "host" => &[("http_host", Part::Whole), ("server_name", Part::Whole)],
        // Envoy's default format does not have the address of the connection. But Envoy appends it to the addresses
        // that the client sent.
        "remote_addr" => &[("client_with_port", Part::BeforePort), ("http_x_forwarded_for", Part::LastAddress)],
        _ => &[],
    };
    let mut sources = vec![(field.to_owned(), Part::Whole)];
    for (name, part) in more.iter().filter(|(name, _)| *name != field) {
        sources.push(((*name).to_owned(), *part));
    }
    sources
}

/// The fields that [`sources_of`] can find in other fields. An error lists them.
const DERIVED: [&str; 14] = [
    "method",
    "request_method",
    "request_uri",
    "uri",
    "path",
    "args",
    "query",
    "protocol",
    "server_protocol",
    "referer",
    "user_agent",
    "remote_addr",
    "host",
    "bytes",
];

fn unknown_field(field: &str, known: &[String]) -> FormatError {
    let has = |name: &&str| sources_of(name).iter().any(|(source, _)| known.contains(source));
    let mut names: Vec<&str> = known.iter().map(String::as_str).collect();
    names.extend(DERIVED.into_iter().filter(|name| !known.iter().any(|one| one == name) && has(name)));
    let near = nearest(field, names.iter().copied()).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
    FormatError(format!("the format has no field {field}: {near}Its fields are {}", names.join(", ")))
}
