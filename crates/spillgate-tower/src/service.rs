//! The service that a layer makes. It asks the limits, and then calls the service behind it or refuses the request.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use spillgate_core::{Binding, OnStoreFailure, Store, StoreError, StoreErrorKind, Verdict};
use tower_service::Service;

use spillgate_limiter::Clock;
use spillgate_limiter::headers::HeaderStyle;

use super::ask::Asked;
use super::body::LimitedBody;
use super::fields::Fields;
use super::head::RequestHead;
use super::layer::{Charge, Config, Options};
use super::outcome::Outcome;
use super::refusal::{self, Why};

/// A service whose requests are limited. [`RateLimitLayer`](super::RateLimitLayer) makes it.
pub struct RateLimitService<I, S, C> {
    inner: I,
    config: Arc<Config<S, C>>,
}

impl<I, S, C> RateLimitService<I, S, C> {
    pub(super) const fn new(inner: I, config: Arc<Config<S, C>>) -> RateLimitService<I, S, C> {
        RateLimitService { inner, config }
    }
}

impl<I: Clone, S, C> Clone for RateLimitService<I, S, C> {
    fn clone(&self) -> Self {
        RateLimitService { inner: self.inner.clone(), config: Arc::clone(&self.config) }
    }
}

impl<I: fmt::Debug, S, C> fmt::Debug for RateLimitService<I, S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// What the layer does with a request.
enum Way {
    /// The service answers, although no limit has decided. For example, the request skips the limits.
    Pass,
    /// All limits allow the request, so the service answers.
    Allow,
    /// A limit refuses.
    Refuse,
    /// The request lacks what a limit counts by, or it has limits that a layer cannot decide.
    Lacks(&'static str),
    /// The store failed, so the layer answers 503.
    StoreFailed,
    /// The store failed, and a quota has the policy `Deny`.
    RefuseByPolicy,
    /// The store cannot decide without waiting.
    Wait,
}

impl<S: Store, C: Clock> Config<S, C> {
    fn head<'r, Q>(&'r self, request: &'r Request<Q>) -> RequestHead<'r> {
        RequestHead::new(request, &self.options)
    }

    fn way(&self, request: RequestHead<'_>, outcome: &mut Outcome) -> Way {
        if self.options.skips(request) {
            return Way::Pass;
        }
        if let Err(what) = self.limits_of(request, &mut outcome.limits) {
            self.report(&StoreError::malformed(what));
            return if self.options.is_shadow { Way::Pass } else { Way::Lacks(what) };
        }
        if outcome.limits.is_empty() {
            return Way::Pass;
        }
        match self.try_decide(&mut outcome.limits) {
            Some(decided) => self.way_after(outcome, decided),
            None => Way::Wait,
        }
    }

    fn way_after(&self, outcome: &mut Outcome, decided: Result<Verdict, StoreError>) -> Way {
        match decided {
            Ok(verdict) => {
                outcome.verdict = verdict;
                if verdict.allowed { Way::Allow } else { Way::Refuse }
            }
            Err(error) => {
                self.report(&error);
                way_without_store(&outcome.limits, &error)
            }
        }
    }

    /// Returns the layer's own answer, or `None` if the service has to answer.
    #[cold]
    fn answer<B>(&self, way: &Way, request: RequestHead<'_>, outcome: &Outcome) -> Option<Response<LimitedBody<B>>> {
        let response = match *way {
            Way::Pass | Way::Allow | Way::Wait => return None,
            Way::Lacks(what) => refusal::answer(request, &Why::Lacks(what)),
            Way::StoreFailed => refusal::answer(request, &Why::StoreFailed),
            Way::Refuse => self.refuse(request, outcome),
            Way::RefuseByPolicy => self.refuse(request, &Outcome::refused_by_policy()),
        };
        Some(response.map(LimitedBody::refusal))
    }

