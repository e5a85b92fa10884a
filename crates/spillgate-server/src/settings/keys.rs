//! The table of all keys: the one definition behind the file, the flags, the environment and `--help`.

use std::time::Duration;

use spillgate::headers::HeaderStyle;
use spillgate::{OnFull, OnStoreFailure};
use spillgate_redis::LogForm;

use super::values::Value;
use super::yaml::Wrong;
use super::{LogFormat, Settings, StoreUrl};

/// How a flag or a variable spells the value that a file writes as YAML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One value.
    One,
    /// True or false; the flag alone means true.
    Switch,
    /// Values with commas between; the flag can be repeated.
    List,
    /// YAML, as in a file.
    Yaml,
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// As in a file, groups joined by dots: `limits.body`.
    pub path: &'static str,
    pub shape: Shape,
    /// What stands for the value in `--help`.
    pub value: &'static str,
    /// As one would write it; empty where there is none.
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
        "Where HTTP is served: IP:PORT, unix:/path or off",
        |s, v| s.http = v.listen()?),
    key!("grpc", One "ADDRESS", "0.0.0.0:8081",
        "Where gRPC (Envoy RLS v3) is served: IP:PORT, unix:/path or off",
        |s, v| s.grpc = v.listen()?),
    key!("admin", One "ADDRESS", "127.0.0.1:6070",
        "Where /metrics, /rules and /reset are served, /healthz and /readyz too: IP:PORT, unix:/path or off",
        |s, v| s.admin = v.listen()?),
    key!("admin_token_file", One "FILE", "",
        "File that holds the admin listener's bearer token, which /metrics wants too; without one only loopback may write",
        |s, v| s.admin_token_file = Some(v.path_buf()?)),
    key!("rules", List "PATHS", "",
        "Rules files, or folders of *.yaml and *.yml, besides those given as arguments",
        |s, v| s.rules = v.items()?.iter().map(Value::path_buf).collect::<Result<_, _>>()?),
    key!("compat", One "SERVER", "off",
        "envoy gives all rules files the reference server's habits, as `compat: envoy` in each does: descriptors charged \
         alone and in order, refused hits too, first-declared wildcard; or off",
        |s, v| s.compat_envoy = v.word(&[("off", false), ("envoy", true)])?),
    key!("on_store_failure", One "POLICY", "local",
        "What is answered for a limit without an on_store_failure of its own while the shared store does not decide: local \
         (each server admits its part of the limit), allow, deny or error; limits that come with a call too",
        |s, v| s.on_store_failure = v.word(&OnStoreFailure::ALL.map(|policy| (policy.as_str(), policy)))?),
    key!("shadow", Switch "BOOL", "false",
        "Judge and count every request, but refuse none",
        |s, v| s.shadow = v.bool()?),
    key!("unmatched", One "ANSWER", "allow",
        "The answer to a descriptor that no rule matches, also of an unknown domain: allow or deny",
        |s, v| s.deny_unmatched = v.word(&[("allow", false), ("deny", true)])?),
    key!("workers", One "COUNT", "auto",
        "Threads that serve; auto is one for each core",
        |s, v| s.workers = v.count_or("auto", 1..=1024)?.map(as_usize)),
    key!("log_level", One "FILTER", "info",
        "What is logged: error, warn, info, debug (each request, at most 100 a second), trace, or a filter such as \
         debug,h2=info, which also says how much of libraries is logged; of h2, whose warnings clients cause at will, only \
         errors unless the filter names it",
        |s, v| s.log_level = v.log_filter()?),
    key!("log_format", One "FORMAT", "text",
        "How log lines are written to stderr: text or json",
        |s, v| s.log_format = v.word(&[("text", LogFormat::Text), ("json", LogFormat::Json)])?),
    key!("store.url", One "URL", "memory",
        "Where state lives: memory, redis://HOST:PORT, rediss:// (TLS; valkey:// and valkeys:// say the same), \
         redis-cluster://HOST:PORT,HOST:PORT, redis-sentinel://HOST:PORT,HOST:PORT/NAME or unix:///path",
        |s, v| s.store.url = StoreUrl::read(v)?),
    key!("store.deadline", One "DURATION", "10ms",
        "A shared store that has not decided within this time, 1m at most, is left to each limit's on_store_failure; \
         gRPC callers with a shorter timeout are answered 3ms before it",
        |s, v| s.store.deadline = v.duration_within(Duration::from_micros(100)..=Duration::from_secs(60))?),
    key!("store.expected_nodes", One "COUNT", "",
        "Servers that share the store: each admits this part of a limit while the store cannot be reached \
         (on_store_failure: local, which is what limits have unless they or the settings say otherwise); without it a limit that \
         comes with a call is then counted whole on each",
        |s, v| s.store.expected_nodes = u32::try_from(v.count(1..=100_000)?).ok()),
    key!("store.key_secret_file", One "FILE", "",
        "File with 32 hexadecimal digits (openssl rand -hex 16), the same for all servers: keys in the store \
         are hashed with it; without one everybody can tell which keys are counted",
        |s, v| s.store.key_secret_file = Some(v.path_buf()?)),
    key!("store.user", One "NAME", "",
        "Who logs in to the store, where the URL does not say",
        |s, v| s.store.user = Some(v.string()?)),
    key!("store.password_file", One "FILE", "",
        "File with the password to log in with, so that it need not stand in the URL",
        |s, v| s.store.password_file = Some(v.path_buf()?)),
    key!("store.sentinel_user", One "NAME", "",
        "Who logs in to the sentinels, where they want a user; the other user is the store's",
        |s, v| s.store.sentinel_user = Some(v.string()?)),
    key!("store.sentinel_password_file", One "FILE", "",
        "File with the sentinels' password",
        |s, v| s.store.sentinel_password_file = Some(v.path_buf()?)),
    key!("store.tls.ca", One "FILE", "",
        "Certificates (PEM) of those who vouch for the store, or the store's own; without one, the system's",
        |s, v| s.store.tls.ca = Some(v.path_buf()?)),
    key!("store.tls.cert", One "FILE", "",
        "Our certificate (PEM), where the store wants one",
        |s, v| s.store.tls.cert = Some(v.path_buf()?)),
    key!("store.tls.key", One "FILE", "",
        "The key of our certificate (PEM)",
        |s, v| s.store.tls.key = Some(v.path_buf()?)),
    key!("store.tls.server_name", One "NAME", "",
        "What the store's certificate has to name, where that is not its host",
        |s, v| s.store.tls.server_name = Some(v.string()?)),
    key!("store.tls.skip_name_check", Switch "BOOL", "false",
        "Accept a certificate that names another host: whoever has one from the same authority can then pass for the store",
        |s, v| s.store.tls.skip_name_check = v.bool()?),
    key!("store.connections", One "COUNT", "auto",
        "Connections to each server of the store, in pairs, shared by all requests; auto is a pair for each worker. \
         One more pair is made to look after it",
        |s, v| s.store.connections = v.count_or("auto", 1..=1024)?.map(as_usize)),
    key!("store.max_in_flight", One "COUNT", "4096",
        "Requests that wait for the store at once; others are left to on_store_failure",
        |s, v| s.store.max_in_flight = as_usize(v.count(1..=1_000_000)?)),
    key!("store.scripts", One "ON|OFF", "on",
        "off where scripts are forbidden: fixed windows only, within a weaker bound",
        |s, v| s.store.scripts = v.bool()?),
    key!("store.log", One "FORM", "packed",
        "How a sliding_window_log is kept: packed, or zset, which other tools can read and takes ten times as much",
        |s, v| s.store.log = v.word(&[("packed", LogForm::Packed), ("zset", LogForm::Zset)])?),
    key!("store.deny_cache", One "COUNT|off", "65536",
        "States by which requests are refused without asking the store, while that is still true",
        |s, v| s.store.deny_cache = v.count_or("off", 1..=10_000_000)?.map_or(0, as_usize)),
    key!("store.deny_cache_max_age", One "DURATION", "1s",
        "How long a refusal is repeated at most (in a cluster 100 ms): so soon another server's take, reset or refund is seen",
        |s, v| s.store.deny_cache_max_age = v.duration_from(Duration::from_millis(1))?),
    key!("memory.max_keys", One "COUNT", "10M",
        "The most keys that are counted at once",
        |s, v| s.memory.max_keys = as_usize(v.count(1..=10_000_000_000)?)),
    key!("memory.max_heap", One "SIZE", "1GiB",
        "The most bytes that logs, segments and leases may take together",
        |s, v| s.memory.max_heap = v.size(1 << 16..=1 << 50)?),
    key!("memory.on_full", One "ANSWER", "deny",
        "What a new key is told while the store is full: deny or allow",
        |s, v| s.memory.on_full = v.word(&[("deny", OnFull::Deny), ("allow", OnFull::Allow)])?),
    key!("memory.snapshot.path", One "FILE", "",
        "File that keeps what was counted over a restart, written at intervals and at the end; without one \
         counts start anew with the process",
        |s, v| s.memory.snapshot.path = Some(v.path_buf()?)),
    key!("memory.snapshot.interval", One "DURATION", "30s",
        "How often the snapshot is written, 100ms at least: a crash forgets at most what was counted since",
        |s, v| s.memory.snapshot.interval = v.duration_from(Duration::from_millis(100))?),
    key!("headers", One "STYLE", "draft-11",
    "Header fields of HTTP answers: draft-11, draft-06, x-ratelimit or off",
    |s, v| {
        s.headers = v.word(&HeaderStyle::ALL.map(|style| (style.as_str(), style)))?;
    }),
    key!("trusted_proxies", List "NETWORKS", "[]",
        "Networks whose X-Forwarded-For is believed: 10.0.0.0/8",
        |s, v| s.trusted_proxies = v.items()?.iter().map(Value::network).collect::<Result<_, _>>()?),
    key!("forward_auth.domain", One "NAME", "",
        "Domain whose rules /v1/forward-auth asks",
        |s, v| s.forward_auth.domain = Some(v.string()?)),
    key!("forward_auth.deny_status", One "STATUS", "429",
        "Status of a forward-auth refusal (nginx wants 403)",
        |s, v| s.forward_auth.deny_status = u16::try_from(v.count(400..=599)?).unwrap_or(429)),
    key!("forward_auth.ipv6_prefix", One "BITS", "64",
        "IPv6 clients are counted by networks of this many bits",
        |s, v| s.forward_auth.ipv6_prefix = u8::try_from(v.count(1..=128)?).unwrap_or(64)),
    key!("forward_auth.descriptors", Yaml "YAML", "[]",
        "Descriptors of a forward-auth request: [[{key: remote_address, from: client_ip}]]; \
         from is client_ip, header:NAME (empty where the header is missing) or value:TEXT",
        |s, v| s.forward_auth.descriptors = v.descriptors()?),
    key!("allow.grpc", List "GRANTS", "override",
        "What gRPC clients may do beyond asking: override, refund",
        |s, v| s.allow.grpc = v.grants()?),
    key!("allow.http", List "GRANTS", "[]",
        "What HTTP clients may do beyond asking: override, refund",
        |s, v| s.allow.http = v.grants()?),
    key!("limits.connections", One "COUNT", "10000",
        "Connections at once on each listener",
        |s, v| s.limits.connections = as_usize(v.count(1..=10_000_000)?)),
    key!("limits.streams", One "COUNT", "1024",
        "Requests in flight on one HTTP/2 connection, 1024 at most",
        |s, v| s.limits.streams = u32::try_from(v.count(1..=1024)?).unwrap_or(1024)),
    key!("limits.unread", One "SIZE", "256MiB",
        "Bytes of answers that clients have not read, besides 32 KiB for each connection: of all HTTP/2 connections \
         together; one has 4 MiB at most. At the bound further requests wait until their client has read, or are refused",
        |s, v| s.limits.unread = v.size(0..=1 << 40)?),
    key!("limits.body", One "SIZE", "64KiB",
        "Bytes of a request's body",
        |s, v| s.limits.body = v.size(64..=64 << 20)?),
    key!("limits.descriptors", One "COUNT", "32",
        "Descriptors of a request",
        |s, v| s.limits.descriptors = as_usize(v.count(1..=256)?)),
    key!("limits.entries", One "COUNT", "16",
        "Entries of a descriptor",
        |s, v| s.limits.entries = as_usize(v.count(1..=256)?)),
    key!("limits.key", One "SIZE", "256",
        "Bytes of an entry's key",
        |s, v| s.limits.key = v.size(1..=1 << 16)?),
    key!("limits.value", One "SIZE", "1024",
        "Bytes of an entry's value that are counted; rules match the whole value",
        |s, v| s.limits.value = v.size(1..=1 << 16)?),
    key!("limits.metric_values", One "COUNT", "1000",
        "Values of one rule with detailed_metric or value_to_metric that have metrics of their own, four series each; \
         further values count under the rule's plain name. A label shows the first 128 bytes of a value",
        |s, v| s.limits.metric_values = as_usize(v.count(0..=1_000_000)?)),
    key!("limits.idle", One "DURATION", "5m",
        "A connection that asks nothing for this long is closed",
        |s, v| s.limits.idle = v.duration()?),
    key!("limits.receive", One "DURATION", "10s",
        "A request's header and body must be here within this time",
        |s, v| s.limits.receive = v.duration()?),
    key!("limits.drain", One "DURATION", "30s",
        "Requests in flight have this long to end after SIGTERM or SIGINT",
        |s, v| s.limits.drain = v.duration()?),
];

fn as_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
