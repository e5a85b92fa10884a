//! Runs the writes of operators (the requests that can change something), and logs each of them.
//!
//! From the log, an operator can see who has changed what, and when. Each write has a task of its own. So even if its
//! client disconnects, the write runs to its end and is logged.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use spillgate_http::json::object;
use spillgate_http::problem::Problem;
use spillgate_http::read_body;
use spillgate_service::ClientName;
use spillgate_service::metrics::Metrics;
use tokio::sync::Semaphore;

use super::BODY_BYTES;
use super::access::{self, Proof};
use super::page::try_permit;

/// The maximum number of writes that run at the same time. The bound is needed, because a write that waits for a slow
/// store keeps its body in memory.
const WRITES: usize = 16;

/// The log shows at most this many characters of the path of a write. All routes are shorter, also with the longest name of
/// a region, but a request can have any path.
const ROUTE_CHARS_MAX: usize = 48;

/// The log shows at most this many characters of what a write has changed.
const CHANGE_CHARS_MAX: usize = 500;

/// The log shows at most this many characters of the name in a client's certificate.
const CLIENT_CHARS_MAX: usize = 300;

/// The answer to a write is shorter. Only an answer whose line is lost is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// What the log says instead of the change if a write may have changed something, but this server does not know what.
const UNKNOWN: &str = "unknown";

/// The target of the log lines about writes. These lines are in the log whatever level the setting `log_level` has,
/// unless the setting names this target.
pub const TARGET: &str = "spillgate::writes";

/// What a write has changed, in words. A handler puts this text into the extensions of its response, and the log shows
/// it.
#[derive(Clone, Debug)]
pub(super) struct Change(pub(super) String);

/// Returns [`WRITES`] permits. Each write that runs holds one of them.
pub(super) fn permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(WRITES))
}

/// The body of a write that needs nothing but its path. It has no members, and it can be left out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Reads the body of a write that needs nothing but its path.
pub(super) async fn without_members(request: Request) -> Result<(), Problem> {
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    if !body.is_empty() {
        let _: Nothing = object(&body).map_err(|error| Problem::bad_json(&error, "{}, or send no body"))?;
    }
    Ok(())
}

/// What the log shows about a write, apart from its change and its status.
#[derive(Debug)]
pub(super) struct Write {
    route: String,
    proof: Proof,
    peer: String,
    /// The name in the certificate of the client. Empty if the listener wants no certificates.
    client: String,
}

impl Write {
    pub(super) fn new(request: &Request, proof: Proof) -> Write {
        let route = request.uri().path().chars().take(ROUTE_CHARS_MAX).collect();
        let peer = access::peer(request).map(|peer| peer.to_string()).unwrap_or_default();
        let client =
            request.extensions().get::<ClientName>().map(|name| name.0.chars().take(CLIENT_CHARS_MAX).collect());
        Write { route, proof, peer, client: client.unwrap_or_default() }
    }

    fn log(&self, change: &str, status: Option<StatusCode>) {
        let change: String = change.chars().take(CHANGE_CHARS_MAX).collect();
        let (route, token, peer) = (&*self.route, self.proof.as_str(), &*self.peer);
        let status = status.map(|status| status.as_u16());
        let client = (!self.client.is_empty()).then_some(&*self.client);
        tracing::info!(target: TARGET, route, change, token, peer, client, status, "a write on the admin listener");
    }
}

/// Logs a write when it ends. If this value is dropped before the write ends, the write has panicked or was cut off.
/// Then the log says that the change is unknown.
struct Logged {
    write: Option<Write>,
    metrics: Arc<Metrics>,
    /// Returns how many log lines of the calling thread were lost.
    lost_lines: fn() -> u64,
}

impl Logged {
    /// Returns whether the log has taken the line.
    fn end(mut self, response: &Response) -> bool {
        let change = response.extensions().get::<Change>().map(|change| &*change.0);
        // If the handler gave no change, a client's error means that nothing was changed. After an error of the server,
        // a part of the write may have been applied.
        let otherwise = if response.status().is_server_error() { UNKNOWN } else { "nothing" };
        let before = (self.lost_lines)();
        if let Some(write) = self.write.take() {
            write.log(change.unwrap_or(otherwise), Some(response.status()));
        }
        (self.lost_lines)() == before
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            write.log(UNKNOWN, None);
        }
        if std::thread::panicking() {
            self.metrics.panics.inc();
        }
    }
}

/// Runs the write `request` to its end, even if its client disconnects, and logs it as `write`.
pub(super) async fn run(
    permits: &Arc<Semaphore>,
    (metrics, lost_lines): (&Arc<Metrics>, fn() -> u64),
    write: Write,
    request: Request,
    next: Next,
) -> Response {
    let permit = match try_permit(permits, WRITES, "writes run", "try again soon") {
        Ok(permit) => permit,
        Err(response) => return *response,
    };
    let logged = Logged { write: Some(write), metrics: Arc::clone(metrics), lost_lines };
    let task = tokio::spawn(async move {
        let response = next.run(request).await;
        let response = if logged.end(&response) { response } else { with_lost_line(response).await };
        drop(permit);
        response
    });
    task.await.unwrap_or_else(|_| {
        let help = "look into the log of the server, and check what has changed";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the write has failed", help).into_response()
    })
}

