//! The few lines of a file that a report shows.

use std::sync::Arc;

use miette::{MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

use super::report::At;

/// Lines longer than this are cut, in bytes: a rule's value can be megabytes long.
const MAX_LINE_BYTES: usize = 400;

/// What is shown of a cut line before the place that the report is about, in bytes.
const BEFORE_BYTES: usize = 100;

/// A file and one place in it. The line of the place is known, so nothing is counted from the
/// start of the file again.
#[derive(Clone, Debug)]
pub(super) struct Excerpt {
    pub(super) name: Arc<str>,
    pub(super) text: Arc<str>,
    pub(super) at: At,
}

impl SourceCode for Excerpt {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        lines_before: usize,
        lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let (text, place) = (&*self.text, self.at.start);
        if span.offset() + span.len() > text.len() || place > text.len() {
            return Err(MietteError::OutOfBounds);
        }
        let line = self.at.line.saturating_sub(1) as usize;
        let column = self.at.column.saturating_sub(1) as usize;
        let (start, end, line, column) = if lines_before == 0 && lines_after == 0 {
            (place, place + span.len(), line, column)
        } else {
            let line_start = text[..place].rfind('\n').map_or(0, |newline| newline + 1);
            let line_end = text[place..].find('\n').map_or(text.len(), |newline| place + newline);
            if line_end - line_start > MAX_LINE_BYTES {
                let start = boundary(text, place.saturating_sub(BEFORE_BYTES).max(line_start));
                (start, boundary(text, (place + MAX_LINE_BYTES - BEFORE_BYTES).min(line_end)), line, 0)
            } else {
                let (start, above) = lines_above(text, line_start, lines_before);
                (start, lines_below(text, line_end, lines_after), line - above.min(line), 0)
            }
        };
        let data = &text[start..end];
        let span = SourceSpan::new(start.into(), data.len());
        let count = data.matches('\n').count() + 1;
        Ok(Box::new(MietteSpanContents::new_named(self.name.to_string(), data.as_bytes(), span, line, column, count)))
    }
}

/// Where up to `count` short lines above a line start, and how many they are.
fn lines_above(text: &str, line_start: usize, count: usize) -> (usize, usize) {
    let (mut start, mut above) = (line_start, 0);
    while above < count && start > 0 {
        let before = text[..start - 1].rfind('\n').map_or(0, |newline| newline + 1);
        if start - before > MAX_LINE_BYTES {
            break;
        }
        start = before;
        above += 1;
    }
    (start, above)
}

/// Where up to `count` short lines below a line end.
fn lines_below(text: &str, line_end: usize, count: usize) -> usize {
    let mut end = line_end;
    for _ in 0..count {
        let Some(rest) = text.get(end + 1..).filter(|rest| !rest.is_empty()) else { break };
        let length = rest.find('\n').unwrap_or(rest.len());
        if length > MAX_LINE_BYTES {
            break;
        }
        end += 1 + length;
    }
    end
}

/// The nearest character boundary at or before `at`.
pub(super) fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