    fn refuse(&self, request: RequestHead<'_>, outcome: &Outcome) -> Response<Bytes> {
        let mut response = match &self.options.refusal {
            Some(refusal) => refusal(&request, outcome),
            None => refusal::answer(request, &Why::Refused(outcome)),
        };
        self.options.fields.set(outcome, response.headers_mut());
        response
    }

    /// Stores the outcome in the extensions of an allowed request, if the option is on.
    fn prepare<Q>(&self, outcome: &Outcome, request: &mut Request<Q>) {
        if self.options.outcome_in_extensions {
            request.extensions_mut().insert(outcome.clone());
        }
    }

    /// Returns what is left to do when the service has answered an allowed request. `None` means that nothing is left.
    fn follow(self: &Arc<Self>, outcome: Outcome) -> Option<Follow<S, C>> {
        let Options { fields, charge_after, is_shadow, .. } = &self.options;
        let style = if *is_shadow { HeaderStyle::Off } else { fields.style };
        // Without header fields and without a later charge, nothing is left to do: an allowed request has no
        // Retry-After.
        if charge_after.is_none() && style == HeaderStyle::Off {
            return None;
        }
        // Most layers do not need their configuration after the decision. A clone of it would change its reference
        // count, and all threads would compete for this count at each request.
        let config = charge_after.is_some().then(|| Arc::clone(self));
        Some(Follow { outcome, fields: Fields { style, ..*fields }, config })
    }
}

const UNDECIDABLE: &str = "the store cannot decide a limit of this request; the layer's `on_error` gets the reason";

/// Returns what the layer does with a request that the store has not decided. Limits in shadow mode never refuse, so
/// their policies do not matter here.
fn way_without_store(limits: &Asked, error: &StoreError) -> Way {
    let mut way = Way::Pass;
    for limit in limits.iter().filter(|limit| limit.binding != Binding::Shadow) {
        // The store works, but does not support a limit of the program. Policies are only for a store that fails.
        if error.kind() == StoreErrorKind::Malformed {
            return Way::Lacks(UNDECIDABLE);
        }
        match limit.quota.on_store_failure() {
            OnStoreFailure::Allow => {}
            OnStoreFailure::Deny => way = Way::RefuseByPolicy,
            OnStoreFailure::Error | OnStoreFailure::Local => return Way::StoreFailed,
        }
    }
    way
}

/// What the layer does with the answer of the service.
struct Follow<S, C> {
    outcome: Outcome,
    fields: Fields,
    /// `Some` if the answer can change the charge.
    config: Option<Arc<Config<S, C>>>,
}

impl<S: Store, C: Clock> Follow<S, C> {
    fn answer<B, E>(&self, answered: Result<Response<B>, E>) -> Result<Response<LimitedBody<B>>, E> {
        let mut response = answered?;
        self.fields.add(&self.outcome, response.headers_mut());
        Ok(response.map(LimitedBody::service))
    }
}

impl<S: Store, C: Clock> Config<S, C> {
    /// Returns what the answer of the service, or its error, changes about the charge.
    fn charge_of<B: Body, E>(
        &self,
        outcome: &Outcome,
        answered: Result<Response<B>, E>,
    ) -> (Result<Response<B>, E>, Charge) {
        let Some(charge_after) = &self.options.charge_after else { return (answered, Charge::Keep) };
        let (answered, charge) = match answered {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                let charge = charge_after(Some(&parts), body.size_hint().exact());
                (Ok(Response::from_parts(parts, body)), charge)
            }
            Err(error) => (Err(error), charge_after(None, None)),
        };
        self.report_lost(outcome, charge);
        (answered, charge)
    }
}

