//! Breaks lines that are wider than the terminal.
//!
//! A terminal breaks a line in the middle of a word, and the rest of the line loses its indent.

/// Lines are not broken to fewer columns than this. A narrower terminal breaks them again.
const NARROWEST: usize = 20;

/// Stands for the space between a number and its `%`, where no line is broken. Cleaned text does not contain it.
const NO_BREAK: &str = "\u{a0}%";

/// Returns the line with a line break before each word that would be beyond `width`. Further lines are indented by two
/// more spaces than the line. Codes of colours take no width.
pub(crate) fn wrapped(line: &str, width: usize) -> String {
    let line = line.replace(" %", NO_BREAK);
    let indent = line.len() - line.trim_start_matches(' ').len();
    let mut text = line[..indent].to_owned();
    let mut column = indent;
    for (index, word) in line[indent..].split(' ').enumerate() {
        let word_width = visible_width(word);
        if index > 0 && column + 1 + word_width > width.max(NARROWEST) {
            text.push('\n');
            text.push_str(&" ".repeat(indent + 2));
            column = indent + 2;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word_width;
    }
    text.replace(NO_BREAK, " %")
}

/// Returns the number of characters without the codes of colours (`ESC [ ... m`).
fn visible_width(word: &str) -> usize {
    let mut in_code = false;
    let mut shown = |c: &char| {
        let was_in_code = in_code;
        in_code = if in_code { *c != 'm' } else { *c == '\u{1b}' };
        !was_in_code && !in_code
    };
    word.chars().filter(|c| shown(c)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let text = "  too strict: the callers ask for more than the rate";
        assert_eq!(wrapped(text, 80), text);
        assert_eq!(wrapped(text, 30), "  too strict: the callers ask\n    for more than the rate");
        assert_eq!(wrapped(text, 0), wrapped(text, NARROWEST));
        assert_eq!(wrapped("", 80), "");
    }

    #[test]
    fn a_word_is_never_broken() {
        assert_eq!(wrapped("a 0123456789012345678901234567890 b", 20), "a\n  0123456789012345678901234567890\n  b");
        assert_eq!(wrapped("0123456789 0123 33.3 %", 20), "0123456789 0123\n  33.3 %");
    }

    #[test]
    fn colours_take_no_width() {
        assert_eq!(wrapped("\u{1b}[1;31maaaa bbbb\u{1b}[0m cccc dddd", 20), "\u{1b}[1;31maaaa bbbb\u{1b}[0m cccc dddd");
    }
}
