//! The table of all settings.
//!
//! It is the one definition behind the file, the flags, the environment, `--help` and the tables of the book.

use std::time::Duration;

use spillgate::headers::HeaderStyle;
use spillgate::{OnFull, OnStoreFailure};
use spillgate_redis::LogForm;

use super::error::Wrong;
use super::values::Value;
use super::{LogFormat, Settings, StoreUrl};

/// How a value is written in a flag or a variable. In a file it is YAML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One value.
    One,
    /// True or false. The flag without a value means true.
    Switch,
    /// Values with commas between. The flag can be repeated.
    List,
    /// YAML, as in a file.
    Yaml,
}

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// The key as in a file, with groups joined by dots: `limits.body`.
    pub path: &'static str,
    pub shape: Shape,
    /// The name of the value in `--help`.
    pub value: &'static str,
    /// The default as text. Empty if the setting has no default.
    pub default: &'static str,
    pub help: &'static str,
    pub(super) apply: fn(&mut Settings, &Value<'_>) -> Result<(), Wrong>,
}

impl Key {
    /// The flag without its dashes: `limits-body`.
    #[must_use]
    pub fn flag(&self) -> String {
        match self.path {
            "store.url" => "store".to_owned(),
            path => path.replace(['.', '_'], "-"),
        }
    }

    /// The environment variable: `SPILLGATE_LIMITS_BODY`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("SPILLGATE_{}", self.flag().replace('-', "_").to_ascii_uppercase())
    }
}

macro_rules! key {
    ($path:literal, $shape:ident $value:literal, $default:literal, $help:literal, |$s:ident, $v:ident| $apply:expr) => {
        Key {
            path: $path,
            shape: Shape::$shape,
            value: $value,
            default: $default,
            help: $help,
            apply: |$s, $v| {
                $apply;
                Ok(())
            },
        }
    };
}

