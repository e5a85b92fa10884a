//! Runs a future on a runtime, and ends the runtime without waiting.
//!
//! A runtime that is dropped waits for its lookups of names, and a lookup can take many seconds if no resolver answers.
//! A server that has drained, and a command that has its answer, must not wait for it.

use tokio::runtime::Runtime;

/// Returns the output of `future`. What the runtime still does in the background is left to end alone.
pub(crate) fn block_on<T>(runtime: Runtime, future: impl Future<Output = T>) -> T {
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    output
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_lookup_that_never_ends_is_not_awaited() {
        for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            let runtime = builder.worker_threads(1).build().expect("the runtime starts");
            let (answer, answered) = channel::<()>();
            let (begin, begun) = channel();
            let output = block_on(runtime, async move {
                // A lookup of a name is such a call too.
                drop(tokio::task::spawn_blocking(move || {
                    begin.send(()).expect("the test waits");
                    answered.recv()
                }));
                begun.recv().expect("the call has begun");
                7
            });
            assert_eq!(output, 7);
            drop(answer);
        }
    }
}
