use std::fmt::Write;
use std::io::{Cursor, Write as _};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use spillgate_replay::access_log::{LogInput, Ordered, newest_first};

use super::{file, line, read_all, seconds};

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).expect("memory can be written");
    encoder.finish().expect("memory can be written")
}

fn zstd(text: &str) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest)
}

/// Returns one line for each of these seconds. The address of a line is its position in the list.
fn lines(seconds: &[u64]) -> String {
    seconds.iter().enumerate().map(|(at, second)| line(&at.to_string(), *second)).collect()
}

fn times(seconds: &[(String, u64)]) -> Vec<u64> {
    seconds.iter().map(|(_, second)| *second).collect()
}

#[test]
fn lines_are_sorted_within_the_bound() {
    let (requests, counts) = seconds(&[lines(&[100, 160, 130, 100, 161, 161, 220])], 60);
    let addresses: Vec<_> = requests.iter().map(|(address, _)| address.as_str()).collect();
    assert_eq!(times(&requests), [100, 100, 130, 160, 161, 161, 220]);
    assert_eq!(addresses, ["0", "3", "2", "1", "4", "5", "6"]);
    assert_eq!((counts.lines, counts.late.count, counts.unreadable.count), (7, 0, 0));
}

#[test]
fn a_late_line_gets_the_time_of_the_line_before_it() {
    // The bound is 60 s, so no line before second 161 should follow the line at second 221.
    let (requests, counts) = seconds(&[lines(&[100, 160, 161, 221, 90, 221])], 60);
    assert_eq!(times(&requests), [100, 160, 161, 161, 221, 221]);
    assert_eq!(requests[3].0, "4");
    assert_eq!((counts.lines, counts.late.count), (6, 1));
    let late = &counts.late.first[0];
    assert_eq!((late.file, late.line), (0, 5));
    assert_eq!(late.why, "its time is 71 s before the time of a line that was decided before it");
    let text = late.text.as_deref().unwrap_or_default();
    assert!(text.starts_with("4 - - [01/Jan/2020:00:01:30"), "{text}");
}

#[test]
fn without_a_window_each_earlier_line_is_late() {
    let (requests, counts) = seconds(&[lines(&[100, 101, 100, 102])], 0);
    assert_eq!((times(&requests), counts.late.count), (vec![100, 101, 101, 102], 1));
}

#[test]
fn rotated_files_can_be_in_any_order() {
    let parts: Vec<String> = (0..5).map(|part| lines(&[part * 1000, part * 1000 + 1, part * 1000 + 999])).collect();
    let expected: Vec<u64> = (0..5).flat_map(|part| [part * 1000, part * 1000 + 1, part * 1000 + 999]).collect();
    for rotation in 0..5 {
        let mut files = parts.clone();
        files.rotate_left(rotation);
        files.swap(1, 3);
        let (requests, counts) = seconds(&files, 60);
        assert_eq!((times(&requests), counts.late.count), (expected.clone(), 0));
    }
}

#[test]
fn lines_of_several_servers_are_merged() {
    let files = [lines(&[10, 30, 30, 50]), lines(&[20, 30, 25, 60]), String::new(), lines(&[5])];
    let files = files.iter().map(|text| file(text.as_bytes())).collect();
    let (requests, counts) = read_all("common", files, Duration::from_secs(60));
    let places: Vec<_> = requests.iter().map(|request| (request.file, request.line)).collect();
    assert_eq!(places, [(3, 1), (0, 1), (1, 1), (1, 3), (0, 2), (0, 3), (1, 2), (0, 4), (1, 4)]);
    assert_eq!((counts.lines, counts.late.count), (9, 0));
}

#[test]
fn one_line_with_a_wrong_time_makes_no_other_line_late() {
    // The wrong time is more than a day, or 29 days, after all other times.
    for wrong in [86_400, 29 * 86_400] {
        for at in 0..5 {
            let mut all = vec![100, 101, 102, 103];
            all.insert(at, wrong + 7200);
            let (requests, counts) = seconds(&[lines(&all)], 60);
            // No later line can confirm the time of the last line. This time is believed only if it is at most a day
            // after the time of the line before. The wrong times of this test are later than that.
            assert_eq!(times(&requests), [100, 101, 102, 103], "{at}");
            assert_eq!((counts.late.count, counts.unreadable.count), (0, 1), "{at}");
            let unreadable = &counts.unreadable.first[0];
            assert_eq!(unreadable.line, at as u64 + 1);
            assert_eq!(unreadable.why, "its time is far after the times of its neighbours");
        }
    }
}