/// Every key, in the order of `--help`.
pub const KEYS: &[Key] = &[
    key!("http", One "ADDRESS", "0.0.0.0:8080",
        "Address of HTTP: IP:PORT, unix:/path or off",
        |s, v| s.http = v.listen()?),
    key!("grpc", One "ADDRESS", "0.0.0.0:8081",
        "Address of gRPC (Envoy RLS v3): IP:PORT, unix:/path or off",
        |s, v| s.grpc = v.listen()?),
    key!("admin", One "ADDRESS", "127.0.0.1:6070",
        "Address of /metrics, /rules, /reset, /healthz and /readyz: IP:PORT, unix:/path or off",
        |s, v| s.admin = v.listen()?),
    key!("admin_token_file", One "FILE", "",
        "File with the bearer token of the admin listener, needed for /metrics too; without it only loopback may write",
        |s, v| s.admin_token_file = Some(v.path_buf()?)),
    key!("rules", List "PATHS", "",
        "Rules files, or folders of *.yaml and *.yml, besides those given as arguments",
        |s, v| s.rules = v.items()?.iter().map(Value::path_buf).collect::<Result<_, _>>()?),
    key!("compat", One "SERVER", "off",
        "envoy makes all rules files behave as in Envoy's reference server, as `compat: envoy` in each file does: each descriptor \
         is charged alone and in order, refused hits are charged, the first wildcard in the file wins; or off",
        |s, v| s.compat_envoy = v.word(&[("off", false), ("envoy", true)])?),
    key!("on_store_failure", One "POLICY", "local",
        "Answer while the shared store fails, for limits without an on_store_failure of their own and limits in a call: local \
         (each server admits its part of the limit), allow, deny or error",
        |s, v| s.on_store_failure = v.word(&OnStoreFailure::ALL.map(|policy| (policy.as_str(), policy)))?),
    key!("shadow", Switch "BOOL", "false",
        "Decide and count every request, but refuse none",
        |s, v| s.shadow = v.bool()?),
    key!("unmatched", One "ANSWER", "allow",
        "Answer to a descriptor that no rule matches or whose domain is unknown: allow or deny",
        |s, v| s.deny_unmatched = v.word(&[("allow", false), ("deny", true)])?),
    key!("workers", One "COUNT", "auto",
        "Worker threads; auto is one for each core",
        |s, v| s.workers = v.count_or("auto", 1..=1024)?.map(as_usize)),
    key!("log_level", One "FILTER", "info",
        "What is logged: error, warn, info, debug (each request, at most 100 a second) or trace. A filter such as debug,h2=info \
         sets the level of libraries too. The library h2 logs only errors unless the filter names it, because clients can \
         cause its warnings at will",
        |s, v| s.log_level = v.log_filter()?),
    key!("log_format", One "FORMAT", "text",
        "Form of log lines on stderr: text or json",
        |s, v| s.log_format = v.word(&[("text", LogFormat::Text), ("json", LogFormat::Json)])?),
    key!("store.url", One "URL", "memory",
        "Where counts are stored: memory, redis://HOST:PORT, rediss:// (TLS; valkey:// and valkeys:// mean the same), \
         redis-cluster://HOST:PORT,HOST:PORT, redis-sentinel://HOST:PORT,HOST:PORT/NAME or unix:///path",
        |s, v| s.store.url = StoreUrl::read(v)?),
    key!("store.deadline", One "DURATION", "10ms",
        "Time for a decision of the shared store, 1m at most. After it, each limit is answered by its on_store_failure. gRPC \
         callers with a shorter timeout are answered 4ms before that timeout",
        |s, v| s.store.deadline = v.duration_within(Duration::from_micros(100)..=Duration::from_secs(60))?),
    key!("store.expected_nodes", One "COUNT", "",
        "Number of servers that share the store. While the store fails, each admits its part of a limit with \
         on_store_failure: local, which is the default. Without this setting, each then admits the whole of a limit that \
         comes with a call",
        |s, v| s.store.expected_nodes = u32::try_from(v.count(1..=100_000)?).ok()),
    key!("store.key_secret_file", One "FILE", "",
        "File with 32 hexadecimal digits (openssl rand -hex 16), the same for all servers. Keys in the store are hashed with \
         it. Without it, anyone who can read the store can guess which keys are counted",
        |s, v| s.store.key_secret_file = Some(v.path_buf()?)),
    key!("store.user", One "NAME", "",
        "User of the store, if the URL has none",
        |s, v| s.store.user = Some(v.string()?)),
    key!("store.password_file", One "FILE", "",
        "File with the password of the store, instead of a password in the URL",
        |s, v| s.store.password_file = Some(v.path_buf()?)),
    key!("store.sentinel_user", One "NAME", "",
        "User of the sentinels, if they need one; store.user is for the store only",
        |s, v| s.store.sentinel_user = Some(v.string()?)),
    key!("store.sentinel_password_file", One "FILE", "",
        "File with the password of the sentinels",
        |s, v| s.store.sentinel_password_file = Some(v.path_buf()?)),
    key!("store.tls.ca", One "FILE", "",
        "Certificates (PEM) of the authorities that sign the store's certificate, or that certificate itself; without it, those of the system",
        |s, v| s.store.tls.ca = Some(v.path_buf()?)),
    key!("store.tls.cert", One "FILE", "",
        "Client certificate (PEM), if the store needs one",
        |s, v| s.store.tls.cert = Some(v.path_buf()?)),
    key!("store.tls.key", One "FILE", "",
        "Key of the client certificate (PEM)",
        |s, v| s.store.tls.key = Some(v.path_buf()?)),
    key!("store.tls.server_name", One "NAME", "",
        "Name that the store's certificate must have, if that is not the host in the URL",
        |s, v| s.store.tls.server_name = Some(v.string()?)),
    key!("store.tls.skip_name_check", Switch "BOOL", "false",
        "Accept a certificate with another name. Then any machine with a certificate of the same authority can impersonate the store",
        |s, v| s.store.tls.skip_name_check = v.bool()?),
    key!("store.connections", One "COUNT", "auto",
        "Connections to each server of the store, in pairs, shared by all requests; auto is a pair for each worker. One more \
         pair is used for health checks",
        |s, v| s.store.connections = v.count_or("auto", 1..=1024)?.map(as_usize)),
    key!("store.max_in_flight", One "COUNT", "4096",
        "Most requests that wait for the store at once; further requests are answered by on_store_failure",
        |s, v| s.store.max_in_flight = as_usize(v.count(1..=1_000_000)?)),
    key!("store.scripts", One "ON|OFF", "on",
        "off if scripts are forbidden: then only fixed windows work, with a weaker bound",
        |s, v| s.store.scripts = v.bool()?),
    key!("store.log", One "FORM", "packed",
        "How a sliding_window_log is stored: packed, or zset, which other tools can read but which needs ten times the memory",
        |s, v| s.store.log = v.word(&[("packed", LogForm::Packed), ("zset", LogForm::Zset)])?),
    key!("store.deny_cache", One "COUNT|off", "65536",
        "States kept to refuse requests without asking the store, as long as the refusal still holds",
        |s, v| s.store.deny_cache = v.count_or("off", 1..=10_000_000)?.map_or(0, as_usize)),
    key!("store.deny_cache_max_age", One "DURATION", "1s",
        "Longest time that a refusal is repeated (in a cluster 100ms). After it, the takes, resets and refunds of other servers are seen",
        |s, v| s.store.deny_cache_max_age = v.duration_from(Duration::from_millis(1))?),
    key!("memory.max_keys", One "COUNT", "10M",
        "Most keys that are counted at once",
        |s, v| s.memory.max_keys = as_usize(v.count(1..=10_000_000_000)?)),
    key!("memory.max_heap", One "SIZE", "1GiB",
        "Most bytes for logs, segments and leases together",
        |s, v| s.memory.max_heap = v.size(1 << 16..=1 << 50)?),
    key!("memory.on_full", One "ANSWER", "deny",
        "Answer to a new key while the store is full: deny or allow",
        |s, v| s.memory.on_full = v.word(&[("deny", OnFull::Deny), ("allow", OnFull::Allow)])?),
    key!("memory.snapshot.path", One "FILE", "",
        "File that keeps the counts over a restart, written at intervals and at the end. Without it, a restart loses all \
         counts",
        |s, v| s.memory.snapshot.path = Some(v.path_buf()?)),
    key!("memory.snapshot.interval", One "DURATION", "30s",
        "Time between snapshots, 100ms at least. A crash loses the counts since the last snapshot",
        |s, v| s.memory.snapshot.interval = v.duration_from(Duration::from_millis(100))?),
    key!("headers", One "STYLE", "draft-11",
    "Header fields of HTTP answers: draft-11, draft-06, x-ratelimit or off",
    |s, v| {
        s.headers = v.word(&HeaderStyle::ALL.map(|style| (style.as_str(), style)))?;
    }),
    key!("trusted_proxies", List "NETWORKS", "[]",
        "Networks whose X-Forwarded-For is trusted: 10.0.0.0/8",
        |s, v| s.trusted_proxies = v.items()?.iter().map(Value::network).collect::<Result<_, _>>()?),
    key!("forward_auth.domain", One "NAME", "",
        "Domain of the rules for /v1/forward-auth",
        |s, v| s.forward_auth.domain = Some(v.string()?)),
    key!("forward_auth.deny_status", One "STATUS", "429",
        "Status of a forward-auth refusal (nginx needs 403)",
        |s, v| s.forward_auth.deny_status = u16::try_from(v.count(400..=599)?).unwrap_or(429)),
    key!("forward_auth.ipv6_prefix", One "BITS", "64",
        "IPv6 clients are counted by network, with a prefix of this many bits",
        |s, v| s.forward_auth.ipv6_prefix = u8::try_from(v.count(1..=128)?).unwrap_or(64)),
    key!("forward_auth.descriptors", Yaml "YAML", "[]",
        "Descriptors of a forward-auth request: [[{key: remote_address, from: client_ip}]]; \
         from is client_ip, header:NAME (empty if the header is missing) or value:TEXT",
        |s, v| s.forward_auth.descriptors = v.descriptors()?),
    key!("allow.grpc", List "GRANTS", "override",
        "What gRPC clients may do besides asking: override, refund",
        |s, v| s.allow.grpc = v.grants()?),
    key!("allow.http", List "GRANTS", "[]",
        "What HTTP clients may do besides asking: override, refund",
        |s, v| s.allow.http = v.grants()?),
    key!("limits.connections", One "COUNT", "10000",
        "Most connections of each listener",
        |s, v| s.limits.connections = as_usize(v.count(1..=10_000_000)?)),
    key!("limits.streams", One "COUNT", "1024",
        "Most requests in flight on one HTTP/2 connection, 1024 at most",
        |s, v| s.limits.streams = u32::try_from(v.count(1..=1024)?).unwrap_or(1024)),
    key!("limits.unread", One "SIZE", "256MiB",
        "Most bytes of unread answers for all HTTP/2 connections together, besides 32 KiB for each connection. One connection \
         has 4 MiB at most. At the limit, further requests wait until their client has read, or are refused",
        |s, v| s.limits.unread = v.size(0..=1 << 40)?),
    key!("limits.body", One "SIZE", "64KiB",
        "Most bytes of a request's body",
        |s, v| s.limits.body = v.size(64..=64 << 20)?),
    key!("limits.descriptors", One "COUNT", "32",
        "Most descriptors of a request",
        |s, v| s.limits.descriptors = as_usize(v.count(1..=256)?)),
    key!("limits.entries", One "COUNT", "16",
        "Most entries of a descriptor",
        |s, v| s.limits.entries = as_usize(v.count(1..=256)?)),
    key!("limits.key", One "SIZE", "256",
        "Most bytes of an entry's key",
        |s, v| s.limits.key = v.size(1..=1 << 16)?),
    key!("limits.value", One "SIZE", "1024",
        "Bytes of an entry's value that are counted; rules match the whole value",
        |s, v| s.limits.value = v.size(1..=1 << 16)?),
    key!("limits.metric_values", One "COUNT", "1000",
        "Most values of one rule with detailed_metric or value_to_metric that have metrics of their own, four series each. \
         Further values count under the name of the rule. A label shows the first 128 bytes of a value",
        |s, v| s.limits.metric_values = as_usize(v.count(0..=1_000_000)?)),
    key!("limits.idle", One "DURATION", "5m",
        "A connection without a request for this long is closed",
        |s, v| s.limits.idle = v.duration()?),
    key!("limits.receive", One "DURATION", "10s",
        "The header and body of a request must arrive within this time",
        |s, v| s.limits.receive = v.duration()?),
    key!("limits.drain", One "DURATION", "30s",
        "Time for requests in flight to end after SIGTERM or SIGINT",
        |s, v| s.limits.drain = v.duration()?),
];

fn as_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
