use std::time::Duration;

use proptest::prelude::*;
use spillgate_replay::access_log::{FORMATS, Fields, Reader};

use super::{file, line, read_all, seconds};

/// Generates lines that are almost right.
fn nearly_a_line() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        Just(line("::1", 100)),
        Just(String::from(
            "{\"ts\":971211336.5,\"request\":{\"uri\":\"/a?b\",\"headers\":{\"User-Agent\":[\"x\\u0041\"]}}}\n"
        )),
        Just(String::from("ts,path,\"remote_addr\"\n971211336,/a,\"b\"\"c\"\n")),
        Just(String::from(
            "[2000-10-10T13:55:36.123Z] \"GET /a HTTP/1.1\" 200 - 0 1 2 3 \"1.1.1.1,2.2.2.2\" \"a\" \"b\" \"c\" \"d\"\n"
        )),
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 0..6);
    (text, edits).prop_map(|(text, edits)| {
        let mut bytes = text.into_bytes();
        for (at, byte, edit) in edits {
            let at = at.index(bytes.len().max(1));
            match edit {
                0 if at < bytes.len() => bytes[at] = byte,
                1 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_line_makes_a_reader_panic(lines in prop::collection::vec(nearly_a_line(), 1..20)) {
        let wanted = ["remote_addr", "path", "args", "method", "user_agent", "host"].map(String::from);
        for format in FORMATS.into_iter().chain(["$msec$/$request_uri", "\"$time_local\" ${remote_addr}\\\"$request\"", "$time_local $remote_addr"]) {
            let wanted: Vec<String> =
                wanted.iter().filter(|name| Reader::new(format, &[(*name).clone()], None).is_ok()).cloned().collect();
            let Ok(mut reader) = Reader::new(format, &wanted, None) else { continue };
            let mut fields = Fields::default();
            for line in &lines {
                let _ = reader.read(line, &mut fields);
            }
        }
    }

    #[test]
    fn no_pattern_makes_it_panic(pattern in "[$a-c{} \"é]{0,20}", line in "[a-c{} \"é0-9]{0,40}") {
        if let Ok(mut reader) = Reader::new(&format!("{pattern}|$msec"), &[], None) {
            let _ = reader.read(line.as_bytes(), &mut Fields::default());
            let _ = reader.read(format!("{line}|971211336").as_bytes(), &mut Fields::default());
        }
    }

    #[test]
    fn requests_are_in_order_and_no_line_is_lost(
        files in prop::collection::vec(prop::collection::vec(0u64..200_000, 0..60), 0..6),
        out_of_order in prop_oneof![Just(0u64), 0u64..300, 0u64..200_000],
    ) {
        // A file with its newest line first is not decided.
        let steps = |times: &[u64], is_it: fn(&u64, &u64) -> bool| times.windows(2).filter(|pair| is_it(&pair[0], &pair[1])).count();
        let goes_back = |times: &Vec<u64>| {
            let back = steps(times, |one, next| one > next);
            back >= 2 && back >= 4 * steps(times, |one, next| one < next)
        };
        prop_assume!(!files.iter().any(goes_back));
        let texts: Vec<String> =
            files.iter().map(|times| times.iter().map(|second| line("a", *second)).collect()).collect();
        let (requests, counts) = seconds(&texts, out_of_order);
        prop_assert!(requests.is_sorted_by_key(|(_, second)| *second));
        let lines: usize = files.iter().map(Vec::len).sum();
        prop_assert_eq!(counts.lines, lines as u64);
        prop_assert_eq!(requests.len() as u64 + counts.unreadable.count, counts.lines);
        prop_assert_eq!(counts.bytes, texts.iter().map(|text| text.len() as u64).sum::<u64>());
    }

    #[test]
    fn lines_within_the_bound_are_all_in_order(
        steps in prop::collection::vec((0u64..100, 0u64..60, 0usize..4), 0..200),
    ) {
        // Each line is less than a minute earlier than the newest line of its file.
        let (mut files, mut expected, mut now) = (vec![String::new(); 4], Vec::new(), 1000);
        for (step, earlier, file) in steps {
            now += step;
            let second = now - earlier;
            files[file].push_str(&line("a", second));
            expected.push(second);
        }
        expected.sort_unstable();
        let (requests, counts) = seconds(&files, 60);
        let times: Vec<u64> = requests.into_iter().map(|(_, second)| second).collect();
        prop_assert_eq!((times, counts.late.count), (expected, 0));
    }

    #[test]
    fn no_bytes_make_it_panic(
        files in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..4),
        magic in prop_oneof![Just(&b""[..]), Just(&b"\x1f\x8b\x08\x00"[..]), Just(&b"\x28\xb5\x2f\xfd"[..])],
    ) {
        let files = files.iter().map(|bytes| file([magic, bytes].concat())).collect();
        let _ = read_all("csv", files, Duration::from_secs(60));
    }
}
