//! Wrong passwords are limited, for each account and for each network. A correct password costs nothing.
//!
//! Run it with `cargo run -p spillgate --example login_guard`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::IpAddr;
use std::time::Duration;

use spillgate::{Limiter, Quota, StoreError, network_of};

/// Five wrong passwords for an account in any ten minutes. Then the account is locked for ten minutes.
const PER_ACCOUNT: Quota =
    Quota::sliding_window_log(5, Duration::from_secs(600)).penalty(Duration::from_secs(600)).constant();
/// Twenty wrong passwords from a network in any hour, whichever accounts they are for.
const PER_NETWORK: Quota = Quota::sliding_window_log(20, Duration::from_secs(3600)).constant();

#[derive(Debug, PartialEq)]
enum Login {
    Welcome,
    WrongPassword,
    TryLater { seconds: Option<u64> },
}

fn login(limiter: &Limiter, account: &str, from: IpAddr, is_right: impl Fn() -> bool) -> Result<Login, StoreError> {
    // The attempt is charged before the password is checked. So even a thousand attempts at the same time cannot exceed
    // the limit.
    let network = network_of(from, 64); // an IPv6 client usually has a whole /64 network
    let hits = [limiter.hit(&PER_ACCOUNT, ("account", account), 1), limiter.hit(&PER_NETWORK, ("network", network), 1)];
    let (verdict, decisions) = limiter.decide_all_now(hits)?;
    if !verdict.allowed {
        return Ok(Login::TryLater { seconds: verdict.retry_after.secs_ceil() });
    }
    if !is_right() {
        return Ok(Login::WrongPassword);
    }
    // Both units were taken before the check, so they are given back.
    limiter.refund_now(&PER_ACCOUNT, ("account", account), 1, decisions[0].receipt);
    limiter.refund_now(&PER_NETWORK, ("network", network), 1, decisions[1].receipt);
    Ok(Login::Welcome)
}

fn main() -> Result<(), StoreError> {
    let limiter = Limiter::in_memory();
    let address = IpAddr::from([198, 51, 100, 7]);
    assert!((0..100).all(|_| login(&limiter, "ann", address, || true) == Ok(Login::Welcome)));
    for attempt in 1..=6 {
        println!("attempt {attempt}: {:?}", login(&limiter, "ann", address, || false)?);
    }
    println!("the right password, too late: {:?}", login(&limiter, "ann", address, || true)?);
    println!("another account: {:?}", login(&limiter, "bob", address, || true)?);
    let attempts = (0..100).map(|number| {
        let address = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, number]);
        login(&limiter, &format!("user-{number}"), address, || false)
    });
    let tried = attempts.filter(|attempt| *attempt == Ok(Login::WrongPassword)).count();
    println!("a client with 100 addresses of one network tried {tried} passwords");
    Ok(())
}
