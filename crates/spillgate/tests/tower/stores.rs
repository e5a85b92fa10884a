//! Stores that answer after a wait, stores that fail, and services that have to be ready before a call.

use super::*;

/// A store that answers after a wait, and that can fail.
#[derive(Debug)]
struct Remote {
    store: MemoryStore,
    fails: bool,
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
        if self.fails {
            return Err(StoreError::new(StoreErrorKind::Disconnected, "gone"));
        }
        self.store.decide(timing, hits, decisions).await
    }
}

fn remote(fails: bool) -> Limiter<Remote, ManualClock> {
    let clock = ManualClock::at(Time::from_nanos(1_790_000_000_000_000_000));
    Limiter::with_clock(Remote { store: MemoryStore::new(MemoryOptions::default()), fails }, clock)
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
        let layer =
            RateLimitLayer::new(remote(true)).limit("all", quota, key::everything()).on_store_error(move |error| {
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
