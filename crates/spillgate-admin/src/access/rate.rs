//! The rate limits on the requests to the admin listener, for each address of a client.
//!
//! One client must not use up the server's time for other operators. Each address has a separate limit for each proof
//! of its requests: the write token, the read token, or none. So clients without the right token take nothing from
//! clients that have it, even if all of them come from one address. `GET /metrics` has a limit of its own, so that a
//! browser takes nothing from a Prometheus at the same address.
//!
//! A memory store of spillgate counts the requests. It keeps a bounded number of states. When it is full, further
//! addresses share a sketch.

use std::time::Duration;

use spillgate::{
    Anchor, Binding, Decision, Hit, Key, KeyHasher, MemoryOptions, MemoryStore, OnFull, Op, Quota, Store as _, Time,
    Timing, Wait, network_of,
};
use spillgate_service::Peer;

use super::Proof;

/// A page sends several requests at once when it opens, and a program sends a few requests a second. Both fit into this
/// limit.
const REQUESTS: Quota = Quota::token_bucket(50, Duration::from_secs(1)).burst(200).constant();
const WRONG_TOKENS: Quota = Quota::fixed_window(20, Duration::from_secs(60)).anchor(Anchor::FirstHit).constant();
const WARNINGS: Quota = Quota::fixed_window(1, Duration::from_secs(60)).anchor(Anchor::FirstHit).constant();

/// An address has a few states. Each state needs less than 100 bytes. A state of requests expires at the latest 4
/// seconds after the last request, and a state of wrong tokens 60 seconds after the first wrong token.
const MEMORY: MemoryOptions =
    MemoryOptions { max_keys: 10_000, max_heap_bytes: 1 << 20, on_full: OnFull::Sketch { bytes: 1 << 18 } };

/// An IPv6 client usually has a whole network with a prefix of this many bits. So all addresses of such a network share
/// their limits.
const IPV6_PREFIX: u8 = 64;

#[derive(Debug)]
pub(crate) struct RateLimits {
    store: MemoryStore,
    keys: KeyHasher,
}

impl RateLimits {
    pub(crate) fn new() -> RateLimits {
        RateLimits { store: MemoryStore::new(MEMORY), keys: KeyHasher::random() }
    }

    /// Takes one request of `peer` with this proof. The error is the wait until a request fits.
    pub(crate) fn take(&self, now: Time, peer: Option<Peer>, proof: Proof, is_scrape: bool) -> Result<(), Wait> {
        let class = if is_scrape { "scrape" } else { "request" };
        self.take_one(now, &REQUESTS, (class, proof.as_str(), source(peer)))
    }

    /// Takes one wrong token of `peer`. If `peer` has sent too many wrong tokens, the error is the wait until it may
    /// try again.
    pub(crate) fn take_wrong_token(&self, now: Time, peer: Option<Peer>) -> Result<(), Wait> {
        self.take_one(now, &WRONG_TOKENS, ("wrong token", "", source(peer)))
    }

    /// Returns whether the log may have a warning of this kind now. The answer is true at most once a minute for each
    /// kind.
    pub(crate) fn may_warn(&self, now: Time, kind: &str) -> bool {
        self.take_one(now, &WARNINGS, ("warning", kind, [0; 17])).is_ok()
    }

    fn take_one(&self, now: Time, quota: &Quota, key: impl Key) -> Result<(), Wait> {
        let hit = Hit::new(self.keys.start().key(&key).finish(), quota, Op::take(1), Binding::Enforce);
        let mut decision = [Decision::default()];
        // The memory store never makes a request wait, and a request with one take never fails.
        let _ = self.store.try_decide(Timing::at(now), &[hit], &mut decision);
        if decision[0].allowed { Ok(()) } else { Err(decision[0].retry_after) }
    }
}

/// What shares one set of limits: an IPv4 address, an IPv6 network, or all Unix sockets together.
pub(crate) type Source = [u8; 17];

