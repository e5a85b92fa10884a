//! Answers that are built in pieces, about as fast as the client reads them.
//!
//! An answer with many metrics or rules is large. If it were built at once, it would delay other requests, and it would
//! stay in memory as long as a slow client reads it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use spillgate_http::problem::Problem;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::{Proof, Source};
use super::places::{Full, Place, Places};

/// The maximum number of pages that clients can read at the same time. The bound is needed, because each page that a
/// slow client reads keeps a few pieces in memory.
const PAGES: usize = 64;
/// The maximum number of pages that one caller can read at the same time, so that a client that reads nothing cannot use
/// up [`PAGES`].
const PAGES_OF_CALLER: usize = 8;
/// What a page takes at most: the piece that is being sent, and the next one.
pub(super) const PAGE_BYTES: usize = 128 << 10;

/// The short items of a list are sent together, in pieces of about this many bytes.
const PIECE_BYTES: usize = 32 << 10;

/// The maximum number of pages with the readings of insight that clients can read at the same time.
const READINGS: usize = 3;
/// The maximum number of pages with readings that one caller can read at the same time. `spillgate insight` needs two if
/// it is given two addresses of one server.
const READINGS_OF_CALLER: usize = 2;
/// What a page with readings takes at most. Each limit of it is one piece, with the figures of each caller of a full
/// sample for three spans.
const READING_BYTES: usize = 8 << 20;

/// What all pages that clients read at the same time take at most, in bytes.
pub const PAGES_BYTES: usize = PAGES * PAGE_BYTES + READINGS * READING_BYTES;

/// Who reads a page. Clients without the right token take no place from clients that have it, even from one address.
pub(super) type Caller = (Source, Proof);

/// The places of all pages. A page with readings needs much more memory than others, so it has a place of its own.
#[derive(Debug)]
pub(super) struct PagePlaces {
    pages: Places<Caller>,
    readings: Places<Caller>,
}

impl PagePlaces {
    pub(super) fn new() -> PagePlaces {
        PagePlaces { pages: Places::new(PAGES, PAGES_OF_CALLER), readings: Places::new(READINGS, READINGS_OF_CALLER) }
    }

    /// Returns the places of a listener without pages with readings. `most` is the number of its places, and `of_caller`
    /// the number of those that one caller can take.
    pub(super) fn without_readings(most: usize, of_caller: usize) -> PagePlaces {
        PagePlaces { pages: Places::new(most, of_caller), readings: Places::new(0, 0) }
    }
}

/// Marks a response as a page, which takes a place: see [`placed`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Usual,
    Readings,
}

/// Marks a page as one with the readings of insight.
pub(super) fn with_readings(mut page: Response) -> Response {
    page.extensions_mut().insert(Kind::Readings);
    page
}

/// Takes a place for `response` if it is a page. The body of the page owns the place. If there is none, the response is
/// an error.
pub(super) fn placed(places: &PagePlaces, caller: Caller, response: Response) -> Response {
    let Some(kind) = response.extensions().get::<Kind>().copied() else { return response };
    let (places, what) = match kind {
        Kind::Usual => (&places.pages, "page"),
        Kind::Readings => (&places.readings, "page with the readings of insight"),
    };
    let help = "try again soon; a client that reads nothing loses its connection after about the time in the setting `limits.receive`";
    match places.take(caller) {
        Ok(place) => response.map(|body| Body::new(Placed { body, _place: place })),
        Err(Full::OfCaller(most)) => {
            busy(format!("your address reads a {what} already, and {most} is the maximum"), help)
        }
        Err(Full::All(most)) => busy(format!("each place for a {what} is taken, and {most} is the maximum"), help),
    }
}

/// Makes a response with the content type `kind`. Each call of `next` builds one piece of the body, and `None` ends the
/// body.
pub(super) fn page<F>(kind: &'static str, next: F) -> Response
where
    F: FnMut() -> Option<String> + Send + Unpin + 'static,
{
    let mut response = ([(header::CONTENT_TYPE, kind)], Body::new(Pieces { next })).into_response();
    response.extensions_mut().insert(Kind::Usual);
    response
}

/// Makes a response that is a JSON object: the members of `head`, and then a list with the name `name`. Each call of
/// `more` returns the next items of the list, each as JSON. If it returns no items, the list ends.
pub(super) fn list<F>(head: &impl Serialize, name: &str, mut more: F) -> Response
where
    F: FnMut() -> Vec<String> + Send + Unpin + 'static,
{
    let mut begin = json(head);
    begin.truncate(begin.len() - "}".len());
    let separator = if begin == "{" { "" } else { "," };
    begin.push_str(&format!("{separator}\"{name}\":["));
    let (mut begin, mut is_first, mut has_ended) = (Some(begin), true, false);
    page("application/json", move || {
        if begin.is_some() || has_ended {
            return begin.take();
        }
        let items = more();
        has_ended = items.is_empty();
        let mut piece = if has_ended { "]}".to_owned() } else { String::new() };
        for item in items {
            piece.push_str(if is_first { "" } else { "," });
            piece.push_str(&item);
            is_first = false;
        }
        Some(piece)
    })
}

/// Takes the items of the next piece of a list: at least one, and none after the first [`PIECE_BYTES`].
pub(super) fn piece(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut bytes = 0;
    let fits = |item: &String| {
        let before = bytes;
        bytes += item.len();
        before < PIECE_BYTES
    };
    items.take_while(fits).collect()
}

/// Returns the JSON text of a value that has only strings, numbers, lists and objects, so that this cannot fail.
pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("invariant: strings and numbers become JSON in memory")
}

/// Takes one of `max` permits. If all are taken, the error is an answer with the status 503. `what` is a part of its
/// text, for example `pages are open`.
pub(super) fn try_permit(
    permits: &Arc<Semaphore>,
    max: usize,
    what: &str,
    help: &'static str,
) -> Result<OwnedSemaphorePermit, Box<Response>> {
    Arc::clone(permits).try_acquire_owned().map_err(|_| {
        let detail = format!("{max} {what} already, and this is the maximum");
        Box::new(busy(detail, help))
    })
}

/// Returns the answer to a request that exceeds a bound now, but can be sent again after a second.
pub(super) fn busy(detail: String, help: &'static str) -> Response {
    let mut response = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, help).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

struct Pieces<F> {
    next: F,
}

impl<F: FnMut() -> Option<String> + Unpin> http_body::Body for Pieces<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready((self.next)().map(|piece| Ok(Frame::data(piece.into()))))
    }
}

/// A body that owns the place of its page.
struct Placed {
    body: Body,
    _place: Place<Caller>,
}

impl http_body::Body for Placed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_many_short_items_or_one_long_one() {
        let taken = |bytes: usize| piece(std::iter::repeat_n("x".repeat(bytes), 1_000)).len();
        assert_eq!([1, 1_024, 20_000, 100_000].map(taken), [1_000, 32, 2, 1]);
        assert!(piece(std::iter::empty()).is_empty());
    }
}
