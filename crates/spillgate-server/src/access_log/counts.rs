//! What is counted while a log is read: lines, unreadable lines, and lines that come too late.
//!
//! A log always has some lines that cannot be read. They are counted and the first ones are kept, so that a user can see
//! whether they matter.

use std::{fmt, io};

/// The number of lines of one kind that are kept.
const SAMPLES_MAX: usize = 5;
/// The bytes of a line that are kept. Longer lines are cut.
const SAMPLE_BYTES_MAX: usize = 200;

/// Why a line cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// The line has nothing, or only spaces.
    Empty,
    /// The line is longer than 64 KiB.
    TooLong,
    /// The line does not have the form that the format describes.
    Form,
    /// The line has no time.
    NoTime,
    /// The time of the line is invalid, before 1990, or after 2200.
    Time,
    /// The time is far after the times of the lines around it.
    FarAhead,
    /// The line is not JSON.
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
            Unreadable::TooLong => "it is longer than 64 KiB",
            Unreadable::Form => "it does not have the form of the format",
            Unreadable::NoTime => "it has no time",
            Unreadable::Time => "its time is invalid, before 1990, or after 2200",
            Unreadable::FarAhead => "its time is far after the times of its neighbours",
            Unreadable::Json => "it is not JSON",
            Unreadable::Columns => "its columns are not those of the first line",
            Unreadable::Header => "it names the columns",
        })
    }
}

/// A line that was kept as an example. It is hostile text: clean it before it reaches a terminal or a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The index of the file in the list that the caller passed.
    pub file: usize,
    /// The number of the line in its file, from 1.
    pub line: u64,
    /// What is wrong with the line. The sentence has "it" for the line.
    pub why: String,
    /// The line, cut after 200 bytes. Bytes that are not UTF-8 are replaced.
    pub text: String,
}

/// How many lines are of one kind, and the first of them.
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

/// What was counted up to now. Every line is a record or unreadable. If a file is broken, its lost rest counts as one more
/// unreadable line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// The lines that were read, without the lines that name the columns of CSV files.
    pub lines: u64,
    /// The bytes of these lines, after decompression.
    pub bytes: u64,
    pub unreadable: Samples,
    /// Lines that came after a line with a later time had been returned. They are records too.
    pub late: Samples,
    /// Whether at least one time has a fraction of a second, or is a number of milliseconds or less.
    pub has_fractions: bool,
}

impl LogCounts {
    pub(super) fn broken(&mut self, file: usize, line: u64, error: &io::Error) {
        self.lines += 1;
        self.unreadable.add(file, line, b"", || format!("it and all lines after it cannot be read: {error}"));
    }
}
