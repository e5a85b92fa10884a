//! The Lua scripts, and how they are put together from the files in `scripts/`.
//!
//! A script checks, charges, and returns the states before. Redis executes a script as one atomic step.
//!
//! The arguments and the reply of each script are described at the top of its Lua file. In short:
//!
//! | script | KEYS | reply |
//! |---|---|---|
//! | `take_bucket`, `take_window`, `take_counter` | 1 to 32 states | the time and the state before; for several takes an array of these |
//! | `take_log`, `take_zset` | one log | the time, and the part of the log before that the take needs |
//! | `take_all` | several states | the time, then the length and the bytes of each state before |
//! | `decide` | several states | the time, the verdict, then the length and the bytes of each state before |

use std::fmt;
use std::sync::OnceLock;

/// A complete script, as Redis gets it. [`ScriptCall`](crate::ScriptCall) says which one a request needs.
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
    /// Computed when it is first needed.
    sha: OnceLock<String>,
}

/// A script made of these files, in this order.
macro_rules! script {
    ($name:literal, $($file:literal)*) => {
        Script::new($name, concat!($(include_str!(concat!("../scripts/", $file, ".lua"))),*))
    };
}

/// A step, which decides about one take. It sets whether the take fits. If it fits, it also sets the state after it and
/// when that state ends. It also says whether the state before no longer counts. It leaves `fits` unset if the general
/// script has to decide.
macro_rules! step {
    ($name:literal) => {
        concat!(
            "local fits, value, s, ns, stale\nrepeat\n",
            include_str!(concat!("../scripts/take/", $name, ".lua")),
            "until true\n",
        )
    };
}

/// The step as a function, for a script that has several steps.
macro_rules! function {
    ($name:literal) => {
        concat!("local function take_", $name, "(raw, at)\n", step!($name), "return fits, value, s, ns, stale\nend\n")
    };
}

/// A script for takes on several states, each by itself. Redis creates the functions of a script again in each call, so
/// the step is inline.
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

/// The script for one take on a log. A function of the named file returns the form of the log.
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
    "lib/log_zset" "general/bucket" "general/window" "general/counter" "general/log" "general/leases" "general/decide"
);

/// The commands that the scripts call. A user must be allowed these, EVALSHA and SCRIPT LOAD, on keys `sg:*`.
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
    /// Takes, each on a `token_bucket` or `leaky_bucket`.
    pub const TAKE_BUCKET: &'static Script = &TAKE_BUCKET;
    /// Takes, each on a `fixed_window`.
    pub const TAKE_WINDOW: &'static Script = &TAKE_WINDOW;
    /// Takes, each on a `sliding_window_counter` of one segment.
    pub const TAKE_COUNTER: &'static Script = &TAKE_COUNTER;
    /// One take on a `sliding_window_log` in a list.
    pub const TAKE_LOG: &'static Script = &TAKE_LOG;
    /// One take on a `sliding_window_log` in a sorted set.
    pub const TAKE_ZSET: &'static Script = &TAKE_ZSET;
    /// Takes on several states, all or nothing. Each must be a take that one of the first three scripts could serve.
    pub const TAKE_ALL: &'static Script = &TAKE_ALL;
    /// Any request.
    pub const DECIDE: &'static Script = &DECIDE;

    /// All scripts. They are loaded when a connection is made.
    pub const ALL: [&'static Script; 7] = [
        Script::TAKE_BUCKET,
        Script::TAKE_WINDOW,
        Script::TAKE_COUNTER,
        Script::TAKE_LOG,
        Script::TAKE_ZSET,
        Script::TAKE_ALL,
        Script::DECIDE,
    ];

    /// The scripts that decide several takes, each by itself.
    pub(crate) const EACH: [&'static Script; 3] = [Script::TAKE_BUCKET, Script::TAKE_WINDOW, Script::TAKE_COUNTER];

    /// A script that no server knows yet.
    const fn new(name: &'static str, source: &'static str) -> Script {
        Script { name, source, sha: OnceLock::new() }
    }

    /// The SHA-1 of the source in hexadecimal digits, as EVALSHA takes it. It changes with every byte of the source, so
    /// servers of two versions never call each other's scripts.
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
