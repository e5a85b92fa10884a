//! Reads the whole body of a request, up to a bound.
//!
//! The content type is ignored, because the routes read every body as JSON.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::iter::successors;
use std::mem;
use std::pin::pin;

use bytes::Bytes;
use http::StatusCode;
use http_body::Body;
use tower::BoxError;

use super::problem::Problem;

/// Reads the whole `body`, which can have at most `max_bytes` bytes. Most bodies arrive in one piece, which is not
/// copied.
pub async fn read_body<B>(body: B, max_bytes: usize) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body = pin!(body);
    let (mut first, mut joined) = (Bytes::new(), Vec::new());
    loop {
        let frame = poll_fn(|cx| {
            let polled = body.as_mut().poll_frame(cx);
            if polled.is_pending() && joined.is_empty() {
                // A piece is a part of a larger buffer, which must not stay in memory while the rest does not come.
                joined.extend_from_slice(&mem::take(&mut first));
            }
            polled
        });
        let Some(frame) = frame.await else { break };
        let Ok(piece) = frame.map_err(|error| read_error(error.into()))?.into_data() else { continue };
        if first.len().max(joined.len()) + piece.len() > max_bytes {
            return Err(too_large());
        }
        if first.is_empty() && joined.is_empty() {
            first = piece;
        } else {
            if joined.is_empty() {
                joined.extend_from_slice(&first);
            }
            joined.extend_from_slice(&piece);
        }
        if body.is_end_stream() {
            break;
        }
    }
    Ok(if joined.is_empty() { first } else { joined.into() })
}

fn too_large() -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "the body is too large",
        "send fewer checks at once; the bound is `limits.body` in the settings",
    )
}

fn read_error(error: BoxError) -> Problem {
    if is_of_listener(&*error, io::ErrorKind::TimedOut) {
        return Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive in time",
            "send the body at once; the bound is `limits.receive` in the settings",
        );
    }
    if is_of_listener(&*error, io::ErrorKind::OutOfMemory) {
        return Problem::lacks_memory();
    }
    Problem::bad_request(format!("the body could not be read: {error}"), "")
}

/// Returns whether the listener ended the body with an error of this kind: `TimedOut` if it stopped waiting, and
/// `OutOfMemory` if the memory for requests in flight is used up.
fn is_of_listener(error: &(dyn Error + 'static), kind: io::ErrorKind) -> bool {
    let is_of_kind = |error: &io::Error| error.kind() == kind;
    successors(Some(error), |error| (*error).source()).any(|error| error.downcast_ref().is_some_and(is_of_kind))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http::HeaderMap;
    use http_body::Frame;

    use super::*;

    /// A body with these pieces. A piece with the text `trailers` stands for trailers. The method `is_end_stream` of
    /// this body always returns false, so a reader has to poll once more after the last piece.
    struct Pieces<'t>(&'t [&'static str]);

    impl Body for Pieces<'_> {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let next = self.0.split_off_first().map(|piece| match *piece {
                "trailers" => Ok(Frame::trailers(HeaderMap::new())),
                piece => Ok(Frame::data(Bytes::from_static(piece.as_bytes()))),
            });
            Poll::Ready(next)
        }
    }

    async fn read(pieces: &[&'static str], max_bytes: usize) -> Result<Bytes, u16> {
        read_body(Pieces(pieces), max_bytes).await.map_err(|problem| problem.status.as_u16())
    }

    #[tokio::test]
    async fn a_body_is_its_pieces_in_order() {
        for pieces in [&["abcdef"][..], &["abc", "def"], &["", "a", "", "bcde", "f", ""], &["abcdef", "trailers"]] {
            assert_eq!(read(pieces, 6).await, Ok(Bytes::from_static(b"abcdef")), "{pieces:?}");
        }
        assert_eq!(read(&[], 6).await, Ok(Bytes::new()));
    }

    #[tokio::test]
    async fn the_bound_holds_for_the_whole_body() {
        for pieces in [&["abcdef"][..], &["abc", "def"], &["a", "b", "c", "d", "e", "f"]] {
            assert_eq!(read(pieces, 5).await, Err(413), "{pieces:?}");
        }
    }
}
