//! The table of all settings.
//!
//! The settings file, the flags, the environment variables, `--help` and the tables of the book are all made from this
//! table.

use std::time::Duration;

use spillgate::headers::HeaderStyle;
use spillgate::{OnFull, OnStoreFailure};
use spillgate_redis::LogForm;
use spillgate_service::CallerKeys;

use super::error::SettingError;
use super::regions::Across;
use super::store::url_forms;
use super::values::{Value, YEAR};
use super::{LogFormat, Settings, StoreUrl, Watch};

/// How a value is written in a flag or a variable. In a file it is YAML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One value.
    One,
    /// True or false. The flag without a value means true.
    Switch,
    /// Values with commas between them. The flag can be repeated.
    List,
    /// YAML, as in a file.
    Yaml,
}

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// The groups and the name of the key, joined by dots: `limits.body`.
    pub path: &'static str,
    pub shape: Shape,
    /// The name of the value in `--help`.
    pub value: &'static str,
    /// The default as text. Empty if the setting has no default.
    pub default: &'static str,
    pub help: &'static str,
    pub(super) apply: fn(&mut Settings, &Value<'_>) -> Result<(), SettingError>,
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
    ($path:literal, $shape:ident $value:literal, $default:literal, $help:expr, |$s:ident, $v:ident| $apply:expr) => {
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
        "Address of the HTTP listener: IP:PORT, unix:/path or off",
        |s, v| s.http = v.listen()?),
    key!("http_origins", List "ORIGINS", "",
        "Sites whose web pages may send POST requests to the HTTP listener through a browser, such as https://app.example. Pages \
         of the site that the URL names always may, and programs too. Pages of other sites could use up limits, so they get 403",
        |s, v| s.browsers.origins = v.items()?.iter().map(Value::origin).collect::<Result<_, _>>()?),
    key!("http_hosts", List "NAMES", "",
        "Names of the HTTP listener, such as spillgate.internal. If there are any, the URL of a POST request must have one of \
         them, an IP address or localhost. Without names, every name is accepted, also one with which the owner of a web \
         page reaches this listener (DNS rebinding)",
        |s, v| s.browsers.hosts = v.items()?.iter().map(Value::host_name).collect::<Result<_, _>>()?),
    key!("grpc", One "ADDRESS", "0.0.0.0:8081",
        "Address of the gRPC listener (Envoy RLS v3): IP:PORT, unix:/path or off",
        |s, v| s.grpc = v.listen()?),
    key!("admin", One "ADDRESS", "127.0.0.1:6070",
        "Address of the admin listener (the page for operators, /metrics, /healthz, /readyz and its other routes): IP:PORT, unix:/path or off",
        |s, v| s.admin = v.listen()?),
    key!("health", One "ADDRESS", "off",
        "Address of the health listener, for probes and Prometheus: IP:PORT, unix:/path or off. It answers /healthz, /readyz, \
         /healthcheck and /metrics without a token, for every host name, and shows nothing that a caller has sent",
        |s, v| s.health = v.listen()?),
    key!("admin_token_file", One "FILE", "",
        "File with the bearer token of the admin listener. A reload reads it again, so a token can change without a restart (see watch). Callers of all its paths except /healthz and /readyz must send this \
         token (to read, the token of admin_read_token_file suffices). The files of the page (/ and /ui/) need no token. Without a token, every caller whose URL has an address, localhost or a name of admin_hosts may read, but only programs on this machine may use the POST routes",
        |s, v| s.admin_token_file = Some(v.path_buf()?)),
    key!("admin_read_token_file", One "FILE", "",
        "File with a second bearer token of the admin listener, for callers that only read, such as Prometheus. It needs \
         admin_token_file",
        |s, v| s.admin_read_token_file = Some(v.path_buf()?)),
    key!("admin_hosts", List "NAMES", "",
        "Further names of the admin listener, such as spillgate.internal. Without admin_token_file, a URL must have an IP address, \
         localhost or one of these names. Otherwise web pages could use the listener through a browser (DNS rebinding)",
        |s, v| s.admin_hosts = v.items()?.iter().map(Value::host_name).collect::<Result<_, _>>()?),
    key!("tls.cert", One "FILE", "",
        "File (PEM) with the certificate of this server, and below it those of the authorities between it and its root. With \
         it, the listeners have TLS. A reload reads this file, the key and client_ca again (see watch)",
        |s, v| s.tls.cert = Some(v.path_buf()?)),
    key!("tls.key", One "FILE", "",
        "File (PEM) with the private key of this certificate, without a password: ECDSA P-256 or P-384, Ed25519, or RSA with 2048 to 4096 bits",
        |s, v| s.tls.key = Some(v.path_buf()?)),
    key!("tls.listeners", List "NAMES", "",
        "The listeners with TLS: http, grpc, admin. Without this setting, each of these that has a TCP address. Unix sockets and health have \
         no TLS",
        |s, v| s.tls.listeners = Some(v.listener_names()?)),
    key!("tls.client_ca", One "FILE", "",
        "File (PEM) with the certificates of the authorities that sign the certificates of clients. With it, each client needs such a \
         certificate. It says who may connect, and never replaces a token",
        |s, v| s.tls.client_ca = Some(v.path_buf()?)),
    key!("tls.client_listeners", List "NAMES", "",
        "The listeners whose clients need a certificate. Without this setting, each that has TLS",
        |s, v| s.tls.client_listeners = Some(v.listener_names()?)),
    key!("tls.client_names", List "NAMES", "",
        "The clients that may connect, by a name in their certificate: a DNS name, such as gateway.internal or *.internal (one label), or a \
         URI, such as spiffe://cluster/ns/shop or spiffe://cluster/ns/*. Without this setting, each client with a certificate of client_ca",
        |s, v| s.tls.client_names = v.items()?.iter().map(Value::client_pattern).collect::<Result<_, _>>()?),
    key!("tls.plain", One "ANSWER", "refuse",
        "What happens to a client without TLS on a listener with TLS: refuse, or allow, to move clients to TLS one after the other",
        |s, v| s.tls.allows_plain = v.word(&[("refuse", false), ("allow", true)])?),
    key!("rules", List "PATHS", "",
        "Rules files, or folders with *.yaml, *.yml and *.json files",
        |s, v| s.rules = v.items()?.iter().map(Value::path_buf).collect::<Result<_, _>>()?),
    key!("watch", One "HOW", "on",
        "How the server sees that rules, admin tokens, certificates or the settings file have changed: on (it watches their folders), poll \
         (it reads the files each second, for disks that report no changes, such as NFS) or off (only a reload reads them). What they say is \
         taken when two readings one second apart are equal. If they have an error, the earlier content stays in use",
        |s, v| s.watch = v.word(&[("on", Watch::On), ("poll", Watch::Poll), ("off", Watch::Off)])?),
    key!("compat", One "SERVER", "off",
        "Compatibility of all rules files: off, or envoy (Envoy's reference server). With envoy, each descriptor of a request is \
         charged even if another descriptor is refused. Refused descriptors are charged too. If several wildcards match, the \
         first wildcard in the file wins",
        |s, v| s.compat_envoy = v.word(&[("off", false), ("envoy", true)])?),
    key!("on_store_failure", One "POLICY", "local",
        "Answer while the shared store fails: local (each server admits its part of the limit), allow, deny or error. This setting \
         applies to every limit without its own on_store_failure, and to limits that callers send",
        |s, v| s.on_store_failure = v.word(&OnStoreFailure::ALL.map(|policy| (policy.as_str(), policy)))?),
    key!("shadow", Switch "BOOL", "false",
        "If true, every request is decided and counted, but no request is refused",
        |s, v| s.shadow = v.bool()?),
    key!("unmatched", One "ANSWER", "allow",
        "Answer to a descriptor that no rule matches, or whose domain is unknown: allow or deny",
        |s, v| s.deny_unmatched = v.word(&[("allow", false), ("deny", true)])?),
    key!("workers", One "COUNT", "auto",
        "Number of worker threads. auto means one thread for each core",
        |s, v| s.workers = v.count_or("auto", 1..=1024)?.map(as_usize)),
    key!("log_level", One "FILTER", "info",
        "Lowest level that is logged: error, warn, info, debug (each request, at most 100 lines a second) or trace. A filter such \
         as debug,h2=info also sets the level of the library h2. Without such a filter, only errors of h2 are logged, because \
         clients can cause any number of its warnings. Writes of operators are logged at every level. A reload changes it, without a restart",
        |s, v| s.log_level = v.log_filter()?),
    key!("log_format", One "FORMAT", "text",
        "Format of log lines on stderr: text or json",
        |s, v| s.log_format = v.word(&[("text", LogFormat::Text), ("json", LogFormat::Json)])?),
    key!("store.url", One "URL", "memory",
        concat!("Where counts are stored: memory, ", url_forms!(), ". valkey:// means redis://, and valkeys:// means rediss://"),
        |s, v| s.store.url = StoreUrl::read(v)?),
    key!("store.deadline", One "DURATION", "10ms",
        "How long a request waits for the shared store, 1m at most. After this time, the on_store_failure of each limit decides. \
         If a gRPC caller has a shorter timeout, the wait ends 4ms before the end of that timeout",
        |s, v| s.store.deadline = v.duration_within(Duration::from_micros(100)..=Duration::from_secs(60))?),
    key!("store.expected_nodes", One "COUNT", "",
        "Number of spillgate servers that share the store. While the store fails, a limit whose on_store_failure is local is \
         divided by this number on each server. If this number is not set, each server admits the whole of a limit \
         that a caller sends",
        |s, v| s.store.expected_nodes = u32::try_from(v.count(1..=100_000)?).ok()),
    key!("store.key_secret_file", One "FILE", "",
        "File with a secret of 32 hexadecimal digits (openssl rand -hex 16), the same for all servers. Keys in the store are \
         hashed with this secret. Without a secret, anyone who can read the store can test whether a guessed key is counted",
        |s, v| s.store.key_secret_file = Some(v.path_buf()?)),
    key!("store.user", One "NAME", "",
        "User name for the store, if the URL has no user name",
        |s, v| s.store.user = Some(v.string()?)),
    key!("store.password_file", One "FILE", "",
        "File with the password of the store, instead of a password in the URL. The files of passwords and certificates are read \
         again before each new connection",
        |s, v| s.store.password_file = Some(v.path_buf()?)),
    key!("store.sentinel_user", One "NAME", "",
        "User name for the sentinels, if the sentinels need a login. store.user is not sent to them",
        |s, v| s.store.sentinel_user = Some(v.string()?)),
    key!("store.sentinel_password_file", One "FILE", "",
        "File with the password of the sentinels",
        |s, v| s.store.sentinel_password_file = Some(v.path_buf()?)),
    key!("store.tls.ca", One "FILE", "",
        "File (PEM) with the certificates of the authorities that may sign the store's certificate, or with the store's \
         certificate itself. Without this setting, the certificates of the system are used",
        |s, v| s.store.tls.ca = Some(v.path_buf()?)),
    key!("store.tls.cert", One "FILE", "",
        "File (PEM) with the client certificate, if the store needs a client certificate",
        |s, v| s.store.tls.cert = Some(v.path_buf()?)),
    key!("store.tls.key", One "FILE", "",
        "File (PEM) with the private key of the client certificate",
        |s, v| s.store.tls.key = Some(v.path_buf()?)),
    key!("store.tls.server_name", One "NAME", "",
        "Name that the store's certificate must have. Without this setting, the name must be the host name of the URL",
        |s, v| s.store.tls.server_name = Some(v.string()?)),
    key!("store.tls.skip_name_check", Switch "BOOL", "false",
        "If true, the certificate of the store may have any name. So any machine with a certificate of the same authority can \
         impersonate the store",
        |s, v| s.store.tls.skip_name_check = v.bool()?),
    key!("store.connections", One "COUNT", "auto",
        "Number of connections to each server of the store. All requests share these connections. auto means two \
         connections for each worker. One more connection to each server is used for health checks and the admin API, \
         and one connection to one server for blocks and shadow switches",
        |s, v| s.store.connections = v.count_or("auto", 1..=1024)?.map(as_usize)),
    key!("store.max_in_flight", One "COUNT", "4096",
        "How many requests may wait for the store at once. Further requests are answered by on_store_failure",
        |s, v| s.store.max_in_flight = as_usize(v.count(1..=1_000_000)?)),
    key!("store.scripts", One "ON|OFF", "on",
        "Whether scripts are used: on, or off if the store forbids them. Without scripts, only fixed windows work, and they can \
         admit slightly more than with scripts",
        |s, v| s.store.scripts = v.bool()?),
    key!("store.log", One "FORM", "packed",
        "How a sliding_window_log is stored: packed, or zset (a sorted set). Other programs can read a sorted set, but it needs ten \
         times as much memory as packed",
        |s, v| s.store.log = v.word(&[("packed", LogForm::Packed), ("zset", LogForm::Zset)])?),
    key!("store.deny_cache", One "COUNT|off", "65536",
        "Maximum number of refusals in the deny cache. While a refusal in the cache is still true, the server repeats the refusal \
         without asking the store. off means no deny cache",
        |s, v| s.store.deny_cache = v.count_or("off", 1..=10_000_000)?.map_or(0, as_usize)),
    key!("store.deny_cache_max_age", One "DURATION", "1s",
        "How long a server may repeat a refusal without asking the store. In a Redis Cluster, this time is never longer than \
         100ms. After this time, the server sees what other servers have taken, reset or refunded",
        |s, v| s.store.deny_cache_max_age = v.duration_from(Duration::from_millis(1))?),
    key!("store.new_keys", One "COUNT/s|off", "off",
        "How many new keys of each limit this server makes in the store, such as 1000/s. So a client that makes many keys cannot \
         fill the store. While a limit is at this bound, callers whose keys exist are decided as always, and newcomers by this \
         server's part of the limit, in its own memory. off means any number",
        |s, v| s.store.new_keys = v.count_each_second_or("off", 1..=1_000_000)?),
    key!("memory.max_keys", One "COUNT", "10M",
        "How many keys the memory store may have",
        |s, v| s.memory.max_keys = as_usize(v.count(1..=10_000_000_000)?)),
    key!("memory.max_heap", One "SIZE", "1GiB",
        "How many bytes the sliding window logs, segments, leases and penalties in the memory store may use together",
        |s, v| s.memory.max_heap = v.size(1 << 16..=1 << 50)?),
    key!("memory.on_full", One "ANSWER", "deny",
        "What happens to a key that does not fit into the full memory store: deny refuses it, allow does not count it, and \
         sketch limits it in memory of fixed size, with some wrong refusals",
        |s, v| s.memory.on_full = v.word(&[
            ("deny", OnFull::Deny), ("allow", OnFull::Allow), ("sketch", OnFull::Sketch { bytes: 0 }),
        ])?),
    key!("memory.sketch", One "SIZE", "64MiB",
        "With memory.on_full: sketch, how many bytes of memory.max_heap this sketch uses, from the start",
        |s, v| s.memory.sketch = v.size(1 << 16..=1 << 40)?),
    key!("memory.snapshot.path", One "FILE", "",
        "File that keeps the counts over a restart. It is written at intervals, and when the server ends. Without this \
         setting, a restart loses all counts",
        |s, v| s.memory.snapshot.path = Some(v.path_buf()?)),
    key!("memory.snapshot.interval", One "DURATION", "30s",
        "Time between two snapshots, 100ms at least. A crash loses what was counted after the last snapshot began",
        |s, v| s.memory.snapshot.interval = v.duration_from(Duration::from_millis(100))?),
    key!("regions.name", One "NAME", "",
        "Name of this region, such as eu, if there are several regions, each with a shared store of its own",
        |s, v| s.regions.name = Some(v.region_name()?)),
    key!("regions.peers", List "NAME=URL", "[]",
        "The shared stores of the other regions, such as us=rediss://redis.us.internal:6379. In a file, a region may have a login of \
         its own: {us: {url: URL, user: NAME, password_file: FILE, tls: {ca: FILE}}}. Without this setting, there is one region",
        |s, v| s.regions.peers = v.peers()?),
    key!("regions.default", One "MEANING", "",
        "What a limit without across_regions means: each (each region admits the whole limit), split (each region admits its part) \
         or shared (one limit for all regions). Needed with regions.peers",
        |s, v| s.regions.default = Some(v.word(&Across::WORDS)?)),
    key!("regions.sync", One "DURATION", "100ms",
        "How often the other regions are told what this one has admitted of shared limits, 10ms to 10s",
        |s, v| s.regions.sync = v.duration_within(Duration::from_millis(10)..=Duration::from_secs(10))?),
    key!("regions.max_keys", One "COUNT", "262144",
        "How many entries a server remembers for the other regions. An entry is a key of a shared limit in one span of time, so a busy \
         key has up to three. If all of them still have to be told, the other regions are not told of new keys",
        |s, v| s.regions.max_keys = as_usize(v.count(1_024..=4_194_304)?)),
    key!("regions.user", One "NAME", "",
        "User name for the stores of the other regions, if their URLs have none",
        |s, v| s.regions.login.user = Some(v.string()?)),
    key!("regions.password_file", One "FILE", "",
        "File with the password for the stores of the other regions",
        |s, v| s.regions.login.password_file = Some(v.path_buf()?)),
    key!("regions.tls.ca", One "FILE", "",
        "File (PEM) with the certificates of the authorities that may sign the certificates of the other regions' stores",
        |s, v| s.regions.login.tls.ca = Some(v.path_buf()?)),
    key!("regions.tls.cert", One "FILE", "",
        "File (PEM) with the client certificate for the stores of the other regions",
        |s, v| s.regions.login.tls.cert = Some(v.path_buf()?)),
    key!("regions.tls.key", One "FILE", "",
        "File (PEM) with the private key of this client certificate",
        |s, v| s.regions.login.tls.key = Some(v.path_buf()?)),
    key!("headers", One "STYLE", "draft-11",
    "Header fields of HTTP answers: draft-11, draft-06, x-ratelimit or off",
    |s, v| {
        s.headers = v.word(&HeaderStyle::ALL.map(|style| (style.as_str(), style)))?;
    }),
    key!("trusted_proxies", List "NETWORKS", "[]",
        "Networks of your proxies, such as 10.0.0.0/8. X-Forwarded-For is trusted only from these networks",
        |s, v| s.trusted_proxies = v.items()?.iter().map(Value::network).collect::<Result<_, _>>()?),
    key!("forward_auth.domain", One "NAME", "",
        "Domain of the rules that decide requests on /v1/forward-auth",
        |s, v| s.forward_auth.domain = Some(v.string()?)),
    key!("forward_auth.deny_status", One "STATUS", "429",
        "HTTP status of a refusal on /v1/forward-auth (nginx needs 403)",
        |s, v| s.forward_auth.deny_status = u16::try_from(v.count(400..=599)?).unwrap_or(429)),
    key!("forward_auth.ipv6_prefix", One "BITS", "64",
        "Number of leading bits of an IPv6 address that choose its counter. All clients whose addresses begin with the \
         same bits share a counter",
        |s, v| s.forward_auth.ipv6_prefix = u8::try_from(v.count(1..=128)?).unwrap_or(64)),
    key!("forward_auth.descriptors", Yaml "YAML", "[]",
        "Descriptors of a request on /v1/forward-auth, such as [[{key: remote_address, from: client_ip}]]. \
         The value of from is client_ip, path, method, host, header:NAME, cookie:NAME, query:NAME (these three are empty if the \
         request does not have them) or value:TEXT",
        |s, v| s.forward_auth.descriptors = v.descriptors()?),
    key!("allow.grpc", List "GRANTS", "override",
        "What gRPC clients may do: override (send their own limit), refund (give units back)",
        |s, v| s.allow.grpc = v.grants()?),
    key!("allow.http", List "GRANTS", "[]",
        "What HTTP clients may do: override (send their own limit), refund (give units back)",
        |s, v| s.allow.http = v.grants()?),
    key!("insight.max_callers", One "COUNT|off", "65536",
        "How many callers the server watches to say what the limits do (/insight, /top): 4096 for each limit, or fewer if there are \
         many limits. A caller takes about 600 bytes, and a limit about 25 kB. off means that the server watches no caller",
        |s, v| s.insight.max_callers = v.count_or("off", 64..=10_000_000)?.map_or(0, as_usize)),
    key!("insight.keys", One "FORM", "hashed",
        "How /insight and /top show the callers with the most units: off, hashed, or plain (the descriptor in at most 64 bytes, \
         which can be personal data). A reload changes it, without a restart",
        |s, v| s.insight.keys = v.word(&CallerKeys::ALL.map(|keys| (keys.as_str(), keys)))?),
    key!("limits.connections", One "COUNT", "2000",
        "How many connections each listener for clients accepts at once, each of up to 128 KiB. The admin listener and the health \
         listener accept 256 each at most. If the limit on open files is lower, the listeners share what it leaves",
        |s, v| s.limits.clients.connections = as_usize(v.count(1..=10_000_000)?)),
    key!("limits.streams", One "COUNT", "1024",
        "How many requests may be in flight on one HTTP/2 connection, 1024 at most",
        |s, v| s.limits.clients.streams = u32::try_from(v.count(1..=1024)?).unwrap_or(1024)),
    key!("limits.unread", One "SIZE", "128MiB",
        "How many bytes the unread answers of all HTTP/2 connections may use together. In addition, each connection may use 8 KiB. \
         The answers of one connection may use 4 MiB at most. If one of these bounds is used up, further requests wait or are refused",
        |s, v| s.limits.clients.unread = v.size(0..=1 << 40)?),
    key!("limits.in_flight", One "SIZE", "256MiB",
        "How many bytes all requests that are being read, decided or waited for may use together. In addition, each connection may \
         use 24 KiB. If this bound is used up, further requests are refused: with REFUSED_STREAM over HTTP/2, and with 503 over HTTP/1. \
         The last sixteenth is only for the tables of HTTP/2 connections. If it is used up too, an HTTP/2 connection whose tables have to \
         grow is closed, and its calls are lost",
        |s, v| s.limits.clients.in_flight = v.size(0..=1 << 40)?),
    key!("limits.body", One "SIZE", "64KiB",
        "How many bytes the body of a request may have",
        |s, v| s.limits.body = v.size(64..=64 << 20)?),
    key!("limits.descriptors", One "COUNT", "32",
        "How many descriptors a request may have",
        |s, v| s.limits.bounds.descriptors = as_usize(v.count(1..=256)?)),
    key!("limits.entries", One "COUNT", "16",
        "How many entries a descriptor may have",
        |s, v| s.limits.bounds.entries = as_usize(v.count(1..=256)?)),
    key!("limits.key", One "SIZE", "256",
        "How many bytes the key of an entry may have",
        |s, v| s.limits.bounds.key_bytes = v.size(1..=1 << 16)?),
    key!("limits.value", One "SIZE", "1024",
        "How many bytes of an entry's value choose the counter. Rules are compared with the whole value",
        |s, v| s.limits.bounds.value_bytes = v.size(1..=1 << 16)?),
    key!("limits.metric_values", One "COUNT", "1000",
        "Number of values for which a rule with detailed_metric or value_to_metric has separate series: four series for each \
         value. Further values are counted together under the name of the rule. A label shows the first 128 bytes of a value",
        |s, v| s.limits.metric_values = as_usize(v.count(0..=1_000_000)?)),
    key!("limits.idle", One "DURATION", "5m",
        "A connection is closed if it has no request for this time",
        |s, v| s.limits.clients.idle = v.duration()?),
    key!("limits.receive", One "DURATION", "10s",
        "How long the header of a request may take to arrive. The body may take the same time again",
        |s, v| s.limits.clients.receive = v.duration()?),
    key!("limits.connection_age", One "DURATION|off", "off",
        "After this time, give or take a tenth, a client is asked to make a new connection: with GOAWAY over HTTP/2, and with \
         connection: close in the next answer over HTTP/1. So clients that keep their connections also reach new servers",
        |s, v| s.limits.clients.age = v.duration_or_off(Duration::from_secs(1)..=YEAR)?),
    key!("limits.connection_age_grace", One "DURATION", "1m",
        "How long a connection that has reached limits.connection_age may take to end. Then it is cut, also if requests are in \
         flight. A value below the 1m that a request may wait can cut requests",
        |s, v| s.limits.clients.age_grace = v.duration()?),
    key!("limits.drain_delay", One "DURATION", "0s",
        "How long the server still accepts connections and answers all requests after SIGTERM or SIGINT, 10m at most. Readiness says \
         no at once, and clients are asked to make new connections. Choose more time than your proxy needs to learn that a server ends",
        |s, v| s.limits.drain_delay = v.duration_within(Duration::ZERO..=Duration::from_secs(600))?),
    key!("limits.handshake", One "DURATION", "5s",
        "How long a TLS handshake may take. At most a quarter of limits.connections are in progress on each listener, and the oldest \
         makes way for a new one",
        |s, v| s.limits.clients.handshake = v.duration()?),
    key!("limits.drain", One "DURATION", "30s",
        "How long the server may take to answer the requests in flight after SIGTERM or SIGINT, and after limits.drain_delay",
        |s, v| s.limits.clients.drain = v.duration()?),
    key!("limits.reservation", One "DURATION", "10m",
        "How long a reservation (POST /v1/reserve) can be settled. After this time its estimate stays charged",
        |s, v| s.limits.reservation = v.duration()?),
];

fn as_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
