//! Gives a client of another service random answers of this service. No answer may cause a panic, or pause the calls
//! for longer than the bound.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::Arbitrary;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use libfuzzer_sys::fuzz_target;
use spillgate::client::FarSide;
use spillgate::{Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, Time};
use tokio::runtime::{Builder, Runtime};

const FIELDS: [&str; 12] = [
    "retry-after",
    "date",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "anthropic-ratelimit-requests-reset",
];

#[derive(Debug, Arbitrary)]
struct Answer {
    status: u8,
    fields: Vec<(u8, Vec<u8>)>,
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("the runtime starts")
});

fuzz_target!(|answers: Vec<Answer>| {
    let clock = ManualClock::at(Time::from_nanos(1_790_000_000_000_000_000));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    let bound = Duration::from_secs(60);
    let api = FarSide::new(limiter, &Quota::per_second(1_000).constant()).longest_pause(bound);
    // After a pause, the client can also have to wait for its slowest pace, a call every ten seconds.
    let longest = bound + Duration::from_secs(12);
    RUNTIME.block_on(async {
        for answer in answers.iter().take(8) {
            clock.advance(longest);
            let turn = api.acquire_within("api", Duration::ZERO).await.expect("the longest pause is over");
            let mut headers = HeaderMap::new();
            for (field, value) in &answer.fields {
                let Ok(value) = HeaderValue::from_bytes(value) else { continue };
                headers.append(HeaderName::from_static(FIELDS[usize::from(*field) % FIELDS.len()]), value);
            }
            let status = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
            turn.answered(status[usize::from(answer.status) % 3], &headers).await.expect("the store answers");
        }
    });
});