#[test]
fn a_pause_in_the_log_is_believed() {
    let day = 86_400;
    for times_of_lines in
        [vec![0, day * 3, day * 3 + 1], vec![0, day * 3, day * 6, day * 9, day * 9], vec![0, day], vec![day * 9]]
    {
        let (requests, counts) = seconds(&[lines(&times_of_lines)], 60);
        assert_eq!((times(&requests), counts.unreadable.count), (times_of_lines, 0));
    }
}

#[test]
fn a_full_window_returns_its_earliest_lines() {
    // A window has the lines that wait to be sorted. All lines are within a minute, so only the bound of 64 MiB makes
    // lines leave the window. The last line is late, because lines with a later time have already left the full window.
    let long = line("a", 50).replace("GET /", &format!("GET /{}", "a".repeat(10_000)));
    let mut text = long.repeat(7000);
    text.push_str(&line("b", 40));
    let (requests, counts) = seconds(&[text], 60);
    assert_eq!((requests.len(), counts.late.count), (7001, 1));
    let late = &counts.late.first[0];
    assert_eq!(late.line, 7001);
    assert!(
        late.why.ends_with(", because too many lines were waiting for their order: sort the log first"),
        "{}",
        late.why
    );
}

#[test]
fn compressed_files_have_the_same_lines() {
    let text = lines(&(0..20_000).collect::<Vec<u64>>());
    let (first, second) = text.split_at(text.len() / 3);
    let (expected, expected_counts) = seconds(std::slice::from_ref(&text), 60);
    let empty_zstd_frame = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3].to_vec();
    for (name, bytes) in [
        ("gzip", gzip(&text)),
        ("gzip of several members", [gzip(first), gzip(""), gzip(second)].concat()),
        ("zstd", zstd(&text)),
        ("zstd of several frames", [empty_zstd_frame.clone(), zstd(first), empty_zstd_frame, zstd(second)].concat()),
    ] {
        let stored = bytes.len() as u64;
        let reader = super::reader("common", &["remote_addr"]);
        let mut log = super::Ordered::new(vec![file(bytes)], &reader, Duration::from_secs(60));
        let mut count = 0;
        while let Some(request) = log.next() {
            assert_eq!(request.fields.value(0), Some(expected[count].0.as_str()), "{name}");
            count += 1;
        }
        assert_eq!(count, expected.len(), "{name}");
        assert_eq!(log.counts(), &expected_counts, "{name}");
        assert_eq!(log.bytes_read(), stored, "{name}");
    }
    assert_eq!(expected_counts.bytes, text.len() as u64);
}

#[test]
fn a_broken_file_ends_with_an_error_and_its_lines_before_it_count() {
    let text = lines(&(0..20_000).collect::<Vec<u64>>());
    for (name, whole) in [("gzip", gzip(&text)), ("zstd", zstd(&text))] {
        for (damage, bytes) in [
            ("cut", whole[..whole.len() / 2].to_vec()),
            ("wrong byte", {
                let mut bytes = whole.clone();
                let at = bytes.len() - if name == "gzip" { 8 } else { 3 };
                bytes[at] ^= 0xff;
                bytes
            }),
        ] {
            let (requests, counts) = read_all("common", vec![file(bytes)], Duration::from_secs(60));
            assert!(requests.len() > 5000, "{name}, {damage}: {} requests", requests.len());
            assert!(requests.iter().zip(text.lines()).all(|(request, line)| request.text == line), "{name}, {damage}");
            assert_eq!(counts.unreadable.count, 1, "{name}, {damage}: {:?}", counts.unreadable.first);
            assert_eq!(counts.lines, requests.len() as u64 + 1, "{name}, {damage}");
            let why = &counts.unreadable.first[0].why;
            assert!(why.starts_with("it and all lines after it cannot be read: "), "{why}");
        }
    }
}

