//! Stores that answer after a wait, stores that fail, and services that have to be ready before a call.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use spillgate_limiter::sketch::Sketch;

use super::*;

/// A store that answers after a wait. It can be told to fail.
#[derive(Debug)]
pub(crate) struct Remote {
    store: MemoryStore,
    fails: Arc<AtomicBool>,
    /// Whether takes are answered without a wait.
    takes_at_once: bool,
}

impl Store for Remote {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.store.supports(quota, op)
    }

    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        tokio::task::yield_now().await;
        if self.fails.load(Ordering::Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Disconnected, "gone"));
        }
        self.store.decide(timing, hits, decisions).await
    }

    fn try_decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Option<Result<Verdict, StoreError>> {
        let is_take = hits.iter().all(|hit| hit.op.kind() == OpKind::Take);
        (self.takes_at_once && is_take).then(|| self.store.try_decide(timing, hits, decisions))?
    }
}

impl Remote {
    pub(crate) fn new(fails: bool) -> Remote {
        let store = MemoryStore::new(MemoryOptions::default());
        Remote { store, fails: Arc::new(AtomicBool::new(fails)), takes_at_once: false }
    }
}

pub(crate) fn remote(fails: bool) -> Limiter<Remote, ManualClock> {
    limiter_on(Remote::new(fails))
}

#[tokio::test]
async fn a_store_that_is_waited_for_decides_like_one_in_memory() {
    let layer = RateLimitLayer::new(remote(false)).limit("all", &TWO, key::everything()).refund_server_errors();
    for _ in 0..5 {
        assert_eq!(status(&layer, with(request(), &[("answer", "500")])).await, 500);
    }
    let response = ask(&layer, request()).await;
    assert!(text(response.headers(), "ratelimit").is_some_and(|field| field.contains(";r=1;")));
    assert_eq!([status(&layer, request()).await, status(&layer, request()).await], [200, 429]);
}

