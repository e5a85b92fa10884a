use std::io::{self, Read};
use std::time::Duration;

use super::{Copied, LogCounts, file, line, read_all, reader};

const MINUTE: Duration = Duration::from_secs(60);

fn read_common(bytes: impl Into<Vec<u8>>) -> (Vec<Copied>, LogCounts) {
    read_all("common", vec![file(bytes)], MINUTE)
}

/// A file that returns one byte for each read, and an error at its end.
struct Slow(io::Cursor<Vec<u8>>);

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(1);
        match self.0.read(&mut buffer[..length])? {
            0 => Err(io::Error::other("the disk is broken")),
            bytes => Ok(bytes),
        }
    }
}

#[test]
fn a_line_that_is_too_long_is_skipped() {
    const LONGEST: usize = 64 * 1024;
    for length in [LONGEST - 1, LONGEST, LONGEST + 1, LONGEST + 2, 2 * LONGEST - 1, 2 * LONGEST, 1024 * 1024, 3_000_000]
    {
        for line_end in ["\n", "\r\n", ""] {
            let head = line("long", 1).replace(" 5\n", "");
            let long = format!("{head}{}", " 5".repeat(length / 2 + 1));
            let text = format!("{}{}{line_end}", line("a", 1), &long[..length]);
            let after = if line_end.is_empty() { String::new() } else { line("b", 2) };
            let (requests, counts) = read_common(format!("{text}{after}"));
            let is_long = length > LONGEST;
            let mut expected = vec!["a", "long", "b"];
            expected.retain(|name| (*name != "long" || !is_long) && (*name != "b" || !after.is_empty()));
            let addresses: Vec<_> = requests.iter().map(|request| request.values[0].as_deref().unwrap()).collect();
            assert_eq!(addresses, expected, "{length} {line_end:?}");
            assert_eq!(counts.unreadable.count, u64::from(is_long), "{length} {line_end:?}");
            assert_eq!(counts.lines, requests.len() as u64 + u64::from(is_long), "{length} {line_end:?}");
            assert_eq!(counts.bytes, (text.len() + after.len()) as u64, "{length} {line_end:?}");
            for sample in &counts.unreadable.first {
                assert_eq!((sample.line, sample.why.as_str()), (2, "it is longer than 64 KiB"));
                assert_eq!(sample.text.as_deref(), Some(&long[..200]));
            }
        }
    }
}

#[test]
fn text_of_a_client_stays_text() {
    for value in ["<script>alert(1)</script>", "\u{1b}[31m\u{7}\u{0}", "\u{202e}abc", "\\x1b[2J", "';DROP/*"] {
        let (requests, counts) = read_common(format!("{}{}", line(value, 1), line("ok", 2)));
        let expected = if value == "\\x1b[2J" { "\u{1b}[2J" } else { value };
        assert_eq!(requests[0].values, [Some(expected.to_owned())]);
        assert_eq!((requests.len(), counts.unreadable.count), (2, 0), "{value:?}");
    }
}

#[test]
fn impossible_years_are_unreadable() {
    let (requests, counts) = read_common(format!(
        "{}{}{}{}",
        line("a", 1),
        line("b", 2).replace("2020", "0000"),
        line("c", 3).replace("2020", "9999"),
        line("d", 4)
    ));
    assert_eq!((requests.len(), counts.unreadable.count, counts.late.count), (2, 2, 0));
    assert!(counts.unreadable.first.iter().all(|s| s.why == "its time is invalid, before 1990, or after 2200"));
}

#[test]
fn json_that_is_nested_deeply_is_unreadable() {
    let deep = format!("{{\"ts\":971211336,\"a\":{}", "[".repeat(30_000));
    let (requests, counts) = read_all("json", vec![file(format!("{deep}\n{{\"ts\":971211336}}\n"))], MINUTE);
    assert_eq!((requests.len(), counts.unreadable.count), (1, 1));
    let wanted = vec!["a"; 20_000].join(".");
    let mut fields = spillgate_replay::access_log::Fields::default();
    let mut reader = reader("json", &[&wanted]);
    let deep = format!("{{\"ts\":971211336,{}1{}}}", "\"a\":{".repeat(9000), "}".repeat(9000));
    assert!(reader.read(deep.as_bytes(), &mut fields).is_err());
}

#[test]
fn a_file_that_fails_ends_with_an_error() {
    let text = format!("{}{}{}", line("a", 1), line("b", 2), "half of a line");
    let broken: Box<dyn Read + Send> = Box::new(Slow(io::Cursor::new(text.into_bytes())));
    let nothing: Box<dyn Read + Send> = Box::new(Slow(io::Cursor::new(Vec::new())));
    let (requests, counts) = read_all("common", vec![broken, file(line("c", 1)), nothing], MINUTE);
    let places: Vec<_> = requests.iter().map(|request| (request.file, request.line)).collect();
    assert_eq!(places, [(0, 1), (1, 1), (0, 2)]);
    assert_eq!((counts.lines, counts.unreadable.count), (5, 2));
    let mut errors: Vec<_> = counts.unreadable.first.iter().map(|s| (s.file, s.line, s.why.as_str())).collect();
    errors.sort_unstable();
    let why = "it and all lines after it cannot be read: the disk is broken";
    assert_eq!(errors, [(0, 3, why), (2, 1, why)]);
}

#[test]
fn a_zstd_window_that_is_too_large_is_refused() {
    // The exponent 31 in the window descriptor means a window of 2 TiB.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 31 << 3, 1, 0, 0];
    let (requests, counts) = read_common(frame);
    assert_eq!((requests.len(), counts.unreadable.count), (0, 1));
    // A window of 128 MiB is accepted if one file is read, but is too large if a hundred files are read.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 1, 0, 0];
    assert_eq!(read_common(frame).1.unreadable.count, 0);
    let files = (0..100).map(|_| file(frame)).collect();
    let unreadable = read_all("common", files, MINUTE).1.unreadable;
    assert_eq!(unreadable.count, 100);
    assert!(unreadable.first[0].why.ends_with(": give fewer files, or decompress them first"), "{unreadable:?}");
}

#[test]
fn another_compression_is_named() {
    let files: [(&[u8], &str); 3] = [(b"BZh91AY&SY", "bzip2"), (b"\xfd7zXZ\0\0", "xz"), (b"PK\x03\x04\x14\0", "zip")];
    for (bytes, name) in files {
        let (requests, counts) = read_common(bytes);
        assert_eq!((requests.len(), counts.unreadable.count), (0, 1), "{name}");
        let why = &counts.unreadable.first[0].why;
        let expected = format!("the file is {name}, which is not supported: decompress it first");
        assert!(why.ends_with(&expected), "{why}");
    }
}

#[test]
fn no_files_have_no_lines() {
    let (requests, counts) = read_all("common", Vec::new(), MINUTE);
    assert_eq!((requests, counts), (Vec::new(), LogCounts::default()));
    let (requests, counts) = read_all("common", vec![file(""), file("")], MINUTE);
    assert_eq!((requests, counts), (Vec::new(), LogCounts::default()));
}
