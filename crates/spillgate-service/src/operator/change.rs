//! The changes of blocks and shadow switches that an operator can ask for, and the errors if a change was not made.

use std::borrow::Cow;
use std::time::Duration;

use spillgate::units::parse_duration;

use crate::shared_store::SharedError;

use super::{BLOCKS_MAX, SWITCHES_MAX, Term};

/// A block or a shadow switch is on for at least this long.
const SHORTEST: Duration = Duration::from_secs(1);
/// A block or a shadow switch is on for at most this long.
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 86_400);
/// The maximum length of a reason, in bytes.
pub(crate) const REASON_BYTES: usize = 200;

/// Why a change was not made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The change is invalid. The first text says why, and the second one how to fix it.
    #[error("{0}")]
    Invalid(String, Cow<'static, str>),
    /// The change names a block, a rule or a switch that does not exist. The first text says which of the three, and
    /// the second one how to fix it.
    #[error("{0}")]
    NotFound(String, String),
    /// The shared store failed before the change was sent to it, or it did not make the change.
    #[error("the store did not change its list: {0}")]
    NotStored(#[from] SharedError),
    /// The change was sent to the shared store, and it may have been applied, at least in part.
    #[error("the store may have changed its list: {0}")]
    MayBeStored(SharedError),
    /// The list is full. If it is in a shared store, other programs can have added some of its entries.
    #[error("the list of {what} is full: it can have {max}")]
    Full {
        /// What the list has, in the plural: `blocks` or `shadow switches`.
        what: &'static str,
        /// The maximum number of entries in the list.
        max: usize,
        /// How the operator can free an entry, or do without one.
        help: &'static str,
    },
}

impl ChangeError {
    /// Returns the error of the command that makes the change.
    pub(crate) fn of_change(error: SharedError) -> ChangeError {
        match error.kind().may_have_been_applied() {
            true => ChangeError::MayBeStored(error),
            false => ChangeError::NotStored(error),
        }
    }

    pub(crate) const fn too_many_blocks() -> ChangeError {
        let help = "end some that are no longer needed, or write a rule with the limit 0 into a rules file";
        ChangeError::Full { what: "blocks", max: BLOCKS_MAX, help }
    }

    pub(crate) const fn too_many_switches() -> ChangeError {
        let help = "end some that are no longer needed, or write `shadow_mode: true` into a rules file";
        ChangeError::Full { what: "shadow switches", max: SWITCHES_MAX, help }
    }
}

/// A block that an operator asks for.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock<'a> {
    pub key: &'a str,
    /// The value of the entry. Only its first bytes are compared, as many as choose the counter of a request
    /// (`limits.value`).
    pub value: &'a str,
    /// `None` blocks the entry in all domains.
    pub domain: Option<&'a str>,
    /// How long requests are refused, such as `10m`.
    pub lasts: &'a str,
    /// Why the operator blocks the entry, in at most 200 bytes.
    pub reason: Option<&'a str>,
}

/// What a shadow switch applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowOf<'a> {
    /// All rules.
    All,
    /// One rule.
    Rule {
        domain: &'a str,
        /// The path of the rule, as `GET /rules` shows it.
        path: &'a str,
    },
}

/// How to write a duration that [`parse_lasts`] accepts.
pub const LASTS_HELP: &str = "write 1s to 30d, such as 10m; what should stay longer belongs into a rules file";

/// Reads how long a block or a switch is on.
///
/// # Errors
/// The text is not a duration, or the duration is not from 1 second to 30 days. The error begins with the text.
pub fn parse_lasts(lasts: &str) -> Result<Duration, String> {
    let invalid = |why: &dyn std::fmt::Display| {
        let shown: String = lasts.chars().take(32).collect();
        format!("{shown:?}: {why}")
    };
    let lasts = parse_duration(lasts).map_err(|error| invalid(&error))?;
    if lasts < SHORTEST || lasts > LONGEST {
        return Err(invalid(&"this is not from 1 s to 30 days"));
    }
    Ok(lasts)
}

/// Returns a term that begins now and is as long as `lasts` says.
///
/// # Errors
/// As [`parse_lasts`].
pub(crate) fn term(now_ms: u64, lasts: &str) -> Result<Term, ChangeError> {
    let invalid = |why| ChangeError::Invalid(format!("`for` is {why}"), LASTS_HELP.into());
    let lasts = parse_lasts(lasts).map_err(invalid)?;
    let lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
    Ok(Term { since_ms: now_ms, until_ms: now_ms.saturating_add(lasts_ms) })
}
