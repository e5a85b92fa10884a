//! When the server looks at its files.
//!
//! Looks have a pause between them, so that ten thousand changes a second cost no more than one look a second. A look at
//! many files, or at a slow disk, is followed by a longer pause.

use std::time::Duration;

use tokio::time::Instant;

use crate::settings::Watch;

/// The shortest pause between two looks, and so the time for which a file has to stay as it is before it is taken.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The time between two looks if no folder reports a change. It bounds how long a change is missed that a disk does not
/// report.
const CALM: Duration = Duration::from_secs(30);
/// A pause is at least this many times as long as the look before it, so that looks at many files or at a slow disk do not
/// follow one another. The time of a look is not only its own: on a busy machine it waits too.
const PAUSE_TO_LOOK: u32 = 10;
/// The longest pause that a slow look causes.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// When the next look is due.
#[derive(Debug)]
pub(super) struct Looks {
    /// `None` if the server never looks.
    next: Option<Instant>,
    /// The earliest time of the next look.
    earliest: Instant,
}

impl Looks {
    /// Returns the times of a server that looks at once, or never if `watch` is off.
    pub(super) fn new(watch: Watch) -> Looks {
        let now = Instant::now();
        Looks { next: (watch != Watch::Off).then_some(now), earliest: now }
    }

    /// Returns how long to wait for the next look. `None` means that there is none.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(now))
    }

    pub(super) fn are_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// A folder has changed, so the next look is as early as it may be.
    pub(super) fn hurry(&mut self) {
        self.next = self.next.map(|next| next.min(self.earliest));
    }

    /// A look has ended. `is_soon` says whether the next one must not wait for a change.
    pub(super) fn ended(&mut self, begun: Instant, now: Instant, is_soon: bool) {
        let took = now.saturating_duration_since(begun);
        self.earliest = now + (took * PAUSE_TO_LOOK).clamp(PAUSE_MIN, PAUSE_MAX);
        self.next = self.next.map(|_| if is_soon { self.earliest } else { (now + CALM).max(self.earliest) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_have_pauses_however_many_changes_there_are() {
        let mut looks = Looks::new(Watch::On);
        let start = looks.earliest;
        let after = |ms| start + Duration::from_millis(ms);
        assert!(looks.are_due(start), "the first look is at once");
        looks.ended(start, after(2), false);
        assert_eq!(looks.wait(after(2)), Some(CALM));
        looks.hurry();
        looks.hurry();
        assert_eq!(looks.wait(after(2)), Some(PAUSE_MIN));
        assert!(!looks.are_due(after(1_001)) && looks.are_due(after(1_002)));
        looks.ended(after(1_002), after(1_502), true);
        assert_eq!(looks.wait(after(1_502)), Some(Duration::from_secs(5)), "a look of half a second");
        looks.ended(after(7_000), after(17_000), true);
        assert_eq!(looks.wait(after(17_000)), Some(PAUSE_MAX), "a disk that does not answer");
    }

    #[test]
    fn a_server_that_does_not_watch_never_looks() {
        let mut looks = Looks::new(Watch::Off);
        looks.hurry();
        assert_eq!(looks.wait(Instant::now()), None);
        assert!(!looks.are_due(Instant::now()));
    }
}
