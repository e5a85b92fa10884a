//! Rules files say which requests are counted, and by which limits.
//!
//! The people who operate a service choose its limits. If the limits are in a file, operators can change them without a
//! new build of the service. The same file works for Envoy, for nginx, and for a program that uses this library.
//!
//! [`Rules::parse`] reads rules files and builds an index. The format is that of Envoy's reference rate limit server
//! (the "reference server" in these docs), with additions. [`Rules::plan`] turns a request into
//! [hits](spillgate_core::Hit), which a store then decides.
//!
//! # How a request finds its rule
//!
//! A request has descriptors, and a descriptor is a list of entries such as `user=ann`. In a rules file, rules are
//! nested. The first entry is matched with the rules at the top level, the second entry with the rules nested in the
//! rule that matched, and so on. On every level, the search tries these candidates in this order:
//!
//! 1. The rule with the same `key` and exactly the same `value` as the entry.
//! 2. Rules with the same `key` and a wildcard that fits the value. The most specific wildcard is tried first. It is
//!    the wildcard with the most characters that are not `*`. Equally specific wildcards are tried in the order of the
//!    file.
//! 3. The rule with the same `key` and no `value`.
//!
//! If no rule nested in a candidate fits, the search goes back up and tries the next candidate. The rule that is found
//! is always on the level of the last entry. Each value that a client sends has its own counter, unless the rule has
//! `share_threshold`.
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
//! `compat: envoy` at the top of a file changes the search in two ways. The wildcards of a key are tried in the order
//! of the file, and the search never goes back up. [`Defaults`] can set `compat: envoy` for all files.
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
//! A search allocates no memory. On each level that it visits, the search does one or two hash look-ups. It also
//! compares the value with the wildcards of the key on this level. If a wildcard has text between two stars, the
//! comparison can read the whole value. For any other wildcard, the comparison reads at most as many bytes of the value
//! as the wildcard has.
//!
//! Two bounds are checked when rules are loaded. The search for the rule of one descriptor compares at most 2 MiB of
//! keys and values in rules, and it reads whole values at most 256 times. If a search could exceed a bound, the rules
//! are rejected.

#![warn(missing_docs)]

mod describe;
mod index;
mod lint;
mod model;
mod path;
mod plan;
mod read;
mod schema;
#[cfg(feature = "insight")]
mod suggestion;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

pub use describe::{LimitDescription, QuotaOptions, limit_size};
pub use index::{How, Outcome, Rules, Step};
pub use model::{
    Defaults, Domain, Limit, LimitSketch, MAX_DEPTH, MAX_FILE_BYTES, MAX_LIMITS, MAX_PATH_BYTES, MAX_RULES, Metadata,
    NoMemory, Origin, Rule, RuleStep, RulesErrors, RulesFile, Unit, Unreleased,
};
pub use path::{PathStep, path_keys, path_text};
pub use plan::{Action, Descriptor, Plan, Planned, Request};
pub use read::{is_rules_file, left_out, read_files};
pub use schema::SCHEMA;

pub use spillgate_text::{Diagnostic, Severity};

use model::{MAX_WARNINGS, open_sketches};

/// What a program has to say about a rule. [`Rules::warn_of_rules`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFinding {
    limit: Option<usize>,
    is_note: bool,
    message: String,
    label: &'static str,
    help: String,
}

impl RuleFinding {
    /// Makes a warning. `message` says what is wrong, `label` is a few words that are shown below the line of the rule,
    /// and `help` says how to fix the rule.
    #[must_use]
    pub fn warning(message: impl Into<String>, label: &'static str, help: impl Into<String>) -> RuleFinding {
        RuleFinding { limit: None, is_note: false, message: message.into(), label, help: help.into() }
    }

    /// Makes a note instead of a warning: something about a correct rule that its author may not know.
    #[must_use]
    pub const fn as_note(mut self) -> RuleFinding {
        self.is_note = true;
        self
    }

    /// Shows the line of a limit instead of the line of the rule. `limit` is the position of the limit in
    /// [`Rule::limits`].
    #[must_use]
    pub const fn at_limit(mut self, limit: usize) -> RuleFinding {
        self.limit = Some(limit);
        self
    }
}

impl Rules {
    /// Reads and checks all `files`. Each file has one domain. If one file has an error, no file is loaded.
    ///
    /// # Errors
    /// Returns the errors of all files, at most [`RulesErrors::MAX`]. Each error has its line and says how to fix it.
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

    /// Does the same as [`parse`](Rules::parse), with defaults that the caller chooses. [`Defaults`] has an example.
    ///
    /// # Errors
    /// The same as for [`parse`](Rules::parse).
    pub fn parse_with(files: &[RulesFile], defaults: Defaults) -> Result<Rules, RulesErrors> {
        let mut rules = read::read(files, defaults)?;
        let found = lint::lint(&rules, files);
        rules.warn(files, found);
        Ok(rules)
    }

    /// Adds a warning for each rule that has a `value` of more than `value_bytes` bytes.
    ///
    /// A rule matches whole values, but [`plan`](Rules::plan) uses only the first `value_bytes` bytes of a value to
    /// choose a counter. A rule with a longer `value` can therefore share its counter with other values that begin with
    /// the same bytes. `files` are the files that were parsed.
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

