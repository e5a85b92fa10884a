//! The Lua scripts. Each script is put together from files in the folder `scripts/`.
//!
//! A script checks whether a request fits, charges it, and returns the states as they were before the request. Redis
//! executes a script as one atomic step.
//!
//! The Lua files describe the arguments and the replies in full. In short:
//!
//! | script | KEYS | reply |
//! |---|---|---|
//! | `take_bucket`, `take_window`, `take_counter` | 1 to 32 states | for one take, the time and the old state; for several takes, an array of such replies |
//! | `take_log`, `take_zset` | one log | the time, and the part of the old log that the take needs |
//! | `take_all` | several states | the time, then the length and the bytes of each old state |
//! | `decide` | several states | the time, the verdict, then the length and the bytes of each old state |
//! | `merge` | states, each with a hash | one byte for each total of another region |

use std::fmt;
use std::sync::OnceLock;

/// A complete script, as Redis gets it. A [`ScriptCall`](crate::ScriptCall) names the script that a request needs.
///
/// ```
/// use spillgate_redis::Script;
///
/// assert_eq!(Script::DECIDE.name, "decide");
/// assert_eq!(Script::DECIDE.sha().len(), 40);
/// ```
pub struct Script {
    /// The name, which `spillgate doctor` prints.
    pub name: &'static str,
    /// The source, as SCRIPT LOAD takes it.
    pub source: &'static str,
    /// The SHA-1 of the source. Empty until it is first needed.
    sha: OnceLock<String>,
}

/// Joins these files, in this order, into one script.
macro_rules! script {
    ($name:literal, $($file:literal)*) => {
        Script::new($name, concat!($(include_str!(concat!("../scripts/", $file, ".lua"))),*))
    };
}

/// Returns the Lua code of a step. A step decides one take and sets these variables:
///
/// * `fits`: whether the take fits. Stays unset if the general script has to decide.
/// * `value`: the state after the take, if the take fits.
/// * `s` and `ns`: the time when the state `value` expires, in seconds and further nanoseconds, if the take fits.
/// * `stale`: whether the old state no longer counts and can be deleted.
macro_rules! step {
    ($name:literal) => {
        concat!(
            "local fits, value, s, ns, stale\nrepeat\n",
            include_str!(concat!("../scripts/take/", $name, ".lua")),
            "until true\n",
        )
    };
}

/// Returns the step as a Lua function, for a script that has several steps.
macro_rules! function {
    ($name:literal) => {
        concat!("local function take_", $name, "(raw, at)\n", step!($name), "return fits, value, s, ns, stale\nend\n")
    };
}

/// Makes a script for several takes, each decided independently of the others. The step is not a Lua function here,
/// because Redis would create the function again in each call.
macro_rules! take_each {
    ($($shared:literal)* => $name:literal) => {
        Script::new(
            concat!("take_", $name),
            concat!(
                include_str!("../scripts/lib/clock.lua"),
                $(include_str!(concat!("../scripts/lib/", $shared, ".lua")),)*
                include_str!("../scripts/take/each_get.lua"),
                step!($name),
                include_str!("../scripts/take/each_set.lua"),
            ),
        )
    };
}

/// Makes a script for one take on a log. `$file` has the functions that read and write the log, and `$form` is the name
/// of the Lua function that returns them.
macro_rules! take_log {
    ($name:literal, $file:literal $form:literal) => {
        Script::new(
            $name,
            concat!(
                include_str!("../scripts/lib/clock.lua"),
                include_str!("../scripts/lib/ending.lua"),
                include_str!("../scripts/lib/writes.lua"),
                include_str!("../scripts/lib/logs.lua"),
                include_str!(concat!("../scripts/lib/", $file, ".lua")),
                "local form = ",
                $form,
                "()\n",
                include_str!("../scripts/take/log.lua"),
            ),
        )
    };
}

