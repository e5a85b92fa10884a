//! The scenes: traffic whose truth is known, and what a good operator would say about it.
//!
//! The lists of acceptable verdicts were written before anybody saw what insight says.

use super::Verdict::{self, AboveRate, Bursts, Effective, NeverBinding, NeverPasses, TooEarly};
use super::Who::{self, Few, Many, Nobody, One};
use super::everybody::{
    Load, above, busy_after_quiet, early, everybody, mixed_above, mixed_batches, near_the_rate, never_used, oversized,
    permits, quiet_after_busy, refused_once, regular_bursts, retries, sale, short_and_calm, visitors,
};
use super::made::{Draw, Retry, Traffic};
use super::some::{
    abuser_beside_crowd, abusers, brute_force, crowd, crowd_of_large_site, few_above, few_bursts, mixed_abuser,
    retrying_program, scrapers,
};

/// One kind of traffic.
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// Why a good operator says so.
    pub(super) why: &'static str,
    /// What is acceptable. To say that it is too early or unclear is never wrong, only not given.
    pub(super) right: &'static [(Verdict, Who)],
    /// Whether most runs have to be given one of these verdicts.
    pub(super) must: bool,
    pub(super) make: fn(&mut Draw) -> Traffic,
}

const fn scene(
    name: &'static str,
    right: &'static [(Verdict, Who)],
    must: bool,
    why: &'static str,
    make: fn(&mut Draw) -> Traffic,
) -> Scene {
    Scene { name, why, right, must, make }
}

