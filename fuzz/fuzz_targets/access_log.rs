//! Reads any bytes as two files of an access log. The first byte chooses the format, and a byte 0xff ends the first file.
//!
//! The values of a request must be text, the times of the requests must never go back, and every line must be a request
//! or unreadable. The files can be compressed, so the decompression is fuzzed too. The values are filled into templates with
//! each modifier. If the newest line of a file is the first one, the file is read from its end.

#![no_main]

use std::io::{Cursor, Read};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use spillgate_replay::access_log::{FORMATS, LogInput, Ordered, Reader, newest_first};
use spillgate_replay::{ClientSettings, Filled, Templates};

const PATTERNS: [&str; 3] =
    ["$msec|${request_uri}", "\"$time_local\" $remote_user [$time_iso8601] \"$request\"", "$time_local $remote_addr"];
/// The input is at most a few KiB, but its text after decompression can be long.
const REQUESTS_MAX: usize = 10_000;

/// Returns templates with each field and each modifier.
fn templates(fields: &[String]) -> Templates {
    let modifiers = ["ip", "network", "client", "first|ip", "last|network", "normal"];
    let template = |(index, field): (usize, &String)| format!("{field}={{{field}}}-{{{field}|{}}}", modifiers[index % 6]);
    let trusted_proxies = vec!["10.0.0.0/8".parse().expect("it is a network")];
    let settings = ClientSettings { trusted_proxies, ..ClientSettings::default() };
    let texts: Vec<String> = fields.iter().enumerate().map(template).collect();
    Templates::parse(&texts, settings).expect("the templates are right")
}

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let index = usize::from(*first) % (FORMATS.len() + PATTERNS.len());
    let format = FORMATS.iter().chain(&PATTERNS).nth(index).expect("the index is in the list");
    let wanted = ["remote_addr", "path", "args", "method", "user_agent", "http_x_a", "a.b.0", "status"];
    let is_known = |name: &&str| Reader::new(format, &[(*name).to_owned()], None).is_ok();
    let wanted: Vec<String> = wanted.into_iter().filter(is_known).map(String::from).collect();
    let Ok(reader) = Reader::new(format, &wanted, None) else { return };
    let parts = rest.splitn(2, |byte| *byte == 0xff);
    let input = |part: &[u8]| match newest_first(part, &reader) {
        Some(reader) => LogInput::newest_first(Cursor::new(part.to_vec()), reader).expect("memory can be read"),
        None => (Box::new(Cursor::new(part.to_vec())) as Box<dyn Read + Send>).into(),
    };
    let files = parts.map(input).collect::<Vec<LogInput>>();
    let (templates, mut filled) = (templates(&wanted), Filled::default());
    let mut log = Ordered::new(files, &reader, Duration::from_secs(u64::from(*first)));
    let (mut requests, mut newest) = (0, None);
    while let Some(request) = log.next() {
        assert!(Some(request.time) >= newest);
        newest = Some(request.time);
        for index in 0..wanted.len() {
            assert!(request.fields.value(index).is_none_or(|value| !value.is_empty()));
        }
        templates.fill(&mut filled, |index| request.fields.value(index));
        _ = templates.request("d", &filled);
        requests += 1;
        if requests == REQUESTS_MAX {
            return;
        }
    }
    _ = templates.warnings(&filled, false);
    if log.newest_first().is_some() {
        return;
    }
    assert_eq!(requests as u64 + log.counts().unreadable.count, log.counts().lines);
});