#[tokio::test]
async fn each_quota_says_what_happens_while_the_store_fails() {
    let errors = Arc::new(AtomicUsize::new(0));
    for (choice, expected) in [
        (OnStoreFailure::Allow, 200),
        (OnStoreFailure::Deny, 429),
        (OnStoreFailure::Error, 503),
        (OnStoreFailure::Local, 503),
    ] {
        let counted = Arc::clone(&errors);
        let quota = Quota::per_minute(2).on_store_failure(choice).constant();
        let layer = RateLimitLayer::new(remote(true)).limit("all", quota, key::everything()).on_error(move |error| {
            assert_eq!(error.kind(), StoreErrorKind::Disconnected);
            counted.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(status(&layer, request()).await, expected, "{choice:?}");
        assert_eq!(status(&layer.shadow(true), request()).await, 200, "a shadow refuses nothing");
    }
    assert_eq!(errors.load(Ordering::Relaxed), 8);
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    /// A service that panics if it is called without being ready.
    #[derive(Debug, Default)]
    struct Picky(bool);
    impl Clone for Picky {
        fn clone(&self) -> Self {
            Picky(false)
        }
    }
    impl Service<Request<Empty<Bytes>>> for Picky {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<Full<Bytes>>, Infallible>>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
            self.0 = true;
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: Request<Empty<Bytes>>) -> Self::Future {
            assert!(std::mem::take(&mut self.0), "the service was not ready");
            std::future::ready(Ok(Response::new(Full::from("hello"))))
        }
    }
    let waiting = RateLimitLayer::new(remote(false)).limit("all", &TWO, key::everything());
    let at_once = RateLimitLayer::new(limiter()).limit("all", &TWO, key::everything());
    let (mut waiting, mut at_once) = (waiting.layer(Picky::default()), at_once.layer(Picky::default()));
    for _ in 0..5 {
        let _ = waiting.ready().await.expect("ready").call(request()).await;
        let _ = at_once.ready().await.expect("ready").call(request()).await;
    }
}

#[tokio::test]
async fn one_limit_decides_what_all_do_while_the_store_fails() {
    use OnStoreFailure::{Allow, Deny, Error, Local};
    for (choices, expected) in [
        ([Allow, Deny], 429),
        ([Deny, Allow], 429),
        ([Deny, Error], 503),
        ([Local, Deny], 503),
        ([Allow, Local], 503),
        ([Allow, Allow], 200),
    ] {
        let layer =
            choices.into_iter().enumerate().fold(RateLimitLayer::new(remote(true)), |layer, (index, choice)| {
                let quota = Quota::per_minute(2).on_store_failure(choice).constant();
                layer.limit(index.to_string(), quota, key::everything())
            });
        assert_eq!(status(&layer, request()).await, expected, "{choices:?}");
    }
}

#[tokio::test]
async fn a_client_of_grpc_gets_unavailable_while_the_store_fails_and_internal_for_a_fault_of_the_program() {
    let grpc = |request| with(request, &[("content-type", "application/grpc")]);
    let fails = RateLimitLayer::new(remote(true)).limit("all", &TWO, key::everything());
    let by_address = RateLimitLayer::new(remote(false)).limit("address", &TWO, key::address());
    let answers = [ask(&fails, grpc(request())).await, ask(&by_address, grpc(Request::new(Empty::new()))).await];
    for (answer, code) in answers.iter().zip(["14", "13"]) {
        assert_eq!((answer.status().as_u16(), text(answer.headers(), "grpc-status")), (200, Some(code)));
    }
}

#[tokio::test]
async fn a_limit_that_the_store_does_not_support_is_a_fault_of_the_program_and_not_of_the_store() {
    let supported = Quota::per_minute(3).constant();
    for choice in [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Error, OnStoreFailure::Local] {
        let kinds = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&kinds);
        let other = Quota::sliding_window_log(3, Duration::from_secs(1)).on_store_failure(choice).constant();
        let layer = RateLimitLayer::new(limiter_on(Sketch::new(&supported, 1 << 20).expect("a size")))
            .limit("all", other, key::everything())
            .on_error(move |error| seen.lock().expect("no panic").push(error.kind()));
        let refused = ask(&layer, request()).await;
        assert_eq!(refused.status(), 500, "{choice:?}");
        let problem = String::from_utf8(body(refused).await.to_vec()).expect("the body is text");
        assert!(problem.contains("cannot decide a limit of this request"), "{problem}");
        assert_eq!(status(&layer.shadow(true), request()).await, 200);
        assert_eq!(*kinds.lock().expect("no panic"), [StoreErrorKind::Malformed; 2]);
    }
}

#[tokio::test]
async fn a_store_can_answer_takes_at_once_and_refunds_after_a_wait() {
    let store = Remote { takes_at_once: true, ..Remote::new(false) };
    let layer = RateLimitLayer::new(limiter_on(store)).limit("all", &TWO, key::everything()).refund_server_errors();
    for _ in 0..5 {
        assert_eq!(status(&layer, with(request(), &[("answer", "500")])).await, 500);
    }
    let response = ask(&layer, request()).await;
    assert!(text(response.headers(), "ratelimit").is_some_and(|field| field.contains(";r=1;")));
    assert_eq!([status(&layer, request()).await, status(&layer, request()).await], [200, 429]);
}

#[tokio::test]
async fn a_refund_that_the_store_does_not_get_is_lost_and_reported() {
    for takes_at_once in [false, true] {
        let store = Remote { takes_at_once, ..Remote::new(false) };
        let fails = Arc::clone(&store.fails);
        let errors = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&errors);
        let layer = RateLimitLayer::new(limiter_on(store))
            .limit("all", &TWO, key::everything())
            .on_error(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
            })
            .refund_server_errors();
        let link = Arc::clone(&fails);
        let failing = layer.layer(service_fn(move |request: Request<Empty<Bytes>>| {
            link.store(true, Ordering::Relaxed);
            answer(request)
        }));
        let response = failing.oneshot(with(request(), &[("answer", "500")])).await.expect("no failure");
        assert_eq!((response.status().as_u16(), errors.load(Ordering::Relaxed)), (500, 1));
        fails.store(false, Ordering::Relaxed);
        assert_eq!([status(&layer, request()).await, status(&layer, request()).await], [200, 429]);
    }
}