    /// Adds a warning that names files of a folder that were not read. [`left_out`] returns them.
    pub fn warn_of_left_out(&mut self, left_out: &[PathBuf]) {
        const NAMED: usize = 5;
        let Some(first) = left_out.first() else { return };
        // A terminal could obey a control character in the name of a file.
        let shown = |path: &PathBuf| path.display().to_string().replace(char::is_control, "\u{fffd}");
        let mut names = left_out.iter().take(NAMED).map(shown).collect::<Vec<_>>().join(", ");
        if left_out.len() > NAMED {
            names.push_str(", ...");
        }
        let message = match left_out.len() {
            1 => format!("a file in a folder of rules is left out: {names}"),
            count => format!("{count} files in folders of rules are left out: {names}"),
        };
        let help = "rules files end in .yaml, .yml or .json; rename the file, or move it out of the folder";
        let file = shown(first);
        self.warn(&[], vec![Diagnostic::without_text(Severity::Warning, &file, message, help)]);
    }

    /// Adds a warning for each rule with a concurrency limit whose permits some callers cannot release. If it is only
    /// possible that there are such callers, adds a note instead.
    ///
    /// `taken` returns, for a rule, whether the callers that match the rule can release permits. Rules files do not
    /// contain this information, because it depends on the protocol of the callers. `files` are the files that were
    /// parsed. [`Unreleased`] has an example.
    pub fn warn_of_unreleased(&mut self, files: &[RulesFile], taken: impl Fn(&Rule) -> Unreleased) {
        let found = lint::unreleased(self, files, taken);
        self.warn(files, found);
    }

    /// Adds warnings and notes that a program has about rules, for example because they do not fit its settings. `found`
    /// returns what there is to say about a rule. `files` are the files that were parsed.
    ///
    /// ```
    /// use spillgate::rules::{RuleFinding, Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: day, limit: 5}}]";
    /// let files = [RulesFile { name: "api.yaml".into(), text: text.into() }];
    /// let mut rules = Rules::parse(&files)?;
    /// rules.warn_of_rules(&files, |rule| match &*rule.path {
    ///     "user" => vec![RuleFinding::warning("nobody sends `user`", "this rule", "remove it")],
    ///     _ => vec![],
    /// });
    /// assert_eq!(rules.warnings()[0].message(), "nobody sends `user`");
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    pub fn warn_of_rules(&mut self, files: &[RulesFile], found: impl Fn(&Rule) -> Vec<RuleFinding>) {
        let found = lint::of_rules(self, files, found);
        self.warn(files, found);
    }

    /// Opens the sketches of all limits with `representation: sketch`. Without this call, these limits count exactly,
    /// in the store.
    ///
    /// Each of the `nodes` servers has its own sketches, so each sketch allows the
    /// [share](spillgate_core::Quota::share) of one server. A limit that is the same as in the rules `before` keeps its
    /// sketch. Any other sketch begins empty, so each key has its whole burst again.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use spillgate::rules::{Rules, RulesFile};
    /// let limit = "{unit: second, limit: 10, algorithm: token_bucket, representation: sketch, sketch_memory: 1MiB}";
    /// let text = format!("domain: api\ndescriptors: [{{key: address, rate_limit: {limit}}}]");
    /// let mut rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text }])?;
    /// rules.open_sketches(None, NonZeroU32::MIN)?;
    /// let rule = rules.find("api", &[("address", "192.0.2.1")]).expect("a rule");
    /// assert!(rule.limits[0].sketch.as_ref().is_some_and(|sketch| sketch.opened().is_some()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The operating system does not have enough memory for a sketch. Some sketches are then not open, so do not use
    /// the rules.
    pub fn open_sketches(&mut self, before: Option<&Rules>, nodes: NonZeroU32) -> Result<(), NoMemory> {
        let earlier: HashMap<(&str, &str), &Rule> = before
            .into_iter()
            .flat_map(Rules::rules)
            .filter(|rule| rule.limits.iter().any(|limit| limit.sketch.is_some()))
            .map(|rule| ((&*rule.domain, &*rule.path), rule))
            .collect();
        for rule in &mut self.rules {
            let before = earlier.get(&(&*rule.domain, &*rule.path)).copied();
            open_sketches(rule, before, nodes)?;
        }
        Ok(())
    }

    /// Returns the size of all sketches together in bytes, whether they are open or not.
    #[must_use]
    pub fn sketch_bytes(&self) -> usize {
        let sketches = self.rules.iter().flat_map(|rule| &rule.limits).filter_map(|limit| limit.sketch.as_ref());
        sketches.fold(0, |sum, sketch| sum.saturating_add(sketch.bytes))
    }

    /// Adds the warnings in `found`, and sorts all warnings again by file and position. If several findings are at the
    /// same position, warnings come before notes.
    fn warn(&mut self, files: &[RulesFile], found: Vec<Diagnostic>) {
        let number: HashMap<&str, usize> = files.iter().enumerate().map(|(at, file)| (&*file.name, at)).collect();
        self.warnings.extend(found);
        self.warnings.sort_by_key(|warning| {
            let is_note = warning.severity() == Severity::Note;
            (number.get(warning.file()).copied(), warning.at(), is_note)
        });
        self.warnings.truncate(MAX_WARNINGS);
    }

    /// Returns the warnings and notes. A warning is about text that is valid, but probably not what its author meant. A
    /// note says something about correct text that its author may not know.
    ///
    /// The list is in the order of files and lines. It has at most 1,000 findings, and further findings are dropped.
    /// Rules with warnings work as written, and a program can use them or reject them.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile, Severity};
    /// let text = "domain: api\ndescriptors: [{key: user}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let warning = &rules.warnings()[0];
    /// assert_eq!((warning.severity(), warning.line()), (Severity::Warning, 1));
    /// assert_eq!(warning.message(), "domain `api` has no limit, so all requests are allowed");
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }
}
