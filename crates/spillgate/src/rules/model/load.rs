//! What a load of rules gets: files and defaults. The bounds of a load are here too.
//!
//! Programs write rules files too, and a mistake in one of them can make a file of any size. Without the bounds, such a
//! file could take all memory of a server that loads it.

use spillgate_core::OnStoreFailure;

use crate::text::yaml;

/// The largest rules file, in bytes: 16 MiB. A larger file is an error, and [`read_files`](crate::rules::read_files)
/// reads no more than this of it.
pub const MAX_FILE_BYTES: usize = yaml::MAX_BYTES;

/// The deepest nesting of descriptors. A deeper list of descriptors is an error.
///
/// A search calls itself once for each level, so this bounds its stack too.
pub const MAX_DEPTH: usize = 16;

/// The most descriptors in all files of one load. The first descriptor above this bound is an error.
pub const MAX_RULES: usize = 1_000_000;

/// The most bytes of all [paths](crate::rules::Rule::path) of one file: 64 MiB.
///
/// The path of a rule repeats the keys and values of all rules that it is nested in. Without this bound, a small file
/// could need very much memory.
pub const MAX_PATH_BYTES: usize = 64 << 20;

/// The most limits of one descriptor. A longer list of `rate_limits` is an error.
///
/// All hits of a request are decided in one step, so their number has a bound too: [`MAX_HITS`](crate::MAX_HITS).
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
/// [`Defaults::default`] is what [`Rules::parse`](crate::rules::Rules::parse) uses: files decide on `compat`
/// themselves, and a limit without `on_store_failure` has the default of [`OnStoreFailure`].
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
    /// Whether every file behaves as with `compat: envoy` at its top. A file cannot turn it off.
    pub compat_envoy: bool,
    /// The answer while a shared store fails, for limits without `on_store_failure`.
    pub on_store_failure: OnStoreFailure,
}
