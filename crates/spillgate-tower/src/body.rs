//! The body of an answer. Either the service behind the layer has made it, or the layer itself.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of the service's answer, or the body of a refusal.
    ///
    /// A refusal needs a type of its own, because the layer cannot make a body of the service's type.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        body: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Service { #[pin] body: B },
        Refusal { bytes: Option<Bytes> },
    }
}

impl<B> LimitedBody<B> {
    pub(super) const fn service(body: B) -> LimitedBody<B> {
        LimitedBody { body: Kind::Service { body } }
    }

    pub(super) fn refusal(bytes: Bytes) -> LimitedBody<B> {
        LimitedBody { body: Kind::Refusal { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }
}

impl<B: Default> Default for LimitedBody<B> {
    fn default() -> Self {
        LimitedBody::service(B::default())
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().body.project() {
            KindProjection::Service { body } => body.poll_frame(cx),
            KindProjection::Refusal { bytes } => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Kind::Service { body } => body.is_end_stream(),
            Kind::Refusal { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Kind::Service { body } => body.size_hint(),
            Kind::Refusal { bytes } => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}
