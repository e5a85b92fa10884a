//! Scenes of real life, with the verdicts that a good operator would give. `make show-insight` runs each of them 500 times.
//!
//! Their author did not read the code that finds verdicts. A scene is right or wrong by what its generator knows.

mod everybody;
mod harm;
mod list;
mod made;
mod some;

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;
use serde_json::Value;
use spillgate_testkit::Random;

use super::is_all;
use list::{SCENES, Scene};
use made::{Draw, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    TooEarly,
    NeverPasses,
    AboveRate,
    Bursts,
    Effective,
    NeverBinding,
    Unclear,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Who {
    Nobody,
    One,
    Few,
    Many,
}

/// What a report says.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct Seen {
    verdict: Verdict,
    who: Who,
}

impl Seen {
    fn of(report: &Value) -> Seen {
        Seen::deserialize(report).unwrap_or_else(|error| panic!("{error}: {}", report["verdict"]))
    }

    const fn is_given(self) -> bool {
        !matches!(self.verdict, Verdict::TooEarly | Verdict::Unclear)
    }
}

/// One run of a scene.
struct Ran {
    scene: usize,
    run: u64,
    seen: Seen,
    is_right: bool,
    harm: Option<String>,
    reason: String,
}

/// Who is refused, by the definition in the documentation, from what was really decided.
fn who(outcome: &Outcome) -> Who {
    let (units, asked) = harm::refused_units(outcome);
    let sum: u64 = units.iter().sum();
    let most = |callers: usize| units.iter().take(callers).sum::<u64>() * 5 >= sum * 4;
    match () {
        () if sum == 0 => Who::Nobody,
        () if most(1) => Who::One,
        () if most(usize::min(10, asked / 2)) => Who::Few,
        () => Who::Many,
    }
}

fn drawn(number: usize, run: u64) -> Draw {
    let seed = ((number as u64 + 1) << 32 | (run + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Large numbers of callers take long, so they are few.
    let most_callers = match (is_all(), run % 20, run % 4) {
        (true, 19, _) => 100_000,
        (true, _, 3) => 1_000,
        (true, ..) => 150,
        (false, ..) => 60,
    };
    Draw { random: Random(seed | 1), most_callers }
}

fn ran(number: usize, scene: &Scene, run: u64) -> Ran {
    let outcome = (scene.make)(&mut drawn(number, run)).played();
    let who = who(&outcome);
    let name = scene.name;
    assert!(
        scene.right.iter().any(|right| right.1 == who),
        "{name}, run {run}: the traffic is wrong: {who:?}, {:?}",
        outcome.quota
    );
    let report = serde_json::to_value(&outcome.report).expect("a report is JSON");
    let seen = Seen::of(&report);
    let is_right = scene.right.contains(&(seen.verdict, seen.who));
    let reason = report["reason"].as_str().expect("a report has a reason").to_owned();
    Ran { scene: number, run, seen, is_right, harm: harm::harm(&outcome, &report), reason }
}

/// Runs all scenes, on all cores.
fn all_ran(runs: u64) -> Vec<Ran> {
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let number = job / runs as usize;
                    let Some(scene) = SCENES.get(number) else { break };
                    let ran = ran(number, scene, job as u64 % runs);
                    all.lock().expect("no run fails").push(ran);
                }
            });
        }
    });
    let mut all = all.into_inner().expect("no run fails");
    all.sort_by_key(|ran| (ran.scene, ran.run));
    all
}

/// Numbers of runs.
#[derive(Clone, Copy, Default)]
struct Sums {
    runs: usize,
    given: usize,
    right: usize,
    harmful: usize,
}

impl Sums {
    fn of<'r>(all: impl Iterator<Item = &'r Ran>) -> Sums {
        all.fold(Sums::default(), |sums, ran| Sums {
            runs: sums.runs + 1,
            given: sums.given + usize::from(ran.seen.is_given()),
            right: sums.right + usize::from(ran.seen.is_given() && ran.is_right),
            harmful: sums.harmful + usize::from(ran.harm.is_some()),
        })
    }

    /// Whether `percent` % of the verdicts that are given are acceptable.
    const fn is_right(&self, percent: usize) -> bool {
        self.right * 100 >= self.given * percent
    }

    const fn is_given(&self, percent: usize) -> bool {
        self.given * 100 >= self.runs * percent
    }
}

fn percent(part: usize, whole: usize) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

/// The ten strangest sentences: those with harmful advice first, then those of wrong verdicts, then the longest.
fn strangest(all: &[Ran]) -> String {
    let mut all: Vec<&Ran> = all.iter().collect();
    let rank = |ran: &Ran| (ran.harm.is_none(), ran.is_right || !ran.seen.is_given(), !ran.reason.len());
    all.sort_by_key(|ran| rank(ran));
    // One sentence of each scene says more than ten of one scene.
    let mut scenes = Vec::new();
    all.retain(|ran| {
        !scenes.contains(&ran.scene) && {
            scenes.push(ran.scene);
            true
        }
    });
    all.iter().take(10).fold(String::new(), |mut text, ran| {
        let Ran { scene, run, seen, harm, reason, .. } = ran;
        let harm = harm.as_deref().map_or(String::new(), |harm| format!(" HARMFUL: {harm}."));
        let name = SCENES[*scene].name;
        let _ = writeln!(text, "* {name} (run {run}): {:?}, {:?}.{harm} {reason}", seen.verdict, seen.who);
        text
    })
}

#[test]
fn a_good_operator_would_say_the_same_of_each_scene() {
    let all = all_ran(if is_all() { 500 } else { 5 });
    println!("| scene | acceptable, because | runs | acceptable, of those given | given | harmful |");
    println!("|---|---|---|---|---|---|");
    let mut failed = String::new();
    for (number, scene) in SCENES.iter().enumerate() {
        let sums = Sums::of(all.iter().filter(|ran| ran.scene == number));
        let Sums { runs, given, right, harmful } = sums;
        let (acceptable, share) = (percent(right, given), percent(given, runs));
        let Scene { name, why, must, .. } = scene;
        println!("| {name} | {why} | {runs} | {acceptable} | {share} | {harmful} |");
        let rarely_given = *must && !sums.is_given(70);
        if is_all() && (!sums.is_right(95) || rarely_given) || harmful > 0 {
            let _ = writeln!(failed, "{name}: {acceptable} acceptable, {share} given, {harmful} harmful");
        }
    }
    let whole = Sums::of(all.iter());
    let has_verdict = |ran: &&Ran| SCENES[ran.scene].right.iter().any(|right| right.0 != Verdict::TooEarly);
    let given = Sums::of(all.iter().filter(has_verdict));
    println!(
        "| all | | {} | {} | {} | {} |",
        whole.runs,
        percent(whole.right, whole.given),
        percent(given.given, given.runs),
        whole.harmful
    );
    println!("\nThe ten strangest sentences:\n\n{}", strangest(&all));
    assert!(failed.is_empty(), "scenes that fail:\n{failed}\n{}", strangest(&all));
    let least = if is_all() { 99 } else { 95 };
    assert!(whole.is_right(least), "{} of {} verdicts are acceptable:\n{}", whole.right, whole.given, strangest(&all));
    assert!(given.is_given(70), "{} of {} runs are given a verdict", given.given, given.runs);
}
