//! A server on hyper that answers each HTTP/1.1 request without a decision.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let text: &[u8] = if body.is_empty() { b"none" } else { b"{\"allowed\":true}" };
    Ok(Response::new(Full::new(Bytes::from_static(text))))
}

pub(crate) async fn serve(stream: TcpStream) {
    let mut server = hyper::server::conn::http1::Builder::new();
    let service = hyper::service::service_fn(answer);
    // The result is ignored. Each run ends when the client closes the connection, and this may be reported as an error.
    let _ = server.pipeline_flush(true).serve_connection(TokioIo::new(stream), service).await;
}