impl<I, S, C, Q, B> Service<Request<Q>> for RateLimitService<I, S, C>
where
    I: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    I::Future: Send + 'static,
    I::Error: Send + 'static,
    S: Store + 'static,
    C: Clock + 'static,
    Q: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<LimitedBody<B>>;
    type Error = I::Error;
    type Future = RateLimitFuture<I::Future, S, C, B, I::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let mut outcome = Outcome::undecided();
        let state = match self.config.way(self.config.head(&request), &mut outcome) {
            Way::Pass => State::Service { future: self.inner.call(request), follow: None },
            Way::Allow => {
                self.config.prepare(&outcome, &mut request);
                State::Service { future: self.inner.call(request), follow: self.config.follow(outcome) }
            }
            Way::Wait => {
                // The service whose `poll_ready` returned ready must be the one that is called, so the clone stays
                // here.
                let clone = self.inner.clone();
                let inner = mem::replace(&mut self.inner, clone);
                State::Waiting { future: Box::pin(decide_and_call(inner, Arc::clone(&self.config), request, outcome)) }
            }
            way => State::Answered { response: self.config.answer(&way, self.config.head(&request), &outcome) },
        };
        RateLimitFuture { state }
    }
}

/// Waits for the decision of the store, and then does the same as `call` does with a store that need not wait.
async fn decide_and_call<I, S, C, Q, B>(
    mut inner: I,
    config: Arc<Config<S, C>>,
    mut request: Request<Q>,
    mut outcome: Outcome,
) -> Result<Response<LimitedBody<B>>, I::Error>
where
    I: Service<Request<Q>, Response = Response<B>>,
    S: Store,
    C: Clock,
    B: Body<Data = Bytes>,
{
    let decided = config.decide(&mut outcome.limits).await;
    let follow = match config.way_after(&mut outcome, decided) {
        Way::Allow => {
            config.prepare(&outcome, &mut request);
            config.follow(outcome)
        }
        way => match config.answer(&way, config.head(&request), &outcome) {
            Some(response) => return Ok(response),
            None => None,
        },
    };
    let answered = inner.call(request).await;
    let Some(mut follow) = follow else { return answered.map(|response| response.map(LimitedBody::service)) };
    let (answered, charge) = config.charge_of(&follow.outcome, answered);
    config.settle(&mut follow.outcome, charge).await;
    follow.answer(answered)
}

type Boxed<B, E> = Pin<Box<dyn Future<Output = Result<Response<LimitedBody<B>>, E>> + Send>>;

pin_project! {
    /// The future of a limited request.
    ///
    /// If the store does not have to wait, this future allocates no memory.
    pub struct RateLimitFuture<F, S, C, B, E> {
        #[pin]
        state: State<F, S, C, B, E>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, S, C, B, E> {
        Service { #[pin] future: F, follow: Option<Follow<S, C>> },
        Answered { response: Option<Response<LimitedBody<B>>> },
        Waiting { future: Boxed<B, E> },
    }
}

impl<F, S, C, B, E> fmt::Debug for RateLimitFuture<F, S, C, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RateLimitFuture")
    }
}

impl<F, S, C, B, E> Future for RateLimitFuture<F, S, C, B, E>
where
    F: Future<Output = Result<Response<B>, E>>,
    S: Store + 'static,
    C: Clock + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    E: Send + 'static,
{
    type Output = Result<Response<LimitedBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let settled = match self.as_mut().project().state.project() {
            StateProjection::Answered { response } => {
                return Poll::Ready(Ok(response.take().expect("the future is polled after it has ended")));
            }
            StateProjection::Waiting { future } => return future.as_mut().poll(cx),
            StateProjection::Service { future, follow } => {
                let answered = ready!(future.poll(cx));
                let Some(mut follow) = follow.take() else {
                    return Poll::Ready(answered.map(|response| response.map(LimitedBody::service)));
                };
                let Some(config) = follow.config.take() else { return Poll::Ready(follow.answer(answered)) };
                let (answered, charge) = config.charge_of(&follow.outcome, answered);
                if config.try_settle(&mut follow.outcome, charge) {
                    return Poll::Ready(follow.answer(answered));
                }
                Box::pin(async move {
                    config.settle(&mut follow.outcome, charge).await;
                    follow.answer(answered)
                })
            }
        };
        self.as_mut().project().state.set(State::Waiting { future: settled });
        self.poll(cx)
    }
}
