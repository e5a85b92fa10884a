//! Reads lines of access logs into times and the values of named fields.
//!
//! `spillgate replay` decides the requests of a log with rules. This module knows how logs are written, and nothing
//! about rules. It opens no files: the caller passes each file as a [`LogInput`].
//!
//! A log is hostile input, because clients choose parts of its lines. So no line causes a panic, and memory is bounded.

mod backwards;
mod columns;
mod counts;
mod csv;
mod decompress;
mod docker;
mod fields;
mod input;
mod json;
mod json_array;
mod lines;
mod log_file;
mod ordered;
mod pattern;
mod plan;
mod reader;
mod time;
mod window;

pub use backwards::{BEGINNING_BYTES, newest_first};
pub use counts::{LogCounts, Unreadable};
pub use fields::Fields;
pub use input::LogInput;
pub use ordered::{FILES_MAX, LogRequest, OUT_OF_ORDER, Ordered, StepBack};
pub use reader::{FORMATS, FormatError, LINE_BYTES_MAX, Reader};