#[test]
fn line_ends_of_windows_and_a_missing_last_line_end_are_read() {
    let text = lines(&[1, 2, 3]);
    let (expected, _) = seconds(std::slice::from_ref(&text), 60);
    for text in [text.replace('\n', "\r\n"), text.trim_end().to_owned(), format!("\u{feff}{text}")] {
        let (requests, counts) = seconds(&[text], 60);
        assert_eq!((&requests, counts.unreadable.count), (&expected, 0));
    }
    let (requests, counts) = seconds(&[format!("\n{}\n\r\n", lines(&[1]))], 60);
    assert_eq!((requests.len(), counts.lines, counts.unreadable.count), (1, 4, 3));
}

#[test]
fn each_csv_file_has_its_own_columns() {
    let files = ["ts,remote_addr\n971211336,a\n971211338,c\n", "remote_addr,x,ts\nb,1,971211337\n"].map(file);
    let (requests, counts) = read_all("csv", files.into(), Duration::from_secs(60));
    let addresses: Vec<_> = requests.iter().map(|request| request.values[0].as_deref().unwrap()).collect();
    assert_eq!(addresses, ["a", "b", "c"]);
    assert_eq!((counts.lines, counts.unreadable.count, counts.has_fractions), (3, 0, false));
}

#[test]
fn fractions_are_noticed_if_most_times_have_one() {
    for (times, has_fractions) in [
        (&["971211336.000", "971211337000", "971211338"][..], false),
        (&["971211336.5", "971211337", "971211338"], false),
        (&["971211336.5", "971211337"], false),
        (&["971211336.5", "971211337123", "971211338"], true),
    ] {
        let text: String = times.iter().map(|time| format!("{time} ::1\n")).collect();
        let (requests, counts) = read_all("$msec $remote_addr", vec![file(text)], Duration::from_secs(60));
        assert_eq!((requests.len(), counts.has_fractions), (times.len(), has_fractions), "{times:?}");
    }
}

#[test]
fn a_first_line_years_before_the_log_is_unreadable() {
    let year = 366 * 86_400;
    for (before, is_read) in [(year, true), (year + 1, false), (30 * year, false)] {
        let text = format!("{} a\n2000000000 b\n2000000001 c\n", 2_000_000_000 - before);
        let (requests, counts) = read_all("$msec $remote_addr", vec![file(text)], Duration::from_secs(60));
        assert_eq!((requests.len(), counts.unreadable.count), if is_read { (3, 0) } else { (2, 1) }, "{before}");
        for sample in &counts.unreadable.first {
            let why = "its time is more than a year before the time of the next line";
            assert_eq!((sample.line, sample.why.as_str()), (1, why));
        }
    }
    // Here the second line is wrong: the third line confirms the first.
    let text = format!("2000000000 a\n{} b\n2000000001 c\n2000000002 d\n", 2_000_000_000 + 2 * year);
    let (requests, counts) = read_all("$msec $remote_addr", vec![file(text)], Duration::from_secs(60));
    assert_eq!((requests.len(), counts.unreadable.count, counts.unreadable.first[0].line), (3, 1, 2));
    // Without a third line, the first line is believed.
    let text = format!("2000000000 a\n{} b\n", 2_000_000_000 + 2 * year);
    let (requests, counts) = read_all("$msec $remote_addr", vec![file(text)], Duration::from_secs(60));
    assert_eq!((requests.len(), counts.unreadable.first[0].line), (1, 2));
}

#[test]
fn the_first_five_unreadable_lines_are_kept() {
    let mut text = String::new();
    for at in 0..9 {
        writeln!(text, "line {at} {}", "é".repeat(150)).expect("a string can be written");
    }
    let (requests, counts) = seconds(&[text], 60);
    assert_eq!((requests.len(), counts.lines, counts.unreadable.count), (0, 9, 9));
    let numbers: Vec<_> = counts.unreadable.first.iter().map(|sample| sample.line).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert!(
        counts.unreadable.first.iter().all(|sample| sample.text.as_ref().is_some_and(|text| text.len() <= 200)),
        "{:?}",
        counts.unreadable
    );
}

/// Returns a log with its newest line first. Two lines have the same time.
fn backwards(step: u64) -> String {
    let times: Vec<u64> = (0..40).map(|at| 500_000 - at / 2 * step).collect();
    lines(&times)
}

