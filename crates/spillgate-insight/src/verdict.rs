//! The verdict on a limit: what was seen, to whom it happened, and what an operator can do.
//!
//! The words stand here once, for the report, the commands and the page. [`judge`](super::judge) chooses the verdict.

use serde::Serialize;

/// What was seen of a limit. It is the first of these statements that holds, except that a limit that refuses little is
/// [`Effective`](Verdict::Effective), whatever its callers ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// There were too few requests, or they came for too short a time.
    TooEarly,
    /// Many requests cost more than the limit can ever allow at once.
    NeverPasses,
    /// The callers with most of the refused units ask for more than the rate, most of the time.
    AboveRate,
    /// The callers with most of the refused units keep to the rate most of the time, or got little of it. But
    /// sometimes they ask for too much at once, or they repeat refused requests.
    Bursts,
    /// The limit refuses little, and the others pass. Or it refuses nothing, but some use at least half of it.
    Effective,
    /// Nobody comes near the limit.
    NeverBinding,
    /// What was seen does not point in one direction, or too little of it can be judged.
    Unclear,
}

/// Whose units a limit has refused. Requests that can never pass do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// Nothing was refused.
    #[default]
    Nobody,
    /// One caller has at least 80 % of the refused units.
    One,
    /// At most ten callers, and at most half of all callers, have at least 80 % of the refused units together.
    Few,
    /// More callers.
    Many,
}

impl Verdict {
    /// Returns the verdict in words, for example `above the rate`.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Verdict::TooEarly => "too early",
            Verdict::NeverPasses => "can never pass",
            Verdict::AboveRate => "above the rate",
            Verdict::Bursts => "bursts",
            Verdict::Effective => "effective",
            Verdict::NeverBinding => "never binding",
            Verdict::Unclear => "unclear",
        }
    }

    /// Returns the verdict in words, and whose units were refused if this decides what to do, for example
    /// `above the rate (one caller)`.
    #[must_use]
    pub fn words_with(self, who: Who) -> String {
        match (self, who) {
            (Verdict::AboveRate | Verdict::Bursts, Who::One | Who::Few | Who::Many) => {
                format!("{} ({})", self.words(), who.words())
            }
            _ => self.words().to_owned(),
        }
    }

    /// Returns what an operator can do. `who` has the refused units.
    #[must_use]
    pub const fn advice(self, who: Who) -> &'static str {
        match (self, who) {
            (Verdict::TooEarly, Who::Nobody) => {
                "The reason says what is missing. If it is only time or requests, wait."
            }
            (Verdict::TooEarly, _) => {
                "The reason says who was refused, and what a verdict still needs. If that is clear enough, you need not wait."
            }
            (Verdict::NeverPasses, _) => "Correct the costs, or raise what the limit allows at once.",
            (Verdict::AboveRate, Who::One) => {
                "Keep the limit, and look at this caller. Before you block it, make sure that it is not many people behind one address or key."
            }
            (Verdict::AboveRate, Who::Few) => {
                "Keep the limit, and look at these callers. Before you block one, make sure that it is not many people behind one address or key."
            }
            (Verdict::AboveRate, _) => "Raise the limit, or keep it if it protects something that cannot do more.",
            (Verdict::Bursts, _) => "Raise the burst, or keep it if you want to refuse bursts.",
            (Verdict::Effective, _) => "Keep it.",
            (Verdict::NeverBinding, _) => "Lower the limit, so that it protects you.",
            (Verdict::Unclear, _) => "Read the reason and the figures.",
        }
    }

    /// Returns what can be the cause of what was seen, and how to find out which of the causes it is. Insight cannot
    /// know the cause. Returns `None` if there is nothing to explain.
    #[must_use]
    pub const fn causes(self, who: Who) -> Option<&'static str> {
        match (self, who) {
            (Verdict::AboveRate, Who::One) => Some(
                "It can be an abuser, many people behind one address or key, or a program that retries without waiting. \
                 Requests of many different users point to many people, and the same request again and again points to \
                 retries. On a login path, many different names or passwords point to brute force.",
            ),
            (Verdict::AboveRate, Who::Few) => Some(
                "They can be abusers, addresses or keys that many people share, or programs that retry without waiting. \
                 Requests of many different users point to many people, and the same request again and again points to \
                 retries. Requests for all pages or names in order point to scrapers.",
            ),
            (Verdict::AboveRate, _) => Some(
                "It can be a limit that is too low, a sale, or clients that retry without waiting. A limit that is too \
                 low refuses on all days, a sale ends, and retries come right after a refusal.",
            ),
            (Verdict::Bursts, _) => Some(
                "It can be pages that load many parts at once, batch jobs, a short rush such as a sale, or clients that retry \
                 without waiting. Parts of a page have different paths in the same second, batch jobs come at fixed times, and \
                 retries come right after a refusal.",
            ),
            _ => None,
        }
    }

    /// Returns how much a limit with this verdict needs the attention of an operator, from 1 to 8. Lists show the
    /// limits with the highest numbers first. A limit that could be lower comes last.
    #[must_use]
    pub const fn attention(self, who: Who) -> u8 {
        match (self, who) {
            (Verdict::AboveRate, Who::Many) => 8,
            (Verdict::NeverPasses, _) => 7,
            (Verdict::AboveRate, _) => 6,
            (Verdict::Bursts, _) => 5,
            (Verdict::Unclear, _) => 4,
            (Verdict::Effective, _) => 3,
            (Verdict::TooEarly, _) => 2,
            (Verdict::NeverBinding, _) => 1,
        }
    }

    /// Returns the urgency, by which a page chooses the colour of the verdict.
    #[must_use]
    pub const fn urgency(self, who: Who) -> Urgency {
        match (self, who) {
            (Verdict::AboveRate, Who::Many) | (Verdict::NeverPasses, _) => Urgency::High,
            (Verdict::AboveRate | Verdict::Bursts | Verdict::NeverBinding, _) => Urgency::Low,
            (Verdict::Effective, _) => Urgency::None,
            (Verdict::TooEarly | Verdict::Unclear, _) => Urgency::Unknown,
        }
    }
}

impl Who {
    /// Returns the answer in words, for example `one caller`.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Who::Nobody => "nobody",
            Who::One => "one caller",
            Who::Few => "a few callers",
            Who::Many => "many callers",
        }
    }
}

/// How soon an operator should look at a limit with a [`Verdict`]. Each urgency has a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The limit refuses callers that it probably should let pass.
    High,
    /// The limit works, but there is something to look at.
    Low,
    /// There is nothing to do.
    None,
    /// It is not known whether the limit works.
    Unknown,
}
