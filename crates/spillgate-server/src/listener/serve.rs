//! Serves an accepted socket with the protocol of its listener. In this folder, only this file chooses by protocol.

use std::sync::Arc;

use ::http::Request;
use axum::extract::ConnectInfo;
use spillgate_grpc::Grpc;
use spillgate_http::HttpState;
use spillgate_service::metrics::Closed;
use spillgate_service::{ClientName, Peer};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt;

use super::activity::Activity;
use super::context::Context;
use super::io::{Transport, WaitingBody};
use super::socket::Socket;
use super::{Accepted, grpc, http, tls};

/// The protocol of a listener.
#[derive(Clone, Debug)]
pub enum App {
    /// gRPC over HTTP/2.
    Grpc(Grpc),
    /// Requests of programs and of proxies, over HTTP/1.1 or HTTP/2.
    Http(HttpState),
    /// Requests of operators, over HTTP/1.1 or HTTP/2. Each request has the extension
    /// `axum::extract::ConnectInfo<Peer>`.
    Admin(axum::Router),
    /// Requests of probes and of Prometheus, over HTTP/1.1 or HTTP/2 without TLS, with the same extension.
    Health(axum::Router),
}

impl App {
    /// Returns whether operators and their programs use the listener. Its requests must not delay those of clients.
    pub(super) const fn is_for_operators(&self) -> bool {
        matches!(self, App::Admin(_) | App::Health(_))
    }

    /// Returns the name of the listener's setting.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            App::Grpc(_) => "grpc",
            App::Http(_) => "http",
            App::Admin(_) => "admin",
            App::Health(_) => "health",
        }
    }
}

/// Serves one connection until it ends.
pub(super) async fn serve(accepted: Accepted, context: Context) {
    let Accepted { socket, peer, app, tls, permit } = accepted;
    let closed = match socket {
        Socket::Tcp(stream) => {
            // Answers are small and should be sent at once (TCP_NODELAY). If the system refuses this option, answers
            // are only slower.
            let _ = stream.set_nodelay(true);
            match tokio::net::TcpStream::from_std(stream) {
                Ok(stream) => match tls {
                    None => serve_stream(stream, peer, None, &app, &context).await,
                    // In a box, so that a connection without TLS does not have the memory of one with TLS.
                    Some(secured) => Box::pin(tls::serve(stream, peer, secured, &app, &context)).await,
                },
                Err(_) => Some(Closed::Broken),
            }
        }
        Socket::Unix(stream) => match tokio::net::UnixStream::from_std(stream) {
            Ok(stream) => serve_stream(stream, peer, None, &app, &context).await,
            Err(_) => Some(Closed::Broken),
        },
    };
    if let Some(reason) = closed {
        context.metrics.closed(reason).inc();
    }
    drop(permit);
}

/// Serves one connection, after its handshake if the listener has TLS. `client` is the name in the certificate of the
/// client.
pub(super) async fn serve_stream<T>(
    stream: T,
    peer: Peer,
    client: Option<ClientName>,
    app: &App,
    context: &Context,
) -> Option<Closed>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Arc::new(Activity::new(&context.metrics, &context.pools, context.limits.receive));
    let io = Transport::new(stream, Arc::clone(&activity.turn));
    match app {
        App::Grpc(grpc) => grpc::serve(io, grpc, &activity, context).await,
        App::Http(state) => {
            let state = state.clone();
            let answer = move |request| {
                let state = state.clone();
                async move { state.answer(peer, request).await }
            };
            http::serve(io, answer, &activity, context).await
        }
        App::Admin(router) | App::Health(router) => {
            let (router, of_bodies) = (router.clone(), Arc::clone(&activity));
            let answer = move |mut request: Request<_>| {
                request.extensions_mut().insert(ConnectInfo(peer));
                if let Some(client) = &client {
                    request.extensions_mut().insert(client.clone());
                }
                let (answered, of_body) = (router.clone().oneshot(request), Arc::clone(&of_bodies));
                async move {
                    let answer = answered.await.unwrap_or_else(|never| match never {});
                    answer.map(|body| WaitingBody::new(body, &of_body))
                }
            };
            http::serve(io, answer, &activity, context).await
        }
    }
}
