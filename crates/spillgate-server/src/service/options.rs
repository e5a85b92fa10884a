//! How a service behaves: what it refuses, and how large a request can be.
//!
//! The settings file has more options. The service reads only the options here.

use spillgate::OnStoreFailure;

use crate::settings::{Insight, Limits, Settings, StoreUrl};

/// How large one request can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of descriptors of a request.
    pub descriptors: usize,
    /// The maximum number of entries of a descriptor.
    pub entries: usize,
    /// The maximum number of bytes of an entry's key, and of the domain.
    pub key_bytes: usize,
    /// The maximum number of bytes of an entry's value that choose the counter. Further bytes do not change the
    /// counter, but rules match the whole value.
    pub value_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { descriptors: 32, entries: 16, key_bytes: 256, value_bytes: 1024 }
    }
}

impl From<&Limits> for Bounds {
    fn from(limits: &Limits) -> Self {
        Bounds {
            descriptors: limits.descriptors,
            entries: limits.entries,
            key_bytes: limits.key,
            value_bytes: limits.value,
        }
    }
}

/// How a service behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceOptions {
    /// Whether the service decides and counts, but never refuses.
    pub shadow: bool,
    /// Whether the service refuses descriptors that no rule matches.
    pub deny_unmatched: bool,
    /// The answer while the shared store fails, for limits that callers send.
    pub on_store_failure: OnStoreFailure,
    /// How large one request can be.
    pub bounds: Bounds,
    /// Whether everybody can know how keys are hashed: the store is shared, and the settings name no key secret.
    pub has_public_keys: bool,
    /// What is remembered of the callers of each limit.
    pub insight: Insight,
}

impl From<&Settings> for ServiceOptions {
    fn from(settings: &Settings) -> Self {
        ServiceOptions {
            shadow: settings.shadow,
            deny_unmatched: settings.deny_unmatched,
            on_store_failure: settings.on_store_failure,
            bounds: Bounds::from(&settings.limits),
            has_public_keys: settings.store.url != StoreUrl::Memory && settings.store.key_secret_file.is_none(),
            insight: settings.insight,
        }
    }
}
