//! The settings as plain data, and how they are read from a settings file, flags and the environment.
//!
//! One table (`keys.rs`) defines every key. The reader of the file, the flags, the environment, `--help`, the book and
//! the tests all use this table, so they all know the same keys. Nothing here opens a file.

mod changed;
mod error;
mod files;
mod keys;
mod parts;
mod regions;
mod resolve;
mod secret;
mod store;
#[cfg(test)]
mod tests;
mod tls;
mod unknown;
mod values;
mod yaml;

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use spillgate::headers::HeaderStyle;
use spillgate::{OnFull, OnStoreFailure};
use spillgate_http::{Browsers, ForwardAuth};
use spillgate_service::{Bounds, Grants, Insight};

use crate::listener::{self, Listen};

pub use keys::{KEYS, Key, Shape};
pub use regions::{PeerLogin, PeerSettings, RegionSettings};
pub use resolve::{Origin, Resolved, SettingsFile, Sources, resolve};
pub(crate) use secret::{has_store_password, masked, masked_message};
pub use store::{Store, StoreTls, StoreUrl};
pub use tls::ListenerTls;
pub(crate) use unknown::{ADMIN_TLS_VARIABLES, ADMIN_URL_VARIABLE};

/// All settings, after they were checked.
///
/// `default()` is only the blank to which `resolve` applies the defaults of [`KEYS`]: a server with it would listen nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// The address of HTTP. `None` switches HTTP off.
    pub http: Option<Listen>,
    /// Which web pages may send requests to the HTTP listener, and by which names.
    pub browsers: Browsers,
    /// The address of gRPC (Envoy RLS v3). `None` switches gRPC off.
    pub grpc: Option<Listen>,
    /// The address for operators: metrics, rules, reset. `None` switches the admin listener off.
    pub admin: Option<Listen>,
    /// The address for probes and Prometheus: health and metrics, without a token. `None` switches the health listener off.
    pub health: Option<Listen>,
    /// The file with the bearer token of the admin listener. Without this file, only clients on this machine may use
    /// the routes with the method POST.
    pub admin_token_file: Option<PathBuf>,
    /// The file with the second bearer token of the admin listener, with which a client can only read.
    pub admin_read_token_file: Option<PathBuf>,
    /// Further names of the admin listener, without a port.
    pub admin_hosts: Vec<String>,
    /// TLS on the listeners.
    pub tls: ListenerTls,
    /// Rules files, and folders with rules files.
    pub rules: Vec<PathBuf>,
    /// How the server sees that a file has changed.
    pub watch: Watch,
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
    /// The stores of other regions.
    pub regions: RegionSettings,
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

impl Settings {
    /// Returns the address of each listener, with the name of its setting. `None` is a listener that is off.
    #[must_use]
    pub const fn listeners(&self) -> [(&'static str, Option<&Listen>); 4] {
        let [http, grpc] = self.listeners_for_clients();
        [http, grpc, ("admin", self.admin.as_ref()), ("health", self.health.as_ref())]
    }

    /// Returns those of the [`listeners`](Settings::listeners) that answer requests for decisions.
    #[must_use]
    pub const fn listeners_for_clients(&self) -> [(&'static str, Option<&Listen>); 2] {
        [("http", self.http.as_ref()), ("grpc", self.grpc.as_ref())]
    }
}

/// How the server sees that one of its files has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Watch {
    /// It watches the folders of the files. Where it cannot, it polls.
    #[default]
    On,
    /// It reads all files each second.
    Poll,
    /// It does not see it. A signal or a request says so.
    Off,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The bounds of the memory store, and its snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The path of the file. `None` means that there is no snapshot.
    pub path: Option<PathBuf>,
    /// The time between two writes of the file.
    pub interval: Duration,
}

/// What the clients of each protocol may send: refunds, and limits of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allow {
    pub grpc: Grants,
    pub http: Grants,
}

/// Limits on what clients can send and use. The parts of the server define most of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// What the connections of clients can use.
    pub clients: listener::Limits,
    /// The maximum number of bytes of a request's body.
    pub body: usize,
    /// How large each part of a request can be.
    pub bounds: Bounds,
    /// The maximum number of values of one rule that have metrics of their own.
    pub metric_values: usize,
    /// The longest life of a reservation over HTTP.
    pub reservation: Duration,
    /// How long the server still accepts connections after SIGTERM.
    pub drain_delay: Duration,
}
