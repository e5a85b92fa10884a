//! Settings as plain data: what a settings file, flags and the environment say together.
//!
//! One table (`keys.rs`) defines every key. It feeds the file's reader, the flags, the environment,
//! `--help` and the tests; nothing here opens a file. A flag beats the environment, the
//! environment beats the file, the file beats the default.

mod changed;
mod error;
mod keys;
mod resolve;
mod secret;
mod store;
#[cfg(test)]
mod tests;
mod values;
mod yaml;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use spillgate::headers::HeaderStyle;
use spillgate::{OnFull, OnStoreFailure};

pub use keys::{KEYS, Key, Shape};
pub(crate) use resolve::shows_secret;
pub use resolve::{Origin, Resolved, SettingsFile, Sources, resolve};
pub(crate) use secret::masked;
pub use store::{Store, StoreTls, StoreUrl};
pub use values::duration;

/// Everything that can be set, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where HTTP is served; `None` is off.
    pub http: Option<Listen>,
    /// Where gRPC (RLS v3) is served.
    pub grpc: Option<Listen>,
    /// Where operators look: metrics, rules, reset.
    pub admin: Option<Listen>,
    /// Holds the bearer token of the admin listener; without one only loopback may write.
    pub admin_token_file: Option<PathBuf>,
    /// Rules files and folders of them.
    pub rules: Vec<PathBuf>,
    /// All rules files have the reference server's habits.
    pub compat_envoy: bool,
    /// What is answered for limits that do not say it while a shared store fails.
    pub on_store_failure: OnStoreFailure,
    /// Judge and count, never refuse.
    pub shadow: bool,
    /// Refuse what no rule matches.
    pub deny_unmatched: bool,
    /// Threads that serve; `None` is one for each core.
    pub workers: Option<usize>,
    /// What is logged, as `tracing` filters say it.
    pub log_level: String,
    /// Lines or JSON.
    pub log_format: LogFormat,
    /// Where state lives.
    pub store: Store,
    /// The memory store's bounds.
    pub memory: Memory,
    /// The header fields of HTTP answers.
    pub headers: HeaderStyle,
    /// Whose X-Forwarded-For is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// How a proxy's sub-request becomes descriptors.
    pub forward_auth: ForwardAuth,
    /// Who may refund or override.
    pub allow: Allow,
    /// What a client can take of the server.
    pub limits: Limits,
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listen {
    /// An IP address and a port; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Bounds of the memory store, and the file that outlives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// The most keys that are counted at once.
    pub max_keys: usize,
    /// The most bytes that logs, segments and leases may take together.
    pub max_heap: usize,
    /// What a new key is told while the store is full.
    pub on_full: OnFull,
    /// What a restart finds.
    pub snapshot: Snapshot,
}

/// The file that keeps what was counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Where it is; `None` keeps nothing.
    pub path: Option<PathBuf>,
    /// How often it is written.
    pub interval: Duration,
}

/// How `/v1/forward-auth` turns a proxy's sub-request into descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The domain whose rules are asked; `None` switches the path off.
    pub domain: Option<String>,
    /// The status of a refusal (nginx wants 403).
    pub deny_status: u16,
    /// IPv6 clients are counted by networks of this many bits.
    pub ipv6_prefix: u8,
    /// One list of entries for each descriptor.
    pub descriptors: Vec<Vec<EntrySource>>,
}

/// One entry of a forward-auth descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntrySource {
    pub key: String,
    pub from: ValueSource,
}

/// Where the value of an entry comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    /// The client's address: the peer, or what trusted proxies say.
    ClientIp,
    /// A header field of the sub-request; without it the value is empty.
    Header(String),
    /// Always the same.
    Value(String),
}

/// Who may mint quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allow {
    pub grpc: Grants,
    pub http: Grants,
}

/// What callers of one listener may do beyond asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grants {
    /// Give units back (`is_negative_hits`).
    pub refund: bool,
    /// Bring a limit of their own (`limit` in a descriptor).
    pub overriding: bool,
}

/// Bounds on what clients can send and hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once on each listener.
    pub connections: usize,
    /// Requests in flight on one HTTP/2 connection.
    pub streams: u32,
    /// Bytes of answers that clients have not read, of all HTTP/2 connections together.
    pub unread: usize,
    /// Bytes of a request's body.
    pub body: usize,
    /// Descriptors of a request.
    pub descriptors: usize,
    /// Entries of a descriptor.
    pub entries: usize,
    /// Bytes of an entry's key.
    pub key: usize,
    /// Bytes of an entry's value.
    pub value: usize,
    /// Values of one rule that have metrics of their own.
    pub metric_values: usize,
    /// A connection that says nothing for this long is closed.
    pub idle: Duration,
    /// A request's header and body must be here within this time.
    pub receive: Duration,
    /// After SIGTERM, requests in flight have this long to end.
    pub drain: Duration,
}