/// Returns the source to which a client belongs. A client of unknown address belongs to that of the Unix sockets.
pub(crate) fn source(peer: Option<Peer>) -> Source {
    let mut source = [0; 17];
    if let Some(Peer::Tcp(address)) = peer {
        source[0] = 1;
        match network_of(address.ip().to_canonical(), IPV6_PREFIX) {
            std::net::IpAddr::V4(address) => source[1..].copy_from_slice(&address.to_ipv6_mapped().octets()),
            std::net::IpAddr::V6(address) => source[1..].copy_from_slice(&address.octets()),
        }
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Option<Peer> {
        Some(Peer::Tcp(address.parse().expect("it is an address")))
    }

    fn admitted(limits: &RateLimits, at_ms: u64, peer: Option<Peer>, proof: Proof, is_scrape: bool) -> usize {
        let now = Time::EPOCH.after(Duration::from_millis(at_ms));
        (0..1_000).take_while(|_| limits.take(now, peer, proof, is_scrape).is_ok()).count()
    }

    #[test]
    fn each_address_and_each_token_has_its_own_limit() {
        let limits = RateLimits::new();
        let ask = |address: &str, proof, is_scrape| admitted(&limits, 1_000, peer(address), proof, is_scrape);
        assert_eq!(ask("192.0.2.1:1", Proof::None, false), 200);
        assert_eq!(ask("192.0.2.1:2", Proof::None, false), 0, "a port is not an address");
        assert_eq!(ask("[::ffff:192.0.2.1]:3", Proof::None, false), 0);
        assert_eq!(ask("192.0.2.1:1", Proof::None, true), 200, "scrapes have their own limit");
        assert_eq!(ask("192.0.2.1:1", Proof::Read, false), 200);
        assert_eq!(ask("192.0.2.1:1", Proof::Write, false), 200);
        assert_eq!(ask("192.0.2.2:1", Proof::None, false), 200);
        assert_eq!(ask("[2001:db8::1]:1", Proof::None, false), 200);
        assert_eq!(ask("[2001:db8::2:1]:1", Proof::None, false), 0, "one network, one limit");
        assert_eq!(admitted(&limits, 1_000, Some(Peer::Unix), Proof::None, false), 200);
        assert_eq!(admitted(&limits, 1_000, None, Proof::None, false), 0);
        assert_eq!(admitted(&limits, 2_000, peer("192.0.2.1:1"), Proof::None, false), 50);
    }

    #[test]
    fn any_number_of_addresses_takes_bounded_memory_and_all_are_limited() {
        let limits = RateLimits::new();
        let now = Time::EPOCH.after(Duration::from_secs(1));
        for number in 0..100_000_u32 {
            let address = std::net::SocketAddr::from((std::net::Ipv4Addr::from(number), 1));
            let _ = limits.take(now, Some(Peer::Tcp(address)), Proof::None, false);
        }
        assert!(limits.store.len() <= MEMORY.max_keys);
        assert!(admitted(&limits, 1_000, peer("203.0.113.9:1"), Proof::None, false) <= 200);
    }

    #[test]
    fn one_warning_of_a_kind_is_written_a_minute() {
        let limits = RateLimits::new();
        let at = |seconds| Time::EPOCH.after(Duration::from_secs(seconds));
        let may = |seconds, kind| limits.may_warn(at(seconds), kind);
        assert!(may(1, "a") && !may(1, "a") && may(1, "b") && !may(60, "a") && may(61, "a"));
    }

    #[test]
    fn wrong_tokens_are_counted_for_a_minute() {
        let limits = RateLimits::new();
        let take =
            |seconds| limits.take_wrong_token(Time::EPOCH.after(Duration::from_secs(seconds)), peer("192.0.2.1:1"));
        assert_eq!((0..20).filter(|_| take(1).is_ok()).count(), 20);
        assert_eq!(take(31).map_err(|wait| wait.secs_ceil()), Err(Some(30)));
        assert_eq!(take(61), Ok(()));
    }
}
