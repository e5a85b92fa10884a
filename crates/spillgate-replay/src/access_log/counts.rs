//! Counts the lines of a log: all of them, the unreadable ones, and those that come too late.
//!
//! Every log has some lines that cannot be read. The first of them are kept as examples, so that a user can see whether
//! they matter.

use std::{fmt, io};

use spillgate::Time;

use super::plan::TIME_FIELDS;
use super::reader::LINE_BYTES_MAX;

/// At most this many examples are kept of each kind of line.
const SAMPLES_MAX: usize = 5;
/// A longer example is cut to this many bytes.
const SAMPLE_BYTES_MAX: usize = 200;

/// Why a line cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// The line is empty, or has only white space.
    Empty,
    /// The line is longer than 64 KiB.
    TooLong,
    /// The line does not match the pattern of the format.
    Form,
    /// A log collector such as syslog has written text before the address of the client.
    Syslog,
    /// Other text, for example the name of a host, is before the address of the client.
    Prefix,
    /// The line has none of the fields that can contain a time.
    NoTime,
    /// The time of the line is invalid, before 1990, or after 2200.
    Time,
    /// The time is far after the times of the lines around it.
    FarAhead,
    /// The time of the first line is more than a year before the time of the next line.
    FarBehind,
    /// The line is not a JSON object.
    Json,
    /// The line of a CSV file has more or fewer columns than the first line, or a quote that is not closed.
    Columns,
    /// The first line of a CSV file, which names the columns. This line is not counted.
    Header,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unreadable::Empty => "it is empty",
            Unreadable::TooLong => return write!(f, "it is longer than {} KiB", LINE_BYTES_MAX / 1024),
            Unreadable::Form => "it does not have the form of the format",
            Unreadable::Syslog => {
                "it has words before the address, as syslog writes them: write the pattern '$prefix: $remote_addr $ident \
                 $remote_user [$time_local] \"$request\" $status'"
            }
            Unreadable::Prefix => {
                "it has words before the address: write a pattern that names them, for example '$vhost $remote_addr $ident \
                 $remote_user [$time_local] \"$request\" $status'"
            }
            Unreadable::NoTime => {
                let names = TIME_FIELDS.join(", ");
                return write!(f, "it has no time: name its field with --time-field (without it, {names} are tried)");
            }
            Unreadable::Time => "its time is invalid, before 1990, or after 2200",
            Unreadable::FarAhead => "its time is far after the times of its neighbours",
            Unreadable::FarBehind => "its time is more than a year before the time of the next line",
            Unreadable::Json => "it is not JSON",
            Unreadable::Columns => "its columns are not those of the first line",
            Unreadable::Header => "it names the columns",
        })
    }
}

/// A line that was kept as an example. Its text is hostile: clean it before it reaches a terminal or a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The index of the file in the list that the caller passed.
    pub file: usize,
    /// The number of the line in its file, from 1.
    pub line: u64,
    /// What is wrong with the line, as a clause about "it", for example "it is empty".
    pub why: String,
    /// The line, cut after 200 bytes. Bytes that are not UTF-8 are replaced.
    pub text: String,
}

/// The number of lines of one kind, and the first ones as examples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    pub count: u64,
    pub first: Vec<Sample>,
}

impl Samples {
    pub(super) fn add(&mut self, file: usize, line: u64, text: &[u8], why: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < SAMPLES_MAX {
            let text = String::from_utf8_lossy(&text[..text.len().min(SAMPLE_BYTES_MAX)]).into_owned();
            self.first.push(Sample { file, line, why: why(), text });
        }
    }
}

/// The counts up to now. Every line becomes a logged request, or counts as unreadable. If a file cannot be read to its
/// end, the lost rest counts as one unreadable line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// All lines that were read, without the first lines of CSV files, which name the columns.
    pub lines: u64,
    /// All bytes that were read, after decompression.
    pub bytes: u64,
    pub unreadable: Samples,
    /// Lines that were returned after a line with a later time. They are logged requests too.
    pub late: Samples,
    /// Whether more than half of the times have a fraction of a second that is not 0.
    pub has_fractions: bool,
    fractions: u64,
    whole_seconds: u64,
}

impl LogCounts {
    pub(super) fn add_time(&mut self, time: Time) {
        if time.as_nanos().is_multiple_of(1_000_000_000) {
            self.whole_seconds += 1;
        } else {
            self.fractions += 1;
        }
        self.has_fractions = self.fractions > self.whole_seconds;
    }

    pub(super) fn broken(&mut self, file: usize, line: u64, error: &io::Error) {
        self.lines += 1;
        self.unreadable.add(file, line, b"", || format!("it and all lines after it cannot be read: {error}"));
    }
}
