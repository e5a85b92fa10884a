//! The commands and their arguments as plain data.
//!
//! The rest of the program sees only this data, so that it does not depend on the parser of the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::settings::Key;

/// A command with its arguments.
#[derive(Debug)]
pub enum Verb {
    /// Runs the server.
    Serve(Serve),
    /// Checks rules and settings files.
    Validate(Validate),
    /// Decides requests by rules files, on a virtual clock or in a shared store.
    Check(Check),
    /// Prints the names of keys in a shared store.
    Key(KeyNames),
    /// Examines a shared store.
    Doctor(Doctor),
    /// Asks a server whether it is ready.
    Health(Health),
    /// Shows what the limits of servers do.
    Insight(Insight),
    /// Asks the admin listener of a server.
    Admin(Admin),
    /// Decides the requests of access logs by rules.
    Replay(Replay),
    /// Computes the memory of a limit.
    Size(Size),
    /// Prints the JSON Schema of rules files.
    Schema,
}

/// A setting that a flag gives, with its values.
pub type Setting = (&'static Key, Vec<String>);

/// `spillgate serve`
#[derive(Clone, Debug)]
pub struct Serve {
    pub config: Option<PathBuf>,
    pub rules: Vec<PathBuf>,
    pub flags: Vec<Setting>,
    pub show_settings: bool,
    pub json: bool,
}

/// `spillgate validate`
#[derive(Debug)]
pub struct Validate {
    pub config: Option<PathBuf>,
    pub rules: Vec<PathBuf>,
    pub deny_warnings: bool,
    pub json: bool,
}

/// `spillgate check`. It asks questions: a question is one request at one time.
#[derive(Debug)]
pub struct Check {
    pub config: Option<PathBuf>,
    pub rules: Vec<PathBuf>,
    pub domain: String,
    pub descriptors: Vec<Entries>,
    /// The costs of one round. A round asks one question for each cost, in this order.
    pub costs: Vec<u64>,
    /// The number of rounds at each time of `at`.
    pub times: u32,
    /// Whether the permits of concurrency limits are released before the next question.
    pub releases: bool,
    /// The times of the questions since the start of the virtual clock, in rising order.
    pub at: Vec<Duration>,
    /// Whether `at` was given on the command line.
    pub sets_clock: bool,
    /// The longest delay that the caller accepts.
    pub wait: Duration,
    /// The settings of the store.
    pub flags: Vec<Setting>,
    /// Whether units are really taken from the shared store. Otherwise the store is only read.
    pub takes: bool,
    /// Whether a domain or a key that no rule has is accepted.
    pub allows_unmatched: bool,
    pub json: bool,
}

/// `spillgate key`
#[derive(Debug)]
pub struct KeyNames {
    pub config: Option<PathBuf>,
    pub rules: Vec<PathBuf>,
    pub flags: Vec<Setting>,
    pub domain: String,
    pub descriptors: Vec<Entries>,
    pub json: bool,
}

/// `spillgate doctor`
#[derive(Debug)]
pub struct Doctor {
    pub config: Option<PathBuf>,
    pub flags: Vec<Setting>,
    pub json: bool,
}

/// `spillgate health`
#[derive(Debug)]
pub struct Health {
    /// The address of a listener, if the command line has it.
    pub server: Option<String>,
    pub tls: TlsFiles,
    /// Whether the command asks only whether the server answers.
    pub live: bool,
    pub json: bool,
}

/// The files for addresses with `https` that the command line names. The environment can name the others.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The authorities of the server's certificate.
    pub ca: Option<PathBuf>,
    /// The certificate of this client, and its key.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// `spillgate insight`
#[derive(Debug)]
pub struct Insight {
    /// The addresses of admin listeners. Empty if the command line has none.
    pub admin: Vec<String>,
    pub tls: TlsFiles,
    pub admin_token_file: Option<PathBuf>,
    /// The only rule that is shown.
    pub rule: Option<String>,
    /// The only domain that is shown.
    pub domain: Option<String>,
    /// Another limit, whose effect is shown.
    pub with_limit: Option<u64>,
    pub json: bool,
}

/// A command for operators, which asks the admin listener of one server.
#[derive(Debug)]
pub struct Admin {
    /// The address of the admin listener, if the command line has it.
    pub server: Option<String>,
    pub tls: TlsFiles,
    pub token_file: Option<PathBuf>,
    pub json: bool,
    pub action: AdminAction,
}

/// What an operator wants. Durations and scopes are texts that the server reads.
#[derive(Debug)]
pub enum AdminAction {
    /// `spillgate block`
    Block {
        entry: BlockedEntry,
        lasts: String,
        domain: Option<String>,
        reason: Option<String>,
        /// Whether a domain or a key that no rule has is accepted.
        allows_unmatched: bool,
    },
    /// `spillgate unblock`
    Unblock { entry: (String, String), domain: Option<String> },
    /// `spillgate blocks`
    Blocks,
    /// `spillgate shadow on` and `spillgate shadow off`
    Shadow { rule: RuleName, is_on: bool, lasts: Option<String>, scope: Option<String> },
    /// `spillgate shadows`
    Shadows,
    /// `spillgate reset`
    Reset { domain: String, descriptors: Vec<Entries> },
    /// `spillgate explain`
    Explain { request: ExplainedRequest, cost: u64, allows_unmatched: bool },
    /// `spillgate explain --caller`
    Caller { values: Vec<CallerValue>, domain: Option<String>, allows_unmatched: bool },
    /// `spillgate top`, of all rules or of those with this name or domain
    Top { rule: Option<String>, domain: Option<String> },
    /// `spillgate reload`
    Reload,
    /// `spillgate reloads`
    Reloads,
    /// `spillgate regions`, and `spillgate regions pause` or `resume`
    Regions(Option<RegionAction>),
}

/// Pauses or resumes a region.
#[derive(Debug)]
pub struct RegionAction {
    pub region: String,
    pub is_paused: bool,
}

/// What a block refuses.
#[derive(Debug)]
pub enum BlockedEntry {
    Entry((String, String)),
    /// An own entry of the caller with this hash. If it has several, the key names one.
    Hash {
        hash: String,
        key: Option<String>,
    },
}

/// The request that is explained.
#[derive(Debug)]
pub enum ExplainedRequest {
    Descriptors {
        domain: String,
        descriptors: Vec<Entries>,
    },
    /// A whole request in JSON, as `/v1/check` takes it, or as Envoy sends it. It is a text, so that the order of entries
    /// is kept.
    Json(String),
    /// The next request of the caller with this hash.
    Hash(String),
}

/// A value of a caller, with its key if the key is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerValue {
    pub key: Option<String>,
    pub value: String,
}

