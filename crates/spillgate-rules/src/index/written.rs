//! Cuts the text of one rule out of the text of its file.
//!
//! An operator who looks at a rule wants to see the author's text, with its comments. The text comes from memory,
//! because the file on the disk can have changed since it was loaded.

/// In YAML, a carriage return alone ends a line too.
const LINE_ENDS: [char; 2] = ['\n', '\r'];

/// Returns the text of the descriptor whose values begin at the byte `start` and end at the byte `end`.
///
/// In a list in brackets, the text is only the descriptor. In a list with dashes, the text is all lines of the
/// descriptor, with two kinds of comments: those right above its dash with the same indentation, and those below it
/// that are indented like its keys or deeper.
///
/// If `start` or `end` is no valid position in the text, returns an empty text.
pub(super) fn written(text: &str, start: usize, end: usize) -> &str {
    let Some(values) = text.get(start..end) else { return "" };
    match dash_before(text, start) {
        Some(dash) => text[with_comments_above(text, dash)..end_of_item(text, start, end)].trim_ascii_end(),
        None => values,
    }
}

/// Returns the position of the dash before the value at `start`. Returns `None` if anything but spaces, comments,
/// anchors and tags is between the dash and the value.
fn dash_before(text: &str, start: usize) -> Option<usize> {
    let mut end = start;
    loop {
        let line = line_start(text, end);
        let before = &text[line..end];
        // If the map around the list has explicit keys (`? key`), the dash can be on the line of the colon.
        let content = before.trim_ascii().trim_start_matches([':', '?']).trim_ascii_start();
        let is_dash = content == "-" || content.starts_with("- ") || content.starts_with("-\t");
        let rest = if is_dash { &content[1..] } else { content };
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        if !rest.split_ascii_whitespace().all(|word| word.starts_with(['&', '!'])) {
            return None;
        }
        if is_dash {
            return before.find('-').map(|dash| line + dash);
        }
        end = line.checked_sub(1)?;
    }
}

/// Returns where the text of the item begins: at the line of the dash, or at the first of the comments right above it.
fn with_comments_above(text: &str, dash: usize) -> usize {
    let mut begin = line_start(text, dash);
    let indentation = &text[begin..dash];
    while begin > 0 {
        let end = begin - usize::from(text[..begin].ends_with("\r\n")) - 1;
        let line = line_start(text, end);
        if !text[line..end].strip_prefix(indentation).is_some_and(|line| line.starts_with('#')) {
            break;
        }
        begin = line;
    }
    begin
}

/// Returns where an item of a list with dashes ends. Its values begin at `start` and end at `end`.
fn end_of_item(text: &str, start: usize, end: usize) -> usize {
    let column = text[line_start(text, start)..start].chars().count();
    let (mut at, mut last) = (end, end);
    for (number, line) in text[end..].split_inclusive(LINE_ENDS).enumerate() {
        at += line.len();
        let content = line.trim_start_matches(' ');
        // The rest of the line after the last value belongs to the item. It can be a comment.
        if number == 0 || content.starts_with('#') && line.len() - content.len() >= column {
            last = at;
        } else if !content.trim_ascii().is_empty() {
            break;
        }
    }
    last
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind(LINE_ENDS).map_or(0, |end| end + 1)
}
