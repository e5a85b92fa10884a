//! What a load of rules gets: files and defaults. The bounds of a load are here too.
//!
//! Programs write rules files too, and a mistake in one of them can make a file of any size. Without the bounds, such a
//! file could take all memory of a server that loads it.

use spillgate_core::OnStoreFailure;

use crate::text::yaml;

/// The largest rules file, in bytes.
pub const MAX_FILE_BYTES: usize = yaml::MAX_BYTES;

/// The deepest nesting of descriptors.
pub const MAX_DEPTH: usize = 16;

/// The most descriptors in all files of one load.
pub const MAX_RULES: usize = 1_000_000;

/// The most bytes of all [paths](Rule::path) of one file. A path repeats what its rule is nested in, so a small file
/// could otherwise need very much memory.
pub const MAX_PATH_BYTES: usize = 64 << 20;

/// The most limits of one descriptor.
pub const MAX_LIMITS: usize = 8;

/// The name and the text of one rules file. [`Rules::parse`] has an example.
#[derive(Clone, Debug)]
pub struct RulesFile {
    /// The name in reports, usually the path.
    pub name: String,
    /// The text.
    pub text: String,
}

/// The defaults for what a file does not say.
///
/// ```
/// use spillgate::OnStoreFailure;
/// use spillgate::rules::{Defaults, Rules, RulesFile};
/// let text = "domain: api\ndescriptors: [{key: user_id, rate_limit: {unit: minute, requests_per_unit: 5}}]";
/// let file = RulesFile { name: "api.yaml".into(), text: text.into() };
/// let defaults = Defaults { on_store_failure: OnStoreFailure::Deny, ..Defaults::default() };
/// let rules = Rules::parse_with(&[file], defaults)?;
/// let rule = rules.find("api", &[("user_id", "7")]).expect("a rule");
/// assert_eq!(rule.limits[0].quota.on_store_failure(), OnStoreFailure::Deny);
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Every file behaves as with `compat: envoy` at its top.
    pub compat_envoy: bool,
    /// The answer while a shared store fails, for limits without `on_store_failure`.
    pub on_store_failure: OnStoreFailure,
}
