//! Rules files: which requests are counted, and by which limits.
//!
//! The people who operate a service choose its limits. They can change a limit in a file without a new build of the
//! service. The same file serves Envoy, nginx and a program.
//!
//! [`Rules::parse`] reads files in the format of Envoy's reference rate limit server, with additions, and builds an
//! index. [`Rules::plan`] turns a request into [hits](spillgate_core::Hit), which a store decides.
//!
//! # How a request finds its rule
//!
//! The entries of a descriptor are matched in order, one level of nested descriptors for each. On every level these are
//! tried:
//!
//! 1. The rule with exactly this `key` and `value`.
//! 2. Wildcards. The most specific one is first: the one with most characters that are not `*`. Equally specific ones
//!    are tried as declared.
//! 3. The rule with this `key` and no `value`.
//!
//! If nothing below a candidate fits, the search goes back up and tries the next one. A descriptor matches only a rule
//! that is as deep as the descriptor has entries. Each value has a counter of its own,
//! unless the rule has `share_threshold`.
//!
//! ```
//! use spillgate::rules::{Rules, RulesFile};
//! let text = r#"
//! domain: api
//! descriptors:
//!   - {key: user, value: vip7, rate_limit: {unit: minute, requests_per_unit: 100}}
//!   - {key: user, value: vip*, rate_limit: {unit: minute, requests_per_unit: 50}}
//!   - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
//! "#;
//! let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
//! let limit = |user| rules.find("api", &[("user", user)]).expect("a rule").limits[0].requests_per_unit;
//! assert_eq!((limit("vip7"), limit("vip8"), limit("ann")), (100, 50, 5));
//! # Ok::<(), spillgate::rules::RulesErrors>(())
//! ```
//!
//! `compat: envoy` at the top of a file changes two things in the search, and [`Defaults`] can do so for all files. The
//! wildcards of a key are tried as declared, and the search never goes back up.
//!
//! # From a request to an answer
//!
//! ```
//! use spillgate::rules::{Action, Request, Rules, RulesFile};
//! use spillgate::{Decision, KeyHasher, MemoryOptions, MemoryStore, Time};
//!
//! let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 1}}]";
//! let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
//! let (store, keys, now) = (MemoryStore::new(MemoryOptions::default()), KeyHasher::random(), Time::EPOCH);
//! let mut request = Request::new("api");
//! request.add([("user", "ann")], Action::Take(1), None);
//! let plan = rules.plan(&keys, &request, 1024);
//! let mut decisions = vec![Decision::default(); plan.hits.len()];
//! assert!(store.decide_now(now, &plan.hits, &mut decisions)?.allowed);
//! assert!(!store.decide_now(now, &plan.hits, &mut decisions)?.allowed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a search costs
//!
//! Matching allocates nothing. Each entry costs one or two hash look-ups, and a comparison with each wildcard of its
//! key on that level. A wildcard reads as many bytes as it is long. Only a wildcard with text between two stars reads
//! the whole value. Rules that could compare more than 2 MiB for one descriptor, or read a value more than 256 times,
//! do not load.

mod index;
mod lint;
mod model;
mod plan;
mod read;
mod schema;

use std::collections::HashMap;

pub use index::{How, Outcome, Rules, Step};
pub use model::{
    Defaults, Domain, Limit, MAX_DEPTH, MAX_FILE_BYTES, MAX_LIMITS, MAX_PATH_BYTES, MAX_RULES, Metadata, Origin, Rule,
    RuleStep, RulesErrors, RulesFile, Unit, Unreleased,
};
pub use plan::{Action, Descriptor, Plan, Planned, Request};
pub use read::read_files;
pub use schema::SCHEMA;

pub use crate::text::{Diagnostic, Severity};

use model::MAX_WARNINGS;

impl Rules {
    /// Reads and checks all `files`. Each file has one domain. If one file has an error, none is loaded.
    ///
    /// # Errors
    /// Every error of every file, with its line and how to fix it, up to [`RulesErrors::MAX`].
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user_id, rate_limit: {uint: minute, requests_per_unit: 5}}]";
    /// let errors = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }]).unwrap_err();
    /// assert!(errors.iter().any(|error| error.line() == 2 && error.help() == "did you mean `unit`?"));
    /// ```
    pub fn parse(files: &[RulesFile]) -> Result<Rules, RulesErrors> {
        Rules::parse_with(files, Defaults::default())
    }

    /// The same as [`parse`](Rules::parse), with other defaults than usual. [`Defaults`] has an example.
    ///
    /// # Errors
    /// The same as for [`parse`](Rules::parse).
    pub fn parse_with(files: &[RulesFile], defaults: Defaults) -> Result<Rules, RulesErrors> {
        let mut rules = read::read(files, defaults)?;
        let found = lint::lint(&rules, files);
        rules.warn(files, found);
        Ok(rules)
    }

    /// Adds warnings of rules whose own value is longer than `value_bytes`.
    ///
    /// [`plan`](Rules::plan) counts only the first `value_bytes` bytes of a value. Such a rule matches its whole value,
    /// but it shares a counter with every value that begins in the same way. `files` are the files that were parsed.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: path, value: /login, rate_limit: {unit: day, limit: 5}}]";
    /// let files = [RulesFile { name: "api.yaml".into(), text: text.into() }];
    /// let mut rules = Rules::parse(&files)?;
    /// rules.warn_of_long_values(&files, 1024);
    /// assert!(rules.warnings().is_empty());
    /// rules.warn_of_long_values(&files, 4);
    /// assert_eq!(rules.warnings()[0].line(), 2);
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    pub fn warn_of_long_values(&mut self, files: &[RulesFile], value_bytes: usize) {
        let found = lint::long_values(self, files, value_bytes);
        self.warn(files, found);
    }

    /// Adds warnings of concurrency limits whose permits may never be released.
    ///
    /// `taken` says for a rule whether its callers can release permits. The rules do not know that: it depends on the
    /// protocol of the callers. `files` are the files that were parsed. [`Unreleased`] has an example.
    pub fn warn_of_unreleased(&mut self, files: &[RulesFile], taken: impl Fn(&Rule) -> Unreleased) {
        let found = lint::unreleased(self, files, taken);
        self.warn(files, found);
    }

    /// Adds the warnings in `found`, and sorts all warnings again by file and position. At one position, warnings
    /// come before notes.
    fn warn(&mut self, files: &[RulesFile], found: Vec<Diagnostic>) {
        let number: HashMap<&str, usize> = files.iter().enumerate().map(|(at, file)| (&*file.name, at)).collect();
        self.warnings.extend(found);
        self.warnings.sort_by_key(|warning| {
            let is_note = warning.severity() == Severity::Note;
            (number.get(warning.file()).copied(), warning.at(), is_note)
        });
        self.warnings.truncate(MAX_WARNINGS);
    }

    /// The warnings and notes: what is valid but probably not meant.
    ///
    /// They are in the order of files and lines. At most 1,000 are kept, and further ones are dropped. Rules with
    /// warnings work as written, so a program may use them or reject them.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile, Severity};
    /// let text = "domain: api\ndescriptors: [{key: user}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let warning = &rules.warnings()[0];
    /// assert_eq!((warning.severity(), warning.line()), (Severity::Warning, 1));
    /// assert_eq!(warning.message(), "domain `api` has no limit: everything passes");
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }
}
