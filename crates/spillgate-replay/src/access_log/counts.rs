//! Counts the lines of a log: all of them, the unreadable ones, and those that come too late.
//!
//! Every log has some lines that cannot be read. The first of them are kept as examples, so that a user can see whether
//! they matter.

use std::{fmt, io};

use spillgate::Time;

use super::plan::TIME_FIELDS;
use super::reader::LINE_BYTES_MAX;
use crate::report::Samples;

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
    /// The line has more or fewer columns than the line that names them, or a quote that is not closed.
    Columns,
    /// A line that names columns, or a comment of the server. This line is not counted.
    Header,
    /// No line before it names the columns.
    Unnamed,
    /// The line is not one of Docker's file of JSON lines.
    Docker,
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
            Unreadable::Columns => "its columns are not those of the line that names them",
            Unreadable::Header => "it names the columns",
            Unreadable::Unnamed => "no line before it names the columns: keep the line that begins with #Fields:",
            Unreadable::Docker => "it is not JSON with a member `log`, as Docker writes it",
        })
    }
}

/// What was counted up to now. Every line is a logged request or unreadable. If a file is broken, the part that cannot
/// be read counts as one more unreadable line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// All lines that were read, without those that name columns.
    pub lines: u64,
    /// All bytes that were read, after decompression.
    pub bytes: u64,
    pub unreadable: Samples<usize>,
    /// Lines that came too late to be sorted, because a line with a later time had been returned already. They are
    /// logged requests too.
    pub late: Samples<usize>,
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
        self.unreadable.add(line, b"", || (file, format!("it and all lines after it cannot be read: {error}")));
    }
}
