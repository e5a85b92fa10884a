//! Compares what a page shows with what a command printed.
//!
//! A line `...` in the page matches any number of lines, and `...` within a line matches any text. Durations, waits and dates
//! differ from run to run, so all times are treated as equal. The widths of columns are ignored too.

/// Returns `None` if a command printed what the page shows. Otherwise returns a message with both texts.
pub(crate) fn difference(shown: &str, printed: &str) -> Option<String> {
    let shown: Vec<String> = lines(shown);
    let printed: Vec<String> = lines(printed);
    (!match_lines(&shown, &printed))
        .then(|| format!("the page shows:\n{}\n\nthe command printed:\n{}", shown.join("\n"), printed.join("\n")))
}

fn lines(text: &str) -> Vec<String> {
    text.trim_matches('\n').lines().map(|line| without_times(line.trim_end())).collect()
}

fn match_lines(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "..." => {
            (0..=printed.len()).any(|skipped| match_lines(rest, &printed[skipped..]))
        }
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, printed)| match_line(line, first) && match_lines(rest, printed))
        }
    }
}

fn match_line(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(mut rest) = parts.next().and_then(|start| printed.strip_prefix(start)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(end) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(end)
}

/// A number after one of these texts is a time. Process ids also differ from run to run, so they are treated as times.
const BEFORE: [&str; 8] =
    ["retry_after_ms\":", "reset_after_ms\":", "delay_ms\":", "retry-after: ", "-reset: ", ";t=", "_ms=", "\"pid\":"];
/// A number before one of these units is a time.
const UNITS: [&str; 7] = ["ns", "us", "ms", "s", "m", "h", "µs"];

/// Returns the line with `#` instead of each time. The addresses `0.0.0.0` and `localhost` become `127.0.0.1`. The
/// server's clock can be ahead of the clock of Redis in one run and behind in the next, so `ahead of` becomes `behind`.
fn without_times(line: &str) -> String {
    let line = line.replace("0.0.0.0", "127.0.0.1").replace("localhost", "127.0.0.1").replace("ahead of", "behind");
    let (mut text, mut rest) = (String::new(), &*line);
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ':' || c == 'T' || c == '-';
        text.push_str(before);
        // Log lines begin with a date and a time.
        let stamp = &number[..number.find(|c| !is_part(c)).unwrap_or(number.len())];
        if stamp.len() >= 19 && stamp.as_bytes()[10] == b'T' {
            text.push('#');
            rest = number[stamp.len()..].trim_start_matches('Z');
            continue;
        }
        let is_digit = |c: char| c.is_ascii_digit() || c == '.';
        let (digits, after) = number.split_at(number.find(|c| !is_digit(c)).unwrap_or(number.len()));
        let unit = &after[..after.find(|c: char| !c.is_alphanumeric()).unwrap_or(after.len())];
        let is_word = text.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if BEFORE.iter().any(|before| text.ends_with(before)) {
            text.push('#');
        } else if UNITS.contains(&unit) && !is_word {
            text.push('#');
            rest = &after[unit.len()..];
            continue;
        } else {
            text.push_str(digits);
        }
        rest = after;
    }
    text.push_str(rest);
    text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[test]
fn times_differ_and_nothing_else() {
    let same = |a, b| difference(a, b).is_none();
    assert!(same("took 1.5ms, retry-after: 59", "took 12us, retry-after: 7"));
    assert!(same("2026-11-22T10:00:00.5Z INFO ready", "2027-01-02T03:04:05.678901Z INFO ready"));
    assert!(same(r#""remaining":4,"reset_after_ms":58290}"#, r#""remaining":4,"reset_after_ms":1}"#));
    assert!(!same(r#""remaining":4"#, r#""remaining":3"#));
    assert!(!same("3 rules", "4 rules"));
    assert!(!same("per_user;q=5;w=60", "per_user;q=5;w=6"));
    assert!(same("per_user;r=4;t=59", "per_user;r=4;t=1"));
}

#[test]
fn dots_stand_for_any_text_and_any_lines() {
    let same = |a, b| difference(a, b).is_none();
    assert!(same("a\n...\nd", "a\nb\nc\nd") && same("a\n...\nd", "a\nd"));
    assert!(same(r#"{"a":1,...,"z":2}"#, r#"{"a":1,"b":3,"z":2}"#));
    assert!(!same("a\n...\nd", "a\nb\nc") && !same("a ... c", "a b d") && !same("a", "a\nb"));
}
