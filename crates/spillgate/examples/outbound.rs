//! Keeps the limit of an API that this program calls: eight tasks share ten calls a second.
//!
//! Run it with `cargo run -p spillgate --example outbound --features pace`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]
#![allow(clippy::disallowed_methods, reason = "this example measures real time")]

use std::time::{Duration, Instant};

use spillgate::pace::{PaceError, Pacer};
use spillgate::{Limiter, Quota};

/// One call every 100 ms.
const PER_SECOND: Quota = Quota::leaky_bucket(10, Duration::from_secs(1)).queue(1_000).constant();
const PER_HOUR: Quota = Quota::per_hour(1_000).constant();
const API: &str = "api.example.com";

async fn call(pacer: &Pacer, task: usize) -> Result<(), PaceError> {
    pacer.acquire(API).await?;
    // Call the API here.
    println!("task {task} calls");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), PaceError> {
    let pacer = Pacer::new(Limiter::in_memory(), PER_SECOND).and(PER_HOUR);
    let start = Instant::now();
    let tasks: Vec<_> = (1..=8)
        .map(|task| {
            let pacer = pacer.clone();
            tokio::spawn(async move { call(&pacer, task).await })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|_| PaceError::Stopped)??;
    }
    println!("eight calls took at least 0.7 s: {}", start.elapsed() >= Duration::from_millis(700));

    // This caller waits for at most 10 ms, but its turn would come in about 0.1 s.
    match pacer.acquire_within(API, Duration::from_millis(10)).await {
        Err(PaceError::TooLate { wait: Some(_) }) => println!("a caller with 10 ms learns at once that it is too late"),
        other => println!("{other:?}"),
    }
    Ok(())
}
