//! Wrong passwords are limited, for each account and for each address. A correct password costs nothing.
//!
//! Run it with `cargo run -p spillgate --example login_guard`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use spillgate::{Limiter, Quota, StoreError};

/// Five wrong passwords for an account in ten minutes. Then the account is locked for ten minutes.
const PER_ACCOUNT: Quota =
    Quota::fixed_window(5, Duration::from_secs(600)).penalty(Duration::from_secs(600)).constant();
/// Twenty wrong passwords from an address in an hour, for any accounts.
const PER_ADDRESS: Quota = Quota::fixed_window(20, Duration::from_secs(3600)).constant();

#[derive(Debug, PartialEq)]
enum Login {
    Welcome,
    WrongPassword,
    TryLater { seconds: Option<u64> },
}

fn login(limiter: &Limiter, account: &str, from: IpAddr, is_right: impl Fn() -> bool) -> Result<Login, StoreError> {
    // The attempt is charged before the password is checked. So a thousand attempts at the same time cannot exceed
    // the limit.
    let hits = [limiter.hit(&PER_ACCOUNT, ("account", account), 1), limiter.hit(&PER_ADDRESS, ("address", from), 1)];
    let (verdict, decisions) = limiter.decide_all_now(hits)?;
    if !verdict.allowed {
        return Ok(Login::TryLater { seconds: verdict.retry_after.secs_ceil() });
    }
    if !is_right() {
        return Ok(Login::WrongPassword);
    }
    // A correct password costs nothing, so both units are given back.
    limiter.refund_now(&PER_ACCOUNT, ("account", account), 1, decisions[0].receipt);
    limiter.refund_now(&PER_ADDRESS, ("address", from), 1, decisions[1].receipt);
    Ok(Login::Welcome)
}

fn main() -> Result<(), StoreError> {
    let limiter = Limiter::in_memory();
    let address = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
    for _ in 0..100 {
        assert_eq!(login(&limiter, "ann", address, || true)?, Login::Welcome);
    }
    for attempt in 1..=6 {
        println!("attempt {attempt}: {:?}", login(&limiter, "ann", address, || false)?);
    }
    println!("the right password, too late: {:?}", login(&limiter, "ann", address, || true)?);
    println!("another account: {:?}", login(&limiter, "bob", address, || true)?);
    Ok(())
}