static TAKE_BUCKET: Script = take_each!(=> "bucket");
static TAKE_WINDOW: Script = take_each!("windows" => "window");
static TAKE_COUNTER: Script = take_each!("windows" "products" => "counter");
static TAKE_ALL: Script = Script::new(
    "take_all",
    concat!(
        include_str!("../scripts/lib/clock.lua"),
        include_str!("../scripts/lib/ending.lua"),
        include_str!("../scripts/lib/windows.lua"),
        include_str!("../scripts/lib/products.lua"),
        function!("bucket"),
        function!("window"),
        function!("counter"),
        include_str!("../scripts/take/all.lua"),
    ),
);
static TAKE_LOG: Script = take_log!("take_log", "log_list" "list_form");
static TAKE_ZSET: Script = take_log!("take_zset", "log_zset" "zset_form");
static DECIDE: Script = script!(
    "decide", "lib/clock" "lib/ending" "lib/writes" "general/parts" "lib/windows" "lib/products" "lib/logs" "lib/log_list"
    "lib/log_zset" "general/bucket" "general/window" "general/counter" "general/log" "general/leases" "general/strings"
    "general/decide"
);
static MERGE: Script = script!(
    "merge", "lib/clock" "lib/ending" "lib/writes" "general/parts" "lib/windows" "lib/products" "general/bucket"
    "general/window" "general/counter" "general/strings" "merge"
);

/// The commands that the scripts call. A Redis user needs the right to call these commands on keys `sg:*`. It also
/// needs EVALSHA and SCRIPT LOAD.
///
/// ```
/// use spillgate_redis::SCRIPT_COMMANDS;
///
/// let rights: Vec<String> = SCRIPT_COMMANDS.iter().map(|command| format!("+{}", command.to_lowercase())).collect();
/// let rule = format!("ACL SETUSER limiter on >secret ~sg:* +evalsha +script|load {}", rights.join(" "));
/// assert!(rule.contains(" +get "));
/// ```
pub const SCRIPT_COMMANDS: [&str; 24] = [
    "DEL",
    "GET",
    "HDEL",
    "HGET",
    "HGETALL",
    "HMGET",
    "HSET",
    "LINDEX",
    "LLEN",
    "LPOP",
    "LPOS",
    "LPUSH",
    "LRANGE",
    "LREM",
    "LTRIM",
    "PEXPIRE",
    "PEXPIREAT",
    "RPUSH",
    "SET",
    "TIME",
    "ZADD",
    "ZCARD",
    "ZRANGE",
    "ZREMRANGEBYRANK",
];

impl Script {
    /// Decides takes, each on a `token_bucket` or `leaky_bucket`.
    pub const TAKE_BUCKET: &'static Script = &TAKE_BUCKET;
    /// Decides takes, each on a `fixed_window`.
    pub const TAKE_WINDOW: &'static Script = &TAKE_WINDOW;
    /// Decides takes, each on a `sliding_window_counter` of one segment.
    pub const TAKE_COUNTER: &'static Script = &TAKE_COUNTER;
    /// Decides one take on a `sliding_window_log` in a list.
    pub const TAKE_LOG: &'static Script = &TAKE_LOG;
    /// Decides one take on a `sliding_window_log` in a sorted set.
    pub const TAKE_ZSET: &'static Script = &TAKE_ZSET;
    /// Decides takes on several states. Either all takes are charged, or none is charged. Each take must be one that
    /// `take_bucket`, `take_window` or `take_counter` could decide.
    pub const TAKE_ALL: &'static Script = &TAKE_ALL;
    /// Decides any request.
    pub const DECIDE: &'static Script = &DECIDE;

    /// Charges what servers of other regions have admitted.
    pub const MERGE: &'static Script = &MERGE;

    /// The scripts of decisions. They are loaded when a connection is made. `merge` is loaded when it is first needed,
    /// because only a store of another region needs it.
    pub const ALL: [&'static Script; 7] = [
        Script::TAKE_BUCKET,
        Script::TAKE_WINDOW,
        Script::TAKE_COUNTER,
        Script::TAKE_LOG,
        Script::TAKE_ZSET,
        Script::TAKE_ALL,
        Script::DECIDE,
    ];

    /// The scripts that decide several takes, each independently of the others.
    pub(crate) const EACH: [&'static Script; 3] = [Script::TAKE_BUCKET, Script::TAKE_WINDOW, Script::TAKE_COUNTER];

    const fn new(name: &'static str, source: &'static str) -> Script {
        Script { name, source, sha: OnceLock::new() }
    }

    /// Returns the SHA-1 of the source in hexadecimal digits, as EVALSHA needs it. Scripts that differ in any byte have
    /// different SHA-1s. So two versions of spillgate never call each other's scripts.
    pub fn sha(&self) -> &str {
        self.sha.get_or_init(|| sha1_smol::Sha1::from(self.source).digest().to_string())
    }
}

/// Compares the names. No two scripts have the same name.
impl PartialEq for Script {
    fn eq(&self, other: &Script) -> bool {
        self.name == other.name
    }
}

impl Eq for Script {}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({})", self.name)
    }
}
