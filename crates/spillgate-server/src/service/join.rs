//! Several questions at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// What all of `futures` come to, in their order. They are begun in that order too: questions over one connection
/// reach the store so.
pub(super) async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (output, future) in outputs.iter_mut().zip(&mut running).filter(|(output, _)| output.is_none()) {
            if let Poll::Ready(done) = future.as_mut().poll(cx) {
                *output = Some(done);
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
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
