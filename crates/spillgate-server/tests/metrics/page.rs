//! Splits the lines of `/metrics` into names, labels and values.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::support::http;

/// The values of the labels of one series, by the names of the labels.
pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) text: String,
    pub(crate) lines: Vec<(String, Labels, f64)>,
}

impl Page {
    pub(crate) fn of(admin: SocketAddr) -> Page {
        let text = http::get(admin, "/metrics", &[]).body;
        let lines = text.lines().filter(|line| !line.starts_with('#')).map(read).collect();
        Page { text, lines }
    }

    /// Returns the sum of all series with this name that have these labels. Panics if there is no such series.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let has = |own: &Labels| labels.iter().all(|(label, value)| own.get(*label).is_some_and(|own| own == value));
        let found: Vec<f64> =
            self.lines.iter().filter(|(own, of, _)| own == name && has(of)).map(|(.., value)| *value).collect();
        assert!(!found.is_empty(), "no series {name} has the labels {labels:?}:\n{}", self.text);
        found.iter().sum::<f64>() as u64
    }
}

fn read(line: &str) -> (String, Labels, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("a line without a value: {line}"));
    let (name, labels) = match series.split_once('{') {
        Some((name, rest)) => (name, labels(rest.strip_suffix('}').unwrap_or_else(|| panic!("no brace: {line}")))),
        None => (series, Labels::new()),
    };
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "a wrong name: {line}");
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("not a number: {line}")))
}

fn labels(text: &str) -> Labels {
    let (mut labels, mut rest) = (Labels::new(), text);
    while !rest.is_empty() {
        let (label, quoted) = rest.split_once("=\"").unwrap_or_else(|| panic!("not a label: {rest}"));
        let (mut value, mut end) = (String::new(), None);
        let mut chars = quoted.char_indices();
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    end = Some(at);
                    break;
                }
                '\\' => value.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, escaped @ ('\\' | '"'))) => escaped,
                    other => panic!("a wrong escape {other:?}: {rest}"),
                }),
                char => value.push(char),
            }
        }
        let end = end.unwrap_or_else(|| panic!("an open quote: {rest}"));
        assert!(labels.insert(label.to_owned(), value).is_none(), "a label twice: {text}");
        rest = quoted[end + 1..].trim_start_matches(',');
    }
    labels
}
