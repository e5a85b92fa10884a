//! The options of a service. The settings file has more settings, which the service does not know.

use spillgate::OnStoreFailure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of descriptors of a request.
    pub descriptors: usize,
    /// The maximum number of entries of a descriptor.
    pub entries: usize,
    /// The maximum number of bytes of an entry's key, and of the domain.
    pub key_bytes: usize,
    /// At most this many bytes of an entry's value choose the counter. Values that differ only in later bytes share a
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
    /// What a limit that a request brings does while the shared store fails.
    pub on_store_failure: OnStoreFailure,
    pub bounds: Bounds,
    /// Whether everybody can know how keys are hashed. True if the store is shared and the settings name no key secret.
    pub has_public_keys: bool,
    /// How many callers insight watches, and how reports show them.
    pub insight: Insight,
}

/// The options of insight. By default, insight watches no callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Insight {
    /// The maximum number of callers in the samples of all limits together. 0 turns insight off.
    pub max_callers: usize,
    /// How reports show the callers in the samples, until a reload changes it
    /// ([`replace_caller_keys`](super::Service::replace_caller_keys)).
    pub keys: CallerKeys,
}

/// How reports show the callers that take the most units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallerKeys {
    /// Reports do not show callers.
    #[default]
    Off,
    /// By a hash of their keys.
    Hashed,
    /// By the beginning of their descriptors, such as `user_id=7`.
    Plain,
}

impl CallerKeys {
    /// All ways to show callers.
    pub const ALL: [CallerKeys; 3] = [CallerKeys::Off, CallerKeys::Hashed, CallerKeys::Plain];

    /// Returns the name in settings: `off`, `hashed` or `plain`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            CallerKeys::Off => "off",
            CallerKeys::Hashed => "hashed",
            CallerKeys::Plain => "plain",
        }
    }
}
