//! gRPC connections: the HTTP/2 connections of `http2`, with the calls of the crate spillgate-grpc.
//!
//! Only this file joins the two. So spillgate-grpc has no code about connections, and `http2` has no code about gRPC.

use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use http::{Request, Response};
use spillgate::Time;
use spillgate_grpc::{AnswerBody, Call, Grpc, GrpcConnection};
use spillgate_service::metrics::Closed;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::activity::Activity;
use super::connection::{ProtocolLimits, watch_over};
use super::context::Context;
use super::http2::{Handler, QUEUE_BYTES, connection};
use super::io::{StreamBody, TimedBody};

/// The length of a client's greeting, in bytes: the preface and an empty SETTINGS frame.
const GREETING_BYTES: u64 = 24 + 9;

const LIMITS: ProtocolLimits = ProtocolLimits { greeting_bytes: GREETING_BYTES, drain_grace: Duration::ZERO };

pub(super) async fn serve<I>(io: I, grpc: &Grpc, activity: &Arc<Activity>, context: &Context) -> Option<Closed>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (receive, of_calls) = (context.limits.receive, Arc::clone(activity));
    let calls = Calls { grpc: grpc.connection(), receive, activity: of_calls };
    watch_over(connection(io, calls, activity, &context.limits), activity, &LIMITS, context).await
}

struct Calls {
    grpc: GrpcConnection,
    /// The time in which the message of a call has to arrive.
    receive: Duration,
    activity: Arc<Activity>,
}

impl Handler for Calls {
    type Call = Call<TimedBody<StreamBody>>;
    type Body = AnswerBody;

    fn call(&self, request: Request<RecvStream>, arrived: Instant, now: Option<Time>) -> Self::Call {
        // Only the messages of reflection are read by a task of its own. It stops when the client reads no answers.
        let body =
            |stream| TimedBody::new(StreamBody::new(stream), self.receive, &self.activity).with_queue(QUEUE_BYTES);
        Call::of(request.map(body), arrived, now)
    }

    fn answer(&self, call: Self::Call) -> impl Future<Output = Response<AnswerBody>> + Send {
        self.grpc.answer(call)
    }

    fn failure() -> Response<AnswerBody> {
        GrpcConnection::failure()
    }

    fn now(&self) -> Option<Time> {
        Some(self.grpc.now())
    }
}