/// Adds `"logged": false` to the answer of a write, which is a JSON object. Because the write has no line in the log,
/// its caller is the only one who can still know of it.
async fn with_lost_line(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    // An answer that cannot be read has ended already.
    let mut bytes = to_bytes(body, ANSWER_BYTES_MAX).await.map(Vec::from).unwrap_or_default();
    if let Some(end) = bytes.iter().rposition(|byte| *byte == b'}') {
        bytes.truncate(end);
        bytes.extend_from_slice(if bytes.trim_ascii().ends_with(b"{") {
            b"\"logged\":false}"
        } else {
            b",\"logged\":false}"
        });
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, bytes.into())
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn;
    use axum::routing::post;
    use parking_lot::Mutex;
    use tokio::runtime::Builder;
    use tower::ServiceExt as _;

    use super::*;

    /// A log that keeps its lines in memory.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Sends a write to `handler`, and waits for the answer, but at most for ten turns of the runtime. Then the client
    /// goes away, and the runtime ends. Returns the status if there was an answer, the number of panics that were
    /// counted, and what was logged.
    fn sent<F>(permits: usize, handler: impl Fn() -> F + Clone + Send + Sync + 'static) -> (Option<u16>, u64, String)
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let (lines, metrics) = (Lines::default(), Arc::new(Metrics::new()));
        let (to_lines, of_run) = (lines.clone(), Arc::clone(&metrics));
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to_lines.clone()).finish();
        let status = tracing::subscriber::with_default(subscriber, || {
            let permits = Arc::new(Semaphore::new(permits));
            let guard = from_fn(move |request: Request, next: Next| {
                let (permits, metrics) = (Arc::clone(&permits), Arc::clone(&of_run));
                let write = Write::new(&request, Proof::Write);
                async move { run(&permits, (&metrics, || 0), write, request, next).await }
            });
            let router = Router::new().route("/{path}", post(handler)).layer(guard);
            let runtime = Builder::new_current_thread().build().expect("the runtime starts");
            runtime.block_on(async {
                let long = format!("/{}\u{1b}[31m\"", "a".repeat(100)).replace(['\u{1b}', '[', '"'], "%1b");
                let request = Request::post(long).body(Body::empty()).expect("the request is valid");
                let answer = router.oneshot(request);
                tokio::select! {
                    biased;
                    answer = answer => Some(answer.expect("a router never fails").status().as_u16()),
                    () = async { for _ in 0..10 { tokio::task::yield_now().await } } => None,
                }
            })
        });
        let lines = String::from_utf8(lines.0.lock().clone()).expect("a log is UTF-8");
        (status, metrics.panics.get(), lines)
    }

    #[test]
    fn a_write_is_logged_with_its_change() {
        let changed = async || {
            let mut response = StatusCode::OK.into_response();
            response.extensions_mut().insert(Change(format!("a \"b\"\n\u{1b}[31m{}", "c".repeat(1_000))));
            response
        };
        let (status, _, lines) = sent(1, changed);
        assert_eq!((status, lines.lines().count()), (Some(200), 1), "{lines}");
        let route = format!("route=\"/{}\"", "a".repeat(ROUTE_CHARS_MAX - 1));
        assert!(lines.contains(&route), "{lines}");
        assert!(lines.contains(r#"change="a \"b\"\n\u{1b}[31mccc"#) && !lines.contains('\u{1b}'), "{lines}");
        assert!(lines.len() < CHANGE_CHARS_MAX + 300 && lines.contains("token=\"write\""), "{lines}");
    }

    #[test]
    fn a_write_that_fails_is_not_logged_as_nothing() {
        for (status, change) in [(404, "nothing"), (500, "unknown"), (503, "unknown")] {
            let answer = move || async move { StatusCode::from_u16(status).expect("it is a status").into_response() };
            let (answered, _, lines) = sent(1, answer);
            assert_eq!(answered, Some(status));
            assert!(lines.contains(&format!("change=\"{change}\"")), "{lines}");
            assert!(lines.contains(&format!("status={status}")), "{lines}");
        }
    }

    #[test]
    fn a_write_that_panics_or_is_cut_is_logged_too() {
        let (status, panics, lines) = sent(1, async || panic!("this test wants a panic"));
        assert_eq!((status, panics), (Some(500), 1));
        assert!(lines.contains("change=\"unknown\"") && !lines.contains("status="), "{lines}");
        let (status, panics, lines) = sent(1, async || std::future::pending().await);
        assert_eq!((status, panics, lines.lines().count()), (None, 0, 1), "{lines}");
        assert!(lines.contains("change=\"unknown\"") && !lines.contains("status="), "{lines}");
    }

    #[test]
    fn too_many_writes_at_once_are_refused() {
        let (status, _, lines) = sent(0, async || panic!("the handler must not run"));
        assert_eq!((status, lines.as_str()), (Some(503), ""));
    }

    #[test]
    fn an_answer_says_that_its_line_is_lost() {
        let told = |body: &'static str| {
            let runtime = Builder::new_current_thread().build().expect("the runtime starts");
            runtime.block_on(async {
                let answer = with_lost_line((StatusCode::OK, body).into_response()).await;
                let length = answer.headers().get(header::CONTENT_LENGTH).cloned();
                let bytes = to_bytes(answer.into_body(), usize::MAX).await.expect("the body is in memory");
                (length, String::from_utf8(Vec::from(bytes)).expect("JSON is UTF-8"))
            })
        };
        for (body, expected) in [("{}", r#"{"logged":false}"#), ("{\"a\":{}}\n", r#"{"a":{},"logged":false}"#)] {
            assert_eq!(told(body), (None, expected.to_owned()));
        }
    }
}
