//! The layer of tower: each request waits for its turn, and each answer changes the pace.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::uri::Authority;
use http::{Request, Response};
use http_body::Body;
use spillgate_core::Store;
use tower_layer::Layer;
use tower_service::Service;

use super::{FarSide, Turn, is_refusal};
use crate::pace::PaceError;
use spillgate_limiter::{Clock, KeyBuilder, MemoryStore, SystemClock};

/// The default of [`ClientLayer::jitter`].
const JITTER: Duration = Duration::from_millis(100);

type KeyOf = dyn Fn(&Parts, &mut KeyBuilder) + Send + Sync;

/// Paces the requests of an HTTP client.
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use http_body_util::Empty;
/// use spillgate::client::{ClientLayer, FarSide};
/// use spillgate::{Limiter, Quota};
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
///
/// let api = FarSide::new(Limiter::in_memory(), &Quota::per_second(10).constant());
/// let mut client = ServiceBuilder::new()
///     .layer(ClientLayer::new(api).retries(2))
///     // Your client comes here, for example that of hyper-util.
///     .service(service_fn(async |_: Request<Empty<&[u8]>>| Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))));
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let request = Request::get("https://api.example.com/items").body(Empty::new())?;
/// let answer = client.ready().await?.call(request).await?;
/// assert_eq!(answer.status(), 200);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A request is paced by its host, or by the [key](ClientLayer::key) that you choose. If a request must not wait for
/// long, set a [longest wait](ClientLayer::longest_wait).
///
/// The layer does not bound how many calls are open at the same time. If the far side answers slowly, many can be open.
/// `tower::limit::ConcurrencyLimitLayer` bounds them, above this layer or below it. A request first waits until the
/// client is ready, then takes its turn, and is sent at once. A retry takes its turn first, and takes another one if it
/// then has to wait for the client.
pub struct ClientLayer<S = MemoryStore, C = SystemClock> {
    far_side: FarSide<S, C>,
    options: Options,
}

#[derive(Clone)]
struct Options {
    key: Arc<KeyOf>,
    longest_wait: Option<Duration>,
    retries: u32,
    jitter: Duration,
}

impl<S, C> ClientLayer<S, C> {
    /// Makes a layer that paces requests by their host, in upper or lower case. A port counts too, unless it is 80 or
    /// 443.
    #[must_use]
    pub fn new(far_side: FarSide<S, C>) -> ClientLayer<S, C> {
        let options = Options { key: Arc::new(host_of), longest_wait: None, retries: 0, jitter: JITTER };
        ClientLayer { far_side, options }
    }

    /// Paces requests by another key, for example by the account of an API.
    ///
    /// ```
    /// use spillgate::client::{ClientLayer, FarSide};
    /// use spillgate::{Limiter, Quota};
    ///
    /// let api = FarSide::new(Limiter::in_memory(), &Quota::per_second(10).constant());
    /// let layer = ClientLayer::new(api).key(|parts| {
    ///     parts.headers.get("authorization").map(|value| value.as_bytes().to_vec()).unwrap_or_default()
    /// });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn key(mut self, key: impl Fn(&Parts) -> Vec<u8> + Send + Sync + 'static) -> ClientLayer<S, C> {
        self.options.key = Arc::new(move |parts, builder| {
            builder.part(&key(parts));
        });
        self
    }

    /// Sets how long a request waits at most for its turn. If the turn comes later, the request is not sent, and the
    /// caller gets an error. By default, a request waits as long as needed.
    #[must_use]
    pub const fn longest_wait(mut self, longest_wait: Duration) -> ClientLayer<S, C> {
        self.options.longest_wait = Some(longest_wait);
        self
    }

    /// Sets how often a request is sent again after 429 or 503. The default is 0.
    ///
    /// Only requests that are idempotent (`GET`, `HEAD`, `OPTIONS`, `TRACE`, `PUT`, `DELETE`) and have no body are sent
    /// again. A retry waits for a turn like any other request. If the retry gets no turn, for example because the turn
    /// comes after the [longest wait](ClientLayer::longest_wait), the caller gets the last answer of the far side. If the
    /// client was not ready for the retry, that answer is gone, and the caller gets an error.
    #[must_use]
    pub const fn retries(mut self, retries: u32) -> ClientLayer<S, C> {
        self.options.retries = retries;
        self
    }

    /// Sets the longest jitter: a random time that each retry waits in addition. The default is 100 ms.
    ///
    /// Without jitter, programs that were refused at the same time would come back at the same time.
    #[must_use]
    pub const fn jitter(mut self, jitter: Duration) -> ClientLayer<S, C> {
        self.options.jitter = jitter;
        self
    }
}

/// Adds the host of a request to a key. The host is that of the URI, or of the field `Host` if the URI has none.
fn host_of(parts: &Parts, key: &mut KeyBuilder) {
    let named = || parts.headers.get(http::header::HOST)?.to_str().ok()?.parse::<Authority>().ok();
    let Some(authority) = parts.uri.authority().cloned().or_else(named) else {
        key.part(b"");
        return;
    };
    key.part(authority.host().to_ascii_lowercase().as_bytes());
    match authority.port_u16() {
        None | Some(80 | 443) => {}
        Some(port) => {
            key.part(&port.to_be_bytes());
        }
    }
}

