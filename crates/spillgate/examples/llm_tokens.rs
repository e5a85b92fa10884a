//! Limits the tokens of a language model. The number of tokens is known only after the answer.
//!
//! Run it with `cargo run -p spillgate --example llm_tokens --features tokio`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use spillgate::{Limiter, Quota, Reservations, StoreError};

/// A team may use 10,000 tokens in any minute, and 100,000 tokens in a day.
const PER_MINUTE: Quota = Quota::sliding_window_counter(10_000, Duration::from_secs(60)).constant();
const PER_DAY: Quota = Quota::per_day(100_000).constant();

/// Asks the model. Returns how many tokens it has used, or `None` if the call failed.
async fn ask_the_model(prompt: &str) -> Option<u64> {
    tokio::task::yield_now().await;
    (prompt != "fails").then(|| 500 + prompt.len() as u64)
}

/// Answers a prompt of a team, if the team has tokens left.
async fn answer(tokens: &Reservations, team: &str, prompt: &str) -> Result<(), StoreError> {
    // The most that the model can use: the prompt, and the largest answer that we ask for.
    let estimate = prompt.len() as u64 + 4_000;
    let (decision, reservation) = tokens.reserve(("tokens", team), estimate).await?;
    let Some(mut reservation) = reservation else {
        println!("{team} waits: {} of {} tokens are left", decision.remaining, decision.limit);
        return Ok(());
    };
    match ask_the_model(prompt).await {
        Some(used) => {
            let left = reservation.commit(used).await?.map(|decision| decision.remaining);
            println!("{team} used {used} tokens; left: {left:?}");
        }
        None => {
            // Dropping the reservation would cancel it too.
            reservation.cancel().await?;
            println!("{team} used no tokens");
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), StoreError> {
    let tokens = Reservations::new(Limiter::in_memory(), PER_MINUTE).and(PER_DAY).life(Duration::from_secs(120));
    answer(&tokens, "red", "hello").await?;
    answer(&tokens, "red", "fails").await?;
    // Three prompts come at the same time. The tokens suffice for two estimates.
    let (a, b, c) = tokio::join!(
        answer(&tokens, "red", "one"), //
        answer(&tokens, "red", "two"),
        answer(&tokens, "red", "three"),
    );
    a.and(b).and(c)
}
