//! What an excerpt looks like: where the label is, and which text is cut or replaced.
//!
//! The texts come from users. A text with long lines or control characters must not fill a terminal, or change what is
//! already on the screen.

use super::*;

fn drawn(text: &str, start: usize, len: usize) -> String {
    let at = At::of(text, start..start + len);
    let mut out = String::new();
    Excerpt::around(text, at).write(&mut out, "f:1", str::to_owned, "here").expect("writing to a string cannot fail");
    out
}

#[test]
fn the_label_is_below_the_middle_of_what_is_underlined() {
    let expected = ",-[f:1]\n  9 |\n 10 | ab: cde\n    :     ^|^\n    :      `-- here\n 11 | f\n    `----\n";
    let text = format!("{}\nab: cde\nf", "\n".repeat(8));
    assert_eq!(drawn(&text, 13, 3).trim_start(), expected);
}

#[test]
fn a_tab_is_four_columns_and_a_control_character_is_not_printed() {
    let shown = drawn("\tä\u{1b}[2J: b", 9, 1);
    assert!(!shown.contains(['\u{1b}', '\t']), "{shown:?}");
    assert_eq!(shown.lines().nth(2).map(|line| line.find('|')), Some(Some(16)), "{shown}");
}

#[test]
fn a_long_line_is_cut_around_its_position() {
    let text = format!("above\n{}x{}\nbelow", "ü".repeat(500), "y".repeat(1_000));
    let shown = drawn(&text, 6 + 1_000, 1);
    assert!(shown.len() < 1_200 && !shown.contains("above") && !shown.contains("below"), "{shown}");
    assert_eq!(shown.lines().nth(1).and_then(|line| line.chars().position(|c| c == 'x')), Some(55), "{shown}");
}