pub(super) const SCENES: &[Scene] = &[
    scene(
        "a crowd behind one address",
        &[(AboveRate, One)],
        true,
        "one key has all refusals, whether a crowd or an abuser is behind it",
        crowd,
    ),
    scene(
        "a crowd behind one address of a large site",
        &[(Effective, One), (AboveRate, One)],
        true,
        "less than a tenth is refused: the limit holds back one key, and nobody else notices it",
        crowd_of_large_site,
    ),
    scene(
        "scrapers beside calm users",
        &[(AboveRate, Many)],
        true,
        "a third of the callers ask for three times the rate; the others were never refused",
        scrapers,
    ),
    scene(
        "one abuser beside honest callers",
        &[(AboveRate, One)],
        true,
        "one caller has at least 93 % of the refused units, whoever else was refused once",
        |draw| abusers(draw, 1..=1, 4..=1000),
    ),
    scene(
        "one abuser beside a crowd of honest callers",
        &[(AboveRate, One), (Effective, One)],
        true,
        "the same; if little is refused in all, the limit does its work",
        abuser_beside_crowd,
    ),
    scene(
        "one abuser, 10 to 19 callers in all",
        &[(AboveRate, One)],
        true,
        "a small number of callers does not change who is refused",
        |draw| abusers(draw, 1..=1, 9..=18),
    ),
    scene("two abusers", &[(AboveRate, Few)], true, "two callers share nearly all refused units", |draw| {
        abusers(draw, 2..=2, 4..=1000)
    }),
    scene(
        "three to eight abusers",
        &[(AboveRate, Few)],
        true,
        "a handful of callers share nearly all refused units",
        |draw| abusers(draw, 3..=8, 30..=1000),
    ),
    scene(
        "brute force on a login from one address",
        &[(AboveRate, One)],
        true,
        "one address tries all the time; the others log in once or twice",
        |draw| brute_force(draw, 1..=1),
    ),
    scene(
        "brute force on a login from many addresses",
        &[(AboveRate, Many)],
        true,
        "each of many addresses tries more often than the limit allows",
        |draw| brute_force(draw, 20..=60),
    ),
    scene(
        "each caller refused in one burst",
        &[(Bursts, Many)],
        true,
        "nobody is above the rate, and one burst of each caller was too large",
        refused_once,
    ),
    scene(
        "callers that come for one burst only",
        &[(Bursts, Many)],
        true,
        "each asks for less than the rate in an hour, but for all of it at once",
        visitors,
    ),
    scene(
        "regular bursts",
        &[(Bursts, Many)],
        true,
        "all bursts are too large, and there is time enough between them",
        regular_bursts,
    ),
    scene(
        "mixed costs, 1.2 times the rate",
        &[(AboveRate, Many)],
        false,
        "everybody asks for more than the rate all the time: no burst would be enough",
        |draw| mixed_above(draw, 1.2),
    ),
    scene(
        "mixed costs, above the rate",
        &[(AboveRate, Many)],
        true,
        "everybody asks for more than twice the rate",
        |draw| mixed_above(draw, 2.5),
    ),
    scene(
        "mixed costs, batches",
        &[(Bursts, Many)],
        true,
        "expensive requests come together, but seldom",
        mixed_batches,
    ),
    scene(
        "mixed costs, one abuser",
        &[(AboveRate, One)],
        true,
        "one caller asks for many times the rate, in units",
        mixed_abuser,
    ),
    scene(
        "callers below the rate that retry without waiting",
        &[(Bursts, Many)],
        false,
        "what they ask for is below the rate; their retries only look like more",
        |draw| retries(draw, Retry::AtOnce),
    ),
    scene(
        "callers above the rate that retry without waiting",
        &[(AboveRate, Many)],
        true,
        "the first tries alone are above the rate",
        |draw| above(draw, Retry::AtOnce),
    ),
    scene(
        "one program that retries without waiting",
        &[(AboveRate, One), (Bursts, One)],
        true,
        "one caller has all refusals, for half of the time",
        retrying_program,
    ),
    scene(
        "callers below the rate that back off",
        &[(Bursts, Many)],
        false,
        "what they ask for is below the rate",
        |draw| retries(draw, Retry::Backoff),
    ),
    scene(
        "callers above the rate that back off",
        &[(AboveRate, Many)],
        true,
        "the first tries alone are above the rate",
        |draw| above(draw, Retry::Backoff),
    ),
    scene(
        "a sale",
        &[(Bursts, Many), (AboveRate, Many)],
        true,
        "everybody was above the rate for 20 minutes, and far below it for the rest of the hour",
        sale,
    ),
    scene(
        "a quiet hour after a busy one",
        &[(NeverBinding, Nobody)],
        true,
        "in the hour that insight remembers, nobody came near the limit",
        quiet_after_busy,
    ),
    scene(
        "a busy hour after a quiet one",
        &[(AboveRate, Many)],
        true,
        "in the hour that insight remembers, everybody was above the rate",
        busy_after_quiet,
    ),
    scene("9 to 20 callers above the rate", &[(AboveRate, Many)], true, "it is the same with a few callers", |draw| {
        everybody(draw, 9..=20)
    }),
    scene(
        "9 to 20 callers below the rate",
        &[(Effective, Nobody)],
        true,
        "nobody is refused, and a lower limit would refuse somebody",
        near_the_rate,
    ),
    scene(
        "9 to 20 callers far below the rate",
        &[(NeverBinding, Nobody)],
        true,
        "nobody came near the limit for more than an hour",
        |draw| never_used(draw, 9..=20),
    ),
    scene(
        "three minutes after the start, calm",
        &[(TooEarly, Nobody), (Effective, Nobody)],
        false,
        "nobody knows yet what the callers need",
        |draw| early(draw, false),
    ),
    scene(
        "three minutes after the start, an abuser",
        &[(TooEarly, One), (AboveRate, One)],
        false,
        "what one caller does can be seen at once, or later",
        |draw| early(draw, true),
    ),
    scene(
        "a limit never used by half",
        &[(NeverBinding, Nobody)],
        true,
        "nobody came near the limit for more than an hour",
        |draw| never_used(draw, 5..=1000),
    ),
    scene(
        "little use, but less than an hour of it",
        &[(TooEarly, Nobody)],
        false,
        "the busy hour of the day may be still to come",
        short_and_calm,
    ),
    scene(
        "everybody above the rate",
        &[(AboveRate, Many)],
        true,
        "the limit is too low for all of its callers",
        |draw| everybody(draw, 3..=150),
    ),
    scene("a single caller, above the rate", &[(AboveRate, One)], true, "whoever it is, it is one", |draw| {
        everybody(draw, 1..=1)
    }),
    scene(
        "many oversized requests",
        &[(NeverPasses, Nobody)],
        true,
        "nothing else is refused, and these requests can never pass",
        |draw| oversized(draw, 0.08, 0.4),
    ),
    scene(
        "a few oversized requests",
        &[(Effective, Nobody)],
        true,
        "the other requests come near the limit, and none of them is refused",
        |draw| oversized(draw, 0.005, 0.03),
    ),
    scene(
        "a few callers above a limit that many keep",
        &[(Effective, Few), (AboveRate, Few)],
        true,
        "less than a tenth of the units and callers are refused: the limit does its work",
        few_above,
    ),
    scene(
        "a few bursts beside many calm callers",
        &[(Effective, Few), (Bursts, Few)],
        true,
        "a few callers were refused once, and the limit does its work",
        few_bursts,
    ),
    scene(
        "permits, one caller with too many calls",
        &[(TooEarly, One), (Effective, One)],
        false,
        "permits have no rate, so nobody is above it",
        |draw| permits(draw, Load::OneAbove),
    ),
    scene(
        "permits, more than half in use",
        &[(Effective, Nobody)],
        true,
        "nobody is refused, and some come near the limit",
        |draw| permits(draw, Load::High),
    ),
    scene(
        "permits, few in use",
        &[(NeverBinding, Nobody)],
        true,
        "nobody came near the limit for more than an hour",
        |draw| permits(draw, Load::Low),
    ),
];
