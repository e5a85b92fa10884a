//! A change that an operator asks for, and why it was not made.

use std::time::Duration;

use spillgate::units::parse_duration;

use crate::shared_store::SharedError;

use super::{BLOCKS_MAX, SWITCHES_MAX, Term};

/// The shortest time for which something is on.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest time for which something is on.
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 86_400);
/// The most bytes of a reason.
pub(crate) const REASON_BYTES: usize = 200;

/// Why a change was not made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The change is invalid. The texts say why, and what helps.
    #[error("{0}")]
    Invalid(String, &'static str),
    /// There is no such block, rule or switch. The texts say which, and what helps.
    #[error("{0}")]
    NotFound(String, String),
    /// The shared store did not make the change, or did not say whether it did.
    #[error("the store did not change its list: {0}")]
    Store(#[from] SharedError),
    /// The list is full. In a shared store, some of its entries can be those of other programs.
    #[error("the list of {what} is full: it can have {max}")]
    Full {
        /// The name of the things.
        what: &'static str,
        /// The maximum.
        max: usize,
        /// What helps.
        help: &'static str,
    },
}

impl ChangeError {
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
    /// The key of the entry.
    pub key: &'a str,
    /// The value of the entry. Only the bytes that choose the counter matter.
    pub value: &'a str,
    /// The domain. `None` means all domains.
    pub domain: Option<&'a str>,
    /// How long requests are refused, such as `10m`.
    pub lasts: &'a str,
    /// Why.
    pub reason: Option<&'a str>,
}

/// What a shadow switch applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowOf<'a> {
    /// All rules.
    All,
    /// One rule.
    Rule {
        /// Its domain.
        domain: &'a str,
        /// Its path, as `GET /rules` shows it.
        path: &'a str,
    },
}

/// Reads how long something is on, from now on.
///
/// # Errors
/// The text is not a duration, or it is out of bounds.
pub(crate) fn term(now_ms: u64, lasts: &str) -> Result<Term, ChangeError> {
    let help = "write 1s to 30d, such as 10m; what should stay longer belongs into a rules file";
    let invalid = |why: &dyn std::fmt::Display| {
        let shown: String = lasts.chars().take(32).collect();
        ChangeError::Invalid(format!("`for` is {shown:?}: {why}"), help)
    };
    let lasts = parse_duration(lasts).map_err(|error| invalid(&error))?;
    if lasts < SHORTEST || lasts > LONGEST {
        return Err(invalid(&"this is not from 1 s to 30 days"));
    }
    let lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
    Ok(Term { since_ms: now_ms, until_ms: now_ms.saturating_add(lasts_ms) })
}
