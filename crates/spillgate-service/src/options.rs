//! The options of a service: what it refuses, and how large a request can be.
//!
//! The settings file has more options, which the service does not know.

use spillgate::OnStoreFailure;

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceOptions {
    /// Whether the service decides and counts, but never refuses.
    pub shadow: bool,
    /// Whether the service refuses descriptors that no rule matches.
    pub deny_unmatched: bool,
    /// What a limit that came with the request does while the shared store fails.
    pub on_store_failure: OnStoreFailure,
    pub bounds: Bounds,
    /// Whether everybody can know how keys are hashed: the store is shared, and the settings name no key secret.
    pub has_public_keys: bool,
    /// What is remembered about the callers of each limit.
    pub insight: Insight,
}

/// What the server remembers about callers, in order to say what the limits do to them. The default is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Insight {
    /// The maximum number of callers in the samples of all limits together. 0 means that nothing is remembered.
    pub max_callers: usize,
    /// How reports show callers.
    pub keys: CallerKeys,
}

/// How reports show the callers that take the most units.
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
