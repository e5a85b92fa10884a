//! How a service behaves: what it refuses, and what one request can hold.

use spillgate::OnStoreFailure;

use crate::settings::{Limits, Settings};

/// What one request can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Descriptors of a request.
    pub descriptors: usize,
    /// Entries of a descriptor.
    pub entries: usize,
    /// Bytes of an entry's key, and of the domain.
    pub key_bytes: usize,
    /// Bytes of an entry's value that are counted; rules match the whole value.
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
    /// Judge and count, never refuse.
    pub shadow: bool,
    /// Refuse what no rule matches.
    pub deny_unmatched: bool,
    /// What is answered for limits that come with a call while a shared store fails.
    pub on_store_failure: OnStoreFailure,
    /// What one request can hold.
    pub bounds: Bounds,
}

impl From<&Settings> for ServiceOptions {
    fn from(settings: &Settings) -> Self {
        ServiceOptions {
            shadow: settings.shadow,
            deny_unmatched: settings.deny_unmatched,
            on_store_failure: settings.on_store_failure,
            bounds: Bounds::from(&settings.limits),
        }
    }
}
