//! How a service behaves: what it refuses, and how large a request can be.
//!
//! The settings file has more options. The service knows only the options here.

use spillgate::OnStoreFailure;

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