/// The rules of a shadow switch.
#[derive(Debug)]
pub enum RuleName {
    All,
    /// A rule with this name. Without a domain, only one domain may have such a rule.
    One {
        name: String,
        domain: Option<String>,
    },
}

/// `spillgate replay`
#[derive(Debug)]
pub struct Replay {
    pub config: Option<PathBuf>,
    pub rules: Vec<PathBuf>,
    /// The rules files that `rules` are compared with.
    pub compare: Vec<PathBuf>,
    /// The access logs. `-` is standard input.
    pub logs: Vec<PathBuf>,
    /// The format of the logs: a name, or a pattern.
    pub format: String,
    /// The field that has the time of a line. `None` means that the usual names are tried.
    pub time_field: Option<String>,
    /// The templates of the descriptors.
    pub descriptors: Vec<String>,
    /// Settings that say how clients are counted.
    pub flags: Vec<Setting>,
    /// The domain. `None` means the domain of the rules, if they have only one.
    pub domain: Option<String>,
    /// How far out of order a line can be.
    pub out_of_order: Duration,
    /// How long a request may wait in a queue.
    pub wait: Duration,
    /// Whether the suggestions of insight are replayed too.
    pub suggests: bool,
    /// Whether callers are hidden.
    pub anonymous: bool,
    pub html: Option<PathBuf>,
    pub json: bool,
}

/// `spillgate size`
#[derive(Debug, PartialEq)]
pub struct Size {
    /// The units that each key may use in a window.
    pub limit: u64,
    pub window: Duration,
    /// The burst of a token bucket. The default is the limit.
    pub burst: Option<u64>,
    /// The units that all keys together use in a second.
    pub rate: u64,
    /// The number of different keys.
    pub keys: u64,
    /// The memory that may be used, in bytes.
    pub memory: Option<u64>,
    /// The regions that share the limit.
    pub regions: Option<u8>,
    pub json: bool,
}

/// The entries of one descriptor, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries(pub Vec<(String, String)>);
