//! Each customer has the limit of its plan, and all customers share a limit that protects the service.
//!
//! Run it with `cargo run -p spillgate --example plans_per_user`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use spillgate::{Limiter, Quota, StoreError};

#[derive(Clone, Copy, Debug)]
enum Plan {
    Free,
    Pro,
}

impl Plan {
    /// A quota is a constant, so choosing one costs nothing.
    fn quota(self) -> &'static Quota {
        const FREE: Quota = Quota::per_minute(3).constant();
        const PRO: Quota = Quota::per_minute(300).burst(30).constant();
        match self {
            Plan::Free => &FREE,
            Plan::Pro => &PRO,
        }
    }
}

/// How many requests the whole service can serve.
const CAPACITY: Quota = Quota::per_second(1_000).constant();

/// Takes from the limit of the plan and from the limit of the service. If one of them refuses, nothing is taken from
/// the other.
fn may_pass(limiter: &Limiter, user: u64, plan: Plan) -> Result<bool, StoreError> {
    let hits = [limiter.hit(plan.quota(), ("user", user), 1), limiter.hit(&CAPACITY, "all", 1)];
    let (verdict, [of_plan, _]) = limiter.decide_all_now(hits)?;
    match verdict.allowed {
        true => println!("user {user} ({plan:?}): passes, {} left", of_plan.remaining),
        false => println!("user {user} ({plan:?}): refused, try again in {:?} s", verdict.retry_after.secs_ceil()),
    }
    Ok(verdict.allowed)
}

fn main() -> Result<(), StoreError> {
    let limiter = Limiter::in_memory();
    for _ in 0..4 {
        may_pass(&limiter, 7, Plan::Free)?;
    }
    // User 7 changes to a larger plan. The earlier requests still count, but the new plan allows more requests.
    may_pass(&limiter, 7, Plan::Pro)?;
    may_pass(&limiter, 8, Plan::Free)?;
    Ok(())
}
