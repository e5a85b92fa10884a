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

/// The maximum number of pages that clients can read at the same time. The bound is needed, because each page that a
/// slow client reads keeps a few pieces in memory.
const PAGES: usize = 16;

/// Bounds the number of open pages to [`PAGES`].
#[derive(Debug, Clone)]
pub(super) struct Pages(Arc<Semaphore>);

impl Pages {
    pub(super) fn new() -> Pages {
        Pages(Arc::new(Semaphore::new(PAGES)))
    }

    /// Makes a response with the content type `kind`. Each call of `next` builds one piece of the body, and `None` ends
    /// the body. If too many pages are open, the response is an error.
    pub(super) fn page<F>(&self, kind: &'static str, next: F) -> Response
    where
        F: FnMut() -> Option<String> + Send + Unpin + 'static,
    {
        let help = "try again soon; a client that reads nothing loses its connection after the time in the setting `limits.idle`";
        let permit = match try_permit(&self.0, PAGES, "pages are open", help) {
            Ok(permit) => permit,
            Err(response) => return *response,
        };
        let body = Body::new(Pieces { next, _permit: permit });
        ([(header::CONTENT_TYPE, kind)], body).into_response()
    }

    /// Makes a response that is a JSON object: the members of `head`, and then a list with the name `name`. Each call
    /// of `more` returns the next items of the list, each as JSON. If it returns no items, the list ends.
    pub(super) fn list<F>(&self, head: &impl Serialize, name: &str, mut more: F) -> Response
    where
        F: FnMut() -> Vec<String> + Send + Unpin + 'static,
    {
        let mut begin = json(head);
        begin.truncate(begin.len() - "}".len());
        let separator = if begin == "{" { "" } else { "," };
        begin.push_str(&format!("{separator}\"{name}\":["));
        let (mut begin, mut is_first, mut has_ended) = (Some(begin), true, false);
        self.page("application/json", move || {
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
    _permit: OwnedSemaphorePermit,
}

impl<F: FnMut() -> Option<String> + Unpin> http_body::Body for Pieces<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready((self.next)().map(|piece| Ok(Frame::data(piece.into()))))
    }
}
