//! Tests of `POST /reload` without a thread that reloads: the test answers the requests itself.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use spillgate_admin::{self as admin, AdminState};
use spillgate_service::reload_requests::{Next, ReloadErrors, Reloaded, reload_requests};
use spillgate_service::reloads::{Cause, Lines, Outcome, Reload, ReloadHistory};
use std::sync::Arc;
use tower::ServiceExt as _;

use crate::http::access::{LOCAL, WRITE_HEADER, access, request};
use crate::http::app::App;

#[test]
fn the_listener_answers_others_while_a_reload_runs() {
    let app = App::new();
    let (history, (requests, queue)) = (ReloadHistory::default(), reload_requests());
    let state = AdminState::new(Arc::clone(&app.service), access(None, None, &[]));
    let router = admin::router(state.with_reloads(history.clone(), requests));
    let ask = |request: Request<Body>| {
        let answer = router.clone().oneshot(request);
        async {
            let (parts, body) = answer.await.expect("a router never fails").into_parts();
            (parts.status.as_u16(), body.collect().await.expect("the body is in memory").to_bytes())
        }
    };
    let reload = || request("POST", "/reload", LOCAL, &[WRITE_HEADER]);
    app.run(async {
        let first = tokio::spawn(ask(reload()));
        let second = tokio::spawn(ask(reload()));
        // Both requests go as far as they can: until they wait for the reload.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        // The runtime has one thread. While both requests wait, it answers others.
        for path in ["/healthz", "/rules", "/reloads"] {
            assert_eq!(ask(request("GET", path, LOCAL, &[])).await.0, 200);
        }
        assert!(!first.is_finished() && !second.is_finished());
        let Next::Reload(waiters) = queue.next(None) else { panic!("a reload is requested") };
        let [errors, changes, notes] = [(); 3].map(|()| Lines::default());
        let (cause, outcome, units) = (waiters.cause(), Outcome::Reloaded, Vec::new());
        assert_eq!(cause, Cause::Request);
        let reload = Reload { at_ms: 7, cause, outcome, units, loaded: None, errors, changes, notes };
        waiters.answer(&Arc::new(Reloaded { reload: history.add(reload), errors: ReloadErrors::default() }));
        for answer in [first, second] {
            let (status, body) = answer.await.expect("the request does not panic");
            let body: Value = serde_json::from_slice(&body).expect("the answer is JSON");
            assert_eq!((status, &body["reload"]["at_ms"]), (200, &7.into()), "both get the result of one reload");
        }
    });
}

#[test]
fn a_reload_has_no_parameters() {
    let app = App::new();
    for wrong in ["[]", "7", "{\"force\":true}", "{} {}", "rules.yaml"] {
        let mut request = request("POST", "/reload", LOCAL, &[WRITE_HEADER]);
        *request.body_mut() = Body::from(wrong);
        let text = app.admin_with(access(None, None, &[]), request).problem(400);
        assert!(text.contains("send no body"), "{text}");
    }
}