impl<S, C> Clone for ClientLayer<S, C> {
    fn clone(&self) -> Self {
        ClientLayer { far_side: self.far_side.clone(), options: self.options.clone() }
    }
}

impl<S, C> fmt::Debug for ClientLayer<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { longest_wait, retries, jitter, .. } = &self.options;
        let mut out = f.debug_struct("ClientLayer");
        out.field("longest_wait", longest_wait)
            .field("retries", retries)
            .field("jitter", jitter)
            .finish_non_exhaustive()
    }
}

impl<I, S, C> Layer<I> for ClientLayer<S, C> {
    type Service = ClientService<I, S, C>;

    fn layer(&self, inner: I) -> ClientService<I, S, C> {
        ClientService { inner, layer: self.clone() }
    }
}

/// A client whose requests are paced. [`ClientLayer`] makes it.
pub struct ClientService<I, S = MemoryStore, C = SystemClock> {
    inner: I,
    layer: ClientLayer<S, C>,
}

impl<I: Clone, S, C> Clone for ClientService<I, S, C> {
    fn clone(&self) -> Self {
        ClientService { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<I, S, C> fmt::Debug for ClientService<I, S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientService").field("layer", &self.layer).finish_non_exhaustive()
    }
}

/// Why a request has no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError<E> {
    /// The request got no turn, so it was not sent.
    Pace(PaceError),
    /// The client behind the layer failed. The far side may have received the request.
    Client(E),
}

impl<E> fmt::Display for ClientError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Pace(error) => write!(f, "the request was not sent: {error}"),
            ClientError::Client(_) => f.write_str("the client failed"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for ClientError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ClientError::Pace(error) => Some(error),
            ClientError::Client(error) => Some(error),
        }
    }
}

impl<I, B, R, S, C> Service<Request<B>> for ClientService<I, S, C>
where
    I: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send,
    B: Body + Default + Send + 'static,
    R: Send,
    S: Store + 'static,
    C: Clock + 'static,
{
    type Response = Response<R>;
    type Error = ClientError<I::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, ClientError<I::Error>>> + Send>>;

    /// A request waits for its turn in its future, so the service is always ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut inner, ClientLayer { far_side, options }) = (self.inner.clone(), self.layer.clone());
        let (parts, body) = request.into_parts();
        let mut key = far_side.limiter.keys().start();
        (options.key)(&parts, &mut key);
        let key = key.finish();
        Box::pin(async move {
            let mut retries = if body.is_end_stream() && parts.method.is_idempotent() { options.retries } else { 0 };
            let (mut parts, mut body) = (parts, Some(body));
            until_ready(&mut inner).await?;
            let mut turn = far_side.turn(key, options.longest_wait).await.map_err(ClientError::Pace)?;
            loop {
                let again = (retries > 0).then(|| parts.clone());
                let request = Request::from_parts(parts, body.take().unwrap_or_default());
                let response = send(&mut inner, request, turn).await?;
                match again.filter(|_| is_refusal(response.status())) {
                    Some(again) => parts = again,
                    None => return Ok(response),
                }
                retries -= 1;
                tokio::time::sleep(random_below(options.jitter)).await;
                match far_side.turn(key, options.longest_wait).await {
                    Ok(next) => turn = next,
                    Err(_) => return Ok(response),
                }
                // Some clients become ready only after the last answer is dropped.
                drop(response);
                if !is_ready(&mut inner).await? {
                    until_ready(&mut inner).await?;
                    // The turn may be long past. Retries that waited together would be sent together.
                    turn = far_side.turn(key, options.longest_wait).await.map_err(ClientError::Pace)?;
                }
            }
        })
    }
}

/// Returns whether the client is ready now.
async fn is_ready<I: Service<Request<B>>, B>(inner: &mut I) -> Result<bool, ClientError<I::Error>> {
    let ready = poll_fn(|context| Poll::Ready(inner.poll_ready(context))).await;
    if let Poll::Ready(ready) = ready { ready.map(|()| true).map_err(ClientError::Client) } else { Ok(false) }
}

async fn until_ready<I: Service<Request<B>>, B>(inner: &mut I) -> Result<(), ClientError<I::Error>> {
    poll_fn(|context| inner.poll_ready(context)).await.map_err(ClientError::Client)
}

/// Sends a request, and passes the answer of the far side to the turn. The client must be ready.
async fn send<I, B, R, S, C>(
    inner: &mut I,
    request: Request<B>,
    turn: Turn<S, C>,
) -> Result<Response<R>, ClientError<I::Error>>
where
    I: Service<Request<B>, Response = Response<R>>,
    S: Store + 'static,
    C: Clock + 'static,
{
    let response = inner.call(request).await.map_err(ClientError::Client)?;
    // If the store fails here, the pace stays as it is. The caller still gets the answer, which is more important.
    let _ = turn.answered(response.status(), response.headers()).await;
    Ok(response)
}

/// Returns a random time, at most `longest`.
fn random_below(longest: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(0);
    longest.mul_f64(f64::from(random) / f64::from(u32::MAX))
}
