//! Several questions at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// What all of `futures` come to, in their order. They are begun in that order too: questions over one connection
/// reach the store so.
pub(super) async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<(Option<F::Output>, Pin<Box<F>>)> = futures.map(|future| (None, Box::pin(future))).collect();
    poll_fn(|cx| {
        let mut waits = false;
        for (output, future) in running.iter_mut().filter(|(output, _)| output.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(done) => *output = Some(done),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    running.into_iter().filter_map(|(output, _)| output).collect()
}

#[cfg(test)]
mod tests {
    use super::all;

    #[tokio::test]
    async fn they_begin_and_answer_in_order_and_wait_together() {
        let barrier = tokio::sync::Barrier::new(3);
        let begun = parking_lot::Mutex::new(Vec::new());
        let one = |number| {
            let (barrier, begun) = (&barrier, &begun);
            async move {
                begun.lock().push(number);
                // Nobody gets on before all have begun.
                barrier.wait().await;
                number * 10
            }
        };
        assert_eq!(all([1, 2, 3].into_iter().map(one)).await, [10, 20, 30]);
        assert_eq!(*begun.lock(), [1, 2, 3]);
    }
}
