//! Runs the requests of an HTTP/2 connection inside the connection's own task.
//!
//! Hyper hands each request to an executor. Spawning them costs a task each; running them at once
//! would flush each answer by itself, since hyper flushes between two requests. Here they
//! wait until the connection has read all there is, run in a row, and leave in one write.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;
use hyper_util::server::graceful::GracefulConnection;
use parking_lot::Mutex;

use super::connection::Connection;

/// One request. Its future is large, so it is boxed as hyper made it and never wrapped.
struct Request {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    open: Open,
}

/// The requests that one connection has read and not yet run.
#[derive(Clone, Default)]
pub(super) struct Batch(Arc<Waiting>);

#[derive(Default)]
struct Waiting {
    queue: Mutex<Vec<Request>>,
    open: AtomicUsize,
}

/// One request counted as open.
struct Open(Arc<Waiting>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<F> Executor<F> for Batch
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, request: F) {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(Arc::clone(&self.0));
        self.0.queue.lock().push(Request { future: Box::pin(request), open });
    }
}

/// A connection of hyper with the batch that executes its requests.
pub(super) struct Batched<'c, C> {
    batch: Batch,
    connection: Pin<&'c mut C>,
}

impl<'c, C> Batched<'c, C> {
    pub(super) fn new(batch: Batch, connection: Pin<&'c mut C>) -> Batched<'c, C> {
        Batched { batch, connection }
    }
}

impl<C: GracefulConnection> Connection for Batched<'_, C> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.batch.poll(self.connection.as_mut(), cx).map(|ended| ended.is_ok())
    }

    fn is_busy(&self) -> bool {
        self.batch.0.open.load(Ordering::Relaxed) > 0
    }

    fn graceful_shutdown(&mut self) {
        self.connection.as_mut().graceful_shutdown();
    }
}

impl Batch {
    /// Lets the connection read, runs what it read, and lets it write, until there is nothing more to read.
    fn poll<C: Future>(&self, mut connection: Pin<&mut C>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let mut requests = Vec::new();
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                // Nobody waits for these any more, and they hold what holds them.
                drop(mem::take(&mut *self.0.queue.lock()));
                return Poll::Ready(ended);
            }
            mem::swap(&mut requests, &mut *self.0.queue.lock());
            if requests.is_empty() {
                // Keeps the room that the queue had grown to.
                mem::swap(&mut requests, &mut *self.0.queue.lock());
                return Poll::Pending;
            }
            for mut request in requests.drain(..) {
                // Most are done at once. The others go on as tasks, whose first poll leaves their own waker.
                if request.future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                    tokio::spawn(async move {
                        let Request { future, open } = request;
                        future.await;
                        drop(open);
                    });
                }
            }
        }
    }
}
