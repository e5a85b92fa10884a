//! Tests of the readers of access logs: formats, order, compressed files, and hostile input.

mod formats;
mod hostile;
mod order;
mod program;
mod random;
mod servers;

use std::io::{Cursor, Read};
use std::time::Duration;

use spillgate_replay::access_log::{Fields, LogCounts, Ordered, Reader, Unreadable};

/// A logged request that owns its values, so a test can keep it while the next line is read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Copied {
    time_ns: u64,
    file: usize,
    line: u64,
    text: String,
    values: Vec<Option<String>>,
}

fn reader(format: &str, wanted: &[&str]) -> Reader {
    let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    Reader::new(format, &wanted, None).unwrap_or_else(|error| panic!("{format}: {error}"))
}

fn values(fields: &Fields, count: usize) -> Vec<Option<String>> {
    (0..count).map(|index| fields.value(index).map(str::to_owned)).collect()
}

/// Reads one line. A value that the line does not have is returned as an empty text.
fn read(format: &str, wanted: &[&str], line: &str) -> Result<(u64, Vec<String>), Unreadable> {
    let mut fields = Fields::default();
    let time = reader(format, wanted).read(line.as_bytes(), &mut fields)?;
    let values = values(&fields, wanted.len()).into_iter().map(Option::unwrap_or_default);
    Ok((time.as_nanos(), values.collect()))
}

fn file(bytes: impl Into<Vec<u8>>) -> Box<dyn Read + Send> {
    Box::new(Cursor::new(bytes.into()))
}

/// Reads all files, and keeps only the address of each request.
fn read_all(format: &str, files: Vec<Box<dyn Read + Send>>, out_of_order: Duration) -> (Vec<Copied>, LogCounts) {
    let mut log = Ordered::new(files, &reader(format, &["remote_addr"]), out_of_order);
    let mut requests = Vec::new();
    while let Some(request) = log.next() {
        let text = String::from_utf8_lossy(request.text).into_owned();
        let values = values(request.fields, 1);
        let time_ns = request.time.as_nanos();
        requests.push(Copied { time_ns, file: request.file, line: request.line, text, values });
    }
    (requests, log.counts().clone())
}

/// Returns a line of the format `common`. Its time is `second` seconds after 2020-01-01 00:00.
fn line(address: &str, second: u64) -> String {
    let (day, hour, minute) = (1 + second / 86_400, second / 3600 % 24, second / 60 % 60);
    let time = format!("{day:02}/Jan/2020:{hour:02}:{minute:02}:{:02} +0000", second % 60);
    format!("{address} - - [{time}] \"GET / HTTP/1.1\" 200 5\n")
}

/// Reads lines of the format `common`. Returns the address of each request, and its time in seconds after 2020-01-01
/// 00:00.
fn seconds(files: &[String], out_of_order: u64) -> (Vec<(String, u64)>, LogCounts) {
    let files = files.iter().map(|text| file(text.as_bytes())).collect();
    let (requests, counts) = read_all("common", files, Duration::from_secs(out_of_order));
    let second = |request: &Copied| (request.time_ns / 1_000_000_000).wrapping_sub(1_577_836_800);
    let requests = requests.iter().map(|request| (request.values[0].clone().unwrap_or_default(), second(request)));
    (requests.collect(), counts)
}
