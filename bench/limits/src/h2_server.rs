//! A gRPC server on the h2 crate alone. The server `tonic` also uses h2. So the additional time of `tonic` is the cost
//! of tonic and hyper.

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use http::{HeaderMap, HeaderValue, Response};
use tokio::net::TcpStream;

use crate::answer;

/// Serves each request in a task of its own, after the whole body was read. tonic does the same.
pub(crate) async fn serve_spawning(stream: TcpStream) {
    let Some(mut connection) = handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(async move {
            let mut body = request.into_body();
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
            }
            let _ = respond_with_answer(respond);
        });
    }
}

/// Answers each request without reading its body. The body has usually arrived together with the request's head.
pub(crate) async fn serve_inline(stream: TcpStream) {
    let Some(mut connection) = handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        drop(request);
        if respond_with_answer(respond).is_err() {
            return;
        }
    }
}

async fn handshake(stream: TcpStream) -> Option<Connection<TcpStream, Bytes>> {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 24);
    builder.handshake(stream).await.ok()
}

fn respond_with_answer(mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let mut head = Response::new(());
    head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    let mut stream = respond.send_response(head, false)?;
    stream.send_data(answer::framed(), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}