#[test]
fn a_file_with_its_newest_line_first_is_read_from_its_end() {
    for step in [1, 90, 7_200] {
        let text = backwards(step);
        let reader = super::reader("common", &["remote_addr"]);
        let own = newest_first(text.as_bytes(), &reader).expect("the newest line is the first one");
        let input = LogInput::newest_first(Cursor::new(text), own).expect("memory can be read");
        let mut log = Ordered::new(vec![input], &reader, Duration::from_secs(60));
        let mut found = Vec::new();
        while let Some(request) = log.next() {
            found.push((request.line, request.fields.value(0).map(str::to_owned)));
        }
        // The last line of the file is the first request, also among lines with the same time.
        let expected: Vec<_> = (0..40_u64).rev().map(|at| (at + 1, Some(at.to_string()))).collect();
        assert_eq!(found, expected, "{step}");
        assert_eq!((log.counts().late.count, log.counts().unreadable.count, log.newest_first()), (0, 0, None));
    }
}

#[test]
fn the_first_line_of_a_table_is_known_although_it_is_read_last() {
    let text = "\u{feff}ts,remote_addr\r\n971211338,c\r\n971211337,b\r\n971211336,a";
    let reader = super::reader("csv", &["remote_addr"]);
    let own = newest_first(text.as_bytes(), &reader).expect("the newest line is the first one");
    let input = LogInput::newest_first(Cursor::new(text), own).expect("memory can be read");
    let mut log = Ordered::new(vec![input], &reader, Duration::ZERO);
    for expected in [(4, "a"), (3, "b"), (2, "c")] {
        let request = log.next().expect("there is a request");
        assert_eq!((request.line, request.fields.value(0)), (expected.0, Some(expected.1)));
    }
    assert!(log.next().is_none());
    assert_eq!((log.counts().lines, log.counts().unreadable.count), (3, 0));
}

#[test]
fn a_stream_with_its_newest_line_first_is_not_decided() {
    for (step, out_of_order, is_wrong) in
        [(1, 60, false), (90, 60, true), (7_200, 60, true), (90, 3_600, false), (4, 60, true)]
    {
        let reader = super::reader("common", &["remote_addr"]);
        let mut log = Ordered::new(vec![file(backwards(step))], &reader, Duration::from_secs(out_of_order));
        let mut requests = 0;
        while log.next().is_some() {
            requests += 1;
        }
        assert_eq!(log.newest_first(), is_wrong.then_some(0), "{step} {out_of_order}");
        assert!(is_wrong || requests == 40, "{step} {out_of_order}: {requests}");
    }
}

#[test]
fn one_wrong_time_at_an_end_does_not_hide_that_the_newest_line_is_first() {
    let reader = super::reader("common", &[]);
    let right: Vec<u64> = (0..40).map(|at| 500_000 - 90 * at).collect();
    for (at, wrong) in [(0, 5), (0, 900_000), (39, 900_000), (39, 5)] {
        let mut seconds = right.clone();
        seconds[at] = wrong;
        assert!(newest_first(lines(&seconds).as_bytes(), &reader).is_some(), "line {at} at second {wrong}");
    }
}

#[test]
fn lines_out_of_order_do_not_look_like_a_file_with_its_newest_line_first() {
    let mixed = [100, 90, 80, 200, 190, 300, 290, 280, 400, 90, 500, 490, 600];
    let reader = super::reader("common", &[]);
    assert!(newest_first(lines(&mixed).as_bytes(), &reader).is_none());
    assert!(newest_first(lines(&[100, 100, 90]).as_bytes(), &reader).is_none(), "one step can be a late line");
    // Each block of 30 s has its newest line first, but the next block is later.
    let blocks: Vec<u64> = (0..20).flat_map(|block| (0..30).rev().map(move |at| 1_000 + 30 * block + at)).collect();
    assert!(newest_first(lines(&blocks).as_bytes(), &reader).is_none());
    let (requests, counts) = seconds(&[lines(&blocks)], 60);
    assert_eq!(times(&requests), (1_000..1_600).collect::<Vec<_>>());
    assert_eq!(counts.late.count, 0);
    assert!(newest_first(b"", &reader).is_none());
    assert!(newest_first(&gzip(&backwards(90)), &reader).is_none());
}
