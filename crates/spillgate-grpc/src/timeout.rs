//! How long a client waits for its call: the header field `grpc-timeout`.
//!
//! A decision that arrives later is useless to the client. So the store has to answer in the time that is left.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

/// This much of a client's timeout is kept for writing the answer and sending it over the network.
const ANSWER_TIME: Duration = Duration::from_millis(4);

/// The time when the decision of a call must be ready. `None` if the client set no timeout.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallDeadline(Option<Instant>);

impl CallDeadline {
    /// Returns the deadline of a call that arrived at the time `came`. An invalid `grpc-timeout` is ignored.
    pub(super) fn of(headers: &HeaderMap, came: Instant) -> CallDeadline {
        let timeout = headers.get("grpc-timeout").and_then(|field| timeout(field.as_bytes()));
        CallDeadline(timeout.and_then(|timeout| came.checked_add(timeout.saturating_sub(ANSWER_TIME))))
    }

    /// Returns the time that is left, which is 0 after the deadline. Returns `None` if the client set no timeout.
    pub(super) fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// Parses a value of `grpc-timeout`: at most eight digits and a unit, such as `250m` for 250 milliseconds.
fn timeout(field: &[u8]) -> Option<Duration> {
    let (unit, digits) = field.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = digits.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(count * 3600)),
        b'M' => Some(Duration::from_secs(count * 60)),
        b'S' => Some(Duration::from_secs(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_to_send_the_answer_is_left_of_the_timeout_of_a_caller() {
        let came = Instant::now();
        let ends = |text: &str| {
            let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]);
            CallDeadline::of(&headers, came).0
        };
        assert_eq!(ends("50m"), Some(came + Duration::from_millis(46)));
        assert_eq!([ends("4m"), ends("1u")], [Some(came); 2], "nothing is left to wait");
        assert_eq!(ends("soon"), None);
    }

    #[test]
    fn a_field_is_up_to_eight_digits_and_a_unit() {
        let read = |text: &str| timeout(text.as_bytes()).map(|timeout| timeout.as_nanos());
        let units = ["2H", "2M", "2S", "2m", "2u", "2n", "99999999H", "00000001S"].map(read);
        let ns = [7_200_000_000_000, 120_000_000_000, 2_000_000_000, 2_000_000, 2_000, 2, 359_999_996_400_000_000_000];
        assert_eq!(units, [ns[0], ns[1], ns[2], ns[3], ns[4], ns[5], ns[6], 1_000_000_000].map(Some));
        for wrong in ["", "S", "1", "1s", "1x", "-1S", "1.5S", " 1S", "1S ", "123456789S", "１S"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn four_milliseconds_are_kept_for_the_answer() {
        let deadline = |text: &str| {
            let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]);
            CallDeadline::of(&headers, Instant::now())
        };
        assert_eq!(deadline("20m").left(), Some(Duration::from_millis(16)));
        assert_eq!([deadline("2m").left(), deadline("4m").left()], [Some(Duration::ZERO); 2]);
        assert_eq!(deadline("never").left(), None);
        assert_eq!(CallDeadline::of(&HeaderMap::new(), Instant::now()).left(), None);
        let twenty = deadline("20m");
        tokio::time::advance(Duration::from_millis(10)).await;
        assert_eq!(twenty.left(), Some(Duration::from_millis(6)));
    }
}
