//! The settings before the defaults are applied.
//!
//! The defaults are texts in the table of keys, and `--help` shows them. They are read like other values, and replace
//! the values here.

use std::path::PathBuf;
use std::time::Duration;

use spillgate::headers::HeaderStyle;
use spillgate::{OnFull, OnStoreFailure};
use spillgate_http::ForwardAuth;
use spillgate_redis::LogForm;
use spillgate_service::{CallerKeys, Grants, Insight};

use super::{Allow, Limits, LogFormat, Memory, Settings, Snapshot, Store, StoreTls, StoreUrl};

/// Returns the settings to start with. A value stays only if its key has no default, and the user sets no value.
pub(super) fn settings() -> Settings {
    Settings {
        http: None,
        grpc: None,
        admin: None,
        admin_token_file: None,
        admin_read_token_file: None,
        admin_hosts: Vec::new(),
        rules: Vec::<PathBuf>::new(),
        compat_envoy: false,
        on_store_failure: OnStoreFailure::Local,
        shadow: false,
        deny_unmatched: false,
        workers: None,
        log_level: String::new(),
        log_format: LogFormat::Text,
        store: Store {
            url: StoreUrl::Memory,
            deadline: Duration::ZERO,
            expected_nodes: None,
            key_secret_file: None,
            user: None,
            password_file: None,
            sentinel_user: None,
            sentinel_password_file: None,
            tls: StoreTls::default(),
            connections: None,
            max_in_flight: 0,
            scripts: true,
            log: LogForm::Packed,
            deny_cache: 0,
            deny_cache_max_age: Duration::ZERO,
        },
        memory: Memory {
            max_keys: 0,
            max_heap: 0,
            on_full: OnFull::Deny,
            sketch: 0,
            snapshot: Snapshot { path: None, interval: Duration::ZERO },
        },
        headers: HeaderStyle::Off,
        trusted_proxies: Vec::new(),
        forward_auth: ForwardAuth { domain: None, deny_status: 0, ipv6_prefix: 0, descriptors: Vec::new() },
        allow: Allow { grpc: Grants::default(), http: Grants::default() },
        insight: Insight { max_callers: 0, keys: CallerKeys::Off },
        limits: Limits {
            connections: 0,
            streams: 0,
            unread: 0,
            body: 0,
            descriptors: 0,
            entries: 0,
            key: 0,
            value: 0,
            metric_values: 0,
            idle: Duration::ZERO,
            receive: Duration::ZERO,
            drain: Duration::ZERO,
            reservation: Duration::ZERO,
        },
    }
}
