//! The head and the body of a gRPC answer.
//!
//! A successful answer is one message, and then the status OK in the trailers. Such answers are built here and not by
//! tonic, because tonic takes more CPU time.

use std::mem;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame};
use tonic::Status;

const CONTENT: HeaderValue = HeaderValue::from_static("application/grpc");

/// The header fields of an answer with a message. Each answer gets a clone, because that costs less than filling a new
/// map.
static HEAD: LazyLock<HeaderMap> = LazyLock::new(|| HeaderMap::from_iter([(CONTENT_TYPE, CONTENT)]));
static TRAILERS_OF_OK: LazyLock<HeaderMap> =
    LazyLock::new(|| HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]));

/// The part of an answer that comes after its head.
#[derive(Debug, Default)]
pub enum AnswerBody {
    /// One framed message, and then the status OK.
    Message(Bytes),
    /// The state of `Message` after the message was sent: only the status OK is left.
    Ok,
    /// Nothing is left to send. If the head has the status, the body begins in this state.
    #[default]
    End,
    /// The body of an answer that tonic built.
    Other(tonic::body::Body),
}

pub(super) fn of_message(message: Bytes) -> Response<AnswerBody> {
    let mut answer = Response::new(AnswerBody::Message(message));
    *answer.headers_mut() = HEAD.clone();
    answer
}

/// Returns the answer to a request whose content type is not that of gRPC.
pub(super) fn unsupported() -> Response<AnswerBody> {
    let mut answer = Response::new(AnswerBody::End);
    *answer.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    answer
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    #[inline]
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let AnswerBody::Other(other) = &mut *self {
            return Pin::new(other).poll_frame(cx);
        }
        Poll::Ready(match mem::take(&mut *self) {
            AnswerBody::Message(message) => {
                *self = AnswerBody::Ok;
                Some(Ok(Frame::data(message)))
            }
            AnswerBody::Ok => Some(Ok(Frame::trailers(TRAILERS_OF_OK.clone()))),
            AnswerBody::End | AnswerBody::Other(_) => None,
        })
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Message(_) | AnswerBody::Ok => false,
            AnswerBody::End => true,
            AnswerBody::Other(other) => other.is_end_stream(),
        }
    }
}
