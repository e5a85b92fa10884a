//! The first refusals of a limit, and those with the longest waits.

use spillgate::Decision;

use super::LoggedRequest;
use super::callers::Names;
use super::report::Refusal;

/// The length of each list. Nobody would read a longer one.
const KEPT: usize = 5;
/// A longer line is cut to this many bytes.
const LINE_BYTES: usize = 500;

/// The refusals that a report shows.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    first: Vec<Refusal>,
    /// Sorted by wait, the longest first. Each caller is in this list only once, so that one caller cannot fill it.
    longest: Vec<(u128, Refusal)>,
}

impl Refusals {
    /// Adds a refusal of the caller with the hash `key`. `name` returns the name of the caller, and is called only if
    /// the refusal is kept.
    #[inline]
    pub(super) fn add(
        &mut self,
        logged: &LoggedRequest<'_>,
        decision: &Decision,
        key: u128,
        name: impl FnOnce() -> String,
    ) {
        let wait_ns = decision.retry_after.nanos();
        let is_first = self.first.len() < KEPT;
        // If the caller is in the list already, its new wait has to be longer than the one in the list.
        let same = self.longest.iter().find(|(other, _)| *other == key);
        let shortest =
            same.or_else(|| self.longest.get(KEPT - 1)).and_then(|(_, refusal)| refusal.wait_ns).unwrap_or(0);
        let is_long = wait_ns.is_some_and(|wait_ns| wait_ns > shortest);
        if is_first || is_long {
            self.keep(logged, (key, name()), wait_ns, (is_first, is_long));
        }
    }

    #[cold]
    fn keep(
        &mut self,
        logged: &LoggedRequest<'_>,
        (key, caller): (u128, String),
        wait_ns: Option<u64>,
        (is_first, is_long): (bool, bool),
    ) {
        let refusal = Refusal {
            file: logged.file.to_owned(),
            line: logged.line,
            time_ns: logged.time.as_nanos(),
            text: Some(beginning(logged.text, LINE_BYTES)),
            caller,
            wait_ns,
        };
        if is_long {
            self.longest.retain(|(other, _)| *other != key);
            let index = self.longest.partition_point(|(_, other)| other.wait_ns >= wait_ns);
            self.longest.insert(index, (key, refusal.clone()));
            self.longest.truncate(KEPT);
        }
        if is_first {
            self.first.push(refusal);
        }
    }

    pub(super) fn finish(self, names: &Names) -> [Vec<Refusal>; 2] {
        let shown = |mut refusal: Refusal| {
            refusal.caller = names.shown(&refusal.caller);
            refusal.text = refusal.text.filter(|_| !names.are_hidden());
            refusal
        };
        let longest = self.longest.into_iter().map(|(_, refusal)| refusal).collect();
        [self.first, longest].map(|refusals: Vec<_>| refusals.into_iter().map(shown).collect())
    }
}

/// Returns the first `max_bytes` bytes of a line as text.
pub(super) fn beginning(line: &[u8], max_bytes: usize) -> String {
    // A character that the end cuts in two is left out. Lossy decoding can make three bytes of one byte, so the text is
    // cut once more.
    let text = String::from_utf8_lossy(&line[..line.len().min(max_bytes)]);
    let whole = if line.len() > max_bytes { text.trim_end_matches('\u{fffd}') } else { &text };
    whole[..whole.floor_char_boundary(max_bytes)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillgate::{Time, Wait};

    #[test]
    fn the_longest_waits_are_of_different_callers() {
        let mut refusals = Refusals::default();
        for (line, (caller, wait_ns)) in (1..).zip([(1, 5), (1, 9), (2, 3), (1, 7), (3, 4), (4, 1), (5, 6), (6, 8)]) {
            let logged = LoggedRequest { time: Time::from_nanos(line), file: "a", line, text: b"text" };
            let mut decision = Decision::default();
            decision.retry_after = Wait::After(wait_ns);
            refusals.add(&logged, &decision, caller, || caller.to_string());
        }
        let [first, longest] = refusals.finish(&Names::plain());
        let of = |list: &[Refusal]| list.iter().map(|it| (it.caller.clone(), it.wait_ns)).collect::<Vec<_>>();
        let expected = [("1", 9), ("6", 8), ("5", 6), ("3", 4), ("2", 3)];
        assert_eq!(of(&longest), expected.map(|(caller, wait)| (caller.to_owned(), Some(wait))));
        assert_eq!(first.iter().map(|it| it.line).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_refusal_that_is_not_kept_costs_no_name() {
        let mut refusals = Refusals::default();
        let mut named = 0;
        for line in 1..=1_000 {
            let logged = LoggedRequest { time: Time::from_nanos(line), file: "a", line, text: b"text" };
            let mut decision = Decision::default();
            decision.retry_after = Wait::After(1_000 - line / 2);
            refusals.add(&logged, &decision, 1, || {
                named += 1;
                "one".to_owned()
            });
        }
        assert_eq!((named, refusals.longest.len()), (KEPT, 1));
    }

    #[test]
    fn a_line_is_cut_between_characters() {
        assert_eq!(beginning("aé".as_bytes(), 2), "a");
        assert_eq!(beginning("aé".as_bytes(), 3), "aé");
        assert_eq!(beginning(b"a\xff", 5), "a\u{fffd}");
        assert!(beginning(&[0xff; 1000], 500).len() <= 500);
    }
}
