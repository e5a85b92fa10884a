//! gRPC connections.

use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::metrics::Closed;
use crate::protocol::grpc::{AnswerBody, Call, Grpc, GrpcConnection};

use super::connection::{Activity, Manners, watch_over};
use super::http2::{Handler, connection};
use super::io::{StreamBody, TimedBody};
use super::worker::Context;

/// Bytes of a client's first words: the preface and an empty SETTINGS frame.
const GREETING_BYTES: u64 = 24 + 9;

const MANNERS: Manners = Manners { greeting_bytes: GREETING_BYTES, farewell: Duration::ZERO };

pub(super) async fn serve<I>(io: I, grpc: &Grpc, activity: &Arc<Activity>, context: &Context) -> Option<Closed>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let calls = Calls { grpc: grpc.connection(), receive: context.limits.receive };
    watch_over(connection(io, calls, activity, &context.limits), activity, &MANNERS, context).await
}

struct Calls {
    grpc: GrpcConnection,
    /// How long a message may take to come.
    receive: Duration,
}

impl Handler for Calls {
    type Call = Call<TimedBody<StreamBody>>;
    type Body = AnswerBody;

    fn call(&self, request: Request<RecvStream>, came: Instant) -> Self::Call {
        Call::of(request.map(|stream| TimedBody::new(StreamBody::new(stream), self.receive)), came)
    }

    fn answer(&self, call: Self::Call) -> impl Future<Output = Response<AnswerBody>> + Send {
        self.grpc.answer(call)
    }

    fn failure() -> Response<AnswerBody> {
        GrpcConnection::failure()
    }

    fn at_one_time(&self, row: &mut dyn FnMut()) {
        self.grpc.at_one_time(row);
    }
}
