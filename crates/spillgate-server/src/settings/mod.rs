//! The settings as plain data, and how they are read from a settings file, flags and the environment.
//!
//! One table (`keys.rs`) defines every key. The reader of the file, the flags, the environment, `--help`, the book and
//! the tests all use this table, so they all know the same keys. Nothing here opens a file.

mod blank;
mod changed;
mod error;
mod keys;
mod resolve;
mod secret;
mod store;
#[cfg(test)]
mod tests;
mod unknown;
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
pub use resolve::{Origin, Resolved, SettingsFile, Sources, resolve};
pub(crate) use secret::masked;
pub use store::{Store, StoreTls, StoreUrl};
pub use values::duration;

/// All settings, after they were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The address of HTTP. `None` switches HTTP off.
    pub http: Option<Listen>,
    /// The address of gRPC (Envoy RLS v3). `None` switches gRPC off.
    pub grpc: Option<Listen>,
    /// The address for operators: metrics, rules, reset. `None` switches the admin listener off.
    pub admin: Option<Listen>,
    /// The file with the bearer token of the admin listener. Without this file, only clients on this machine may use
    /// the routes with the method POST.
    pub admin_token_file: Option<PathBuf>,
    /// The file with the second bearer token of the admin listener, with which a client can only read.
    pub admin_read_token_file: Option<PathBuf>,
    /// Further names of the admin listener, without a port.
    pub admin_hosts: Vec<String>,
    /// Rules files, and folders with rules files.
    pub rules: Vec<PathBuf>,
    /// Whether all rules files behave as in Envoy's reference server (`compat: envoy`).
    pub compat_envoy: bool,
    /// The answer while the shared store fails, for limits without an `on_store_failure` of their own.
    pub on_store_failure: OnStoreFailure,
    /// Whether the server decides and counts, but never refuses.
    pub shadow: bool,
    /// Whether the server refuses descriptors that no rule matches.
    pub deny_unmatched: bool,
    /// The number of worker threads. `None` means one for each core.
    pub workers: Option<usize>,
    /// The filter of the log, in the syntax of `tracing`.
    pub log_level: String,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The store of the counts.
    pub store: Store,
    /// The bounds of the memory store, and its snapshot.
    pub memory: Memory,
    /// The header fields of HTTP answers.
    pub headers: HeaderStyle,
    /// Networks whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// How the sub-request of a proxy becomes descriptors.
    pub forward_auth: ForwardAuth,
    /// Which listeners allow refunds and overrides.
    pub allow: Allow,
    /// What the server remembers of the callers of each limit.
    pub insight: Insight,
    /// Limits on what clients can send and use.
    pub limits: Limits,
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listen {
    /// An IP address and a port; with port 0, the system chooses a port.
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

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// The bounds of the memory store, and its snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// The maximum number of keys that are counted at once.
    pub max_keys: usize,
    /// The maximum number of bytes that sliding window logs, segments, leases and penalties can use together.
    pub max_heap: usize,
    /// What happens to a key that does not fit into the full store. The size of the sketch is not set here.
    pub on_full: OnFull,
    /// The number of bytes of the sketch, if `on_full` is a sketch.
    pub sketch: usize,
    /// The snapshot that a restart reads.
    pub snapshot: Snapshot,
}

/// The file that keeps the counts over a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The path of the file. `None` means that there is no snapshot.
    pub path: Option<PathBuf>,
    /// The time between two writes of the file.
    pub interval: Duration,
}

/// How `/v1/forward-auth` turns a proxy's sub-request into descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The domain of the rules for sub-requests. `None` switches `/v1/forward-auth` off.
    pub domain: Option<String>,
    /// The status of a refusal (nginx wants 403).
    pub deny_status: u16,
    /// The length of an IPv6 prefix, in bits. IPv6 clients whose addresses begin with the same prefix share a counter.
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
    /// The address of the client: the peer, or the address that trusted proxies report.
    ClientIp,
    /// A header field of the sub-request. If the field is missing, the value is empty.
    Header(String),
    /// A fixed text.
    Value(String),
}

/// What the clients of each protocol may send: refunds, and limits of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allow {
    pub grpc: Grants,
    pub http: Grants,
}

/// What the clients of one listener may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grants {
    /// Whether clients may give units back (`is_negative_hits`).
    pub refund: bool,
    /// Whether clients may send a limit of their own (`limit` in a descriptor).
    pub overriding: bool,
}

/// What the server remembers of the callers of each limit, to say what the limits do. The default is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Insight {
    /// The maximum number of callers in the samples of all limits together. 0 means that nothing is remembered.
    pub max_callers: usize,
    /// How callers are shown.
    pub keys: CallerKeys,
}

/// How the callers with the most units are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallerKeys {
    /// They are not shown.
    #[default]
    Off,
    /// By a hash.
    Hashed,
    /// By the beginning of their descriptors.
    Plain,
}

/// Limits on what clients can send and use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of connections of each listener.
    pub connections: usize,
    /// The maximum number of requests in flight on one HTTP/2 connection.
    pub streams: u32,
    /// The maximum number of bytes of unread answers, for all HTTP/2 connections together.
    pub unread: usize,
    /// The maximum number of bytes of a request's body.
    pub body: usize,
    /// The maximum number of descriptors of a request.
    pub descriptors: usize,
    /// The maximum number of entries of a descriptor.
    pub entries: usize,
    /// The maximum number of bytes of an entry's key.
    pub key: usize,
    /// The maximum number of bytes of an entry's value that choose the counter. Further bytes do not change the
    /// counter, but rules match the whole value.
    pub value: usize,
    /// The maximum number of values of one rule that have metrics of their own.
    pub metric_values: usize,
    /// A connection is closed if it has no request for this time.
    pub idle: Duration,
    /// The header of a request must arrive within this time. The body has the same time again.
    pub receive: Duration,
    /// After SIGTERM or SIGINT, the requests in flight must end within this time.
    pub drain: Duration,
    /// The longest life of a reservation over HTTP.
    pub reservation: Duration,
}
