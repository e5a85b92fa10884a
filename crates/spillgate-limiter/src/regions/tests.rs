//! Tests of the ledger against a model of regions, and of the peers in paused time.

mod checks;
mod ledger;
mod mutations;
mod pace;
mod peers;
mod sim;

use sim::{Extras, Kind, Setup, Sim, UNBOUNDED};

/// The settings of the runs with this seed: without faults and with them.
fn traces(seed: u64, kinds: &[Kind]) -> Vec<Setup> {
    let none = Extras::default();
    let all = Extras { drains: true, reload: true, steps: true, resets: true, refunds: true, ..none };
    let extras = match seed / 2 % 11 {
        0 => none,
        1 => Extras { refunds: true, ..none },
        2 => Extras { drains: true, ..none },
        3 => Extras { reload: true, ..none },
        4 => Extras { steps: true, ..none },
        5 => Extras { resets: true, ..none },
        6 => Extras { refunds: true, drains: true, ..none },
        7 => Extras { several: true, ..none },
        8 => Extras { dead: true, ..none },
        9 => Extras { mute: true, ..none },
        _ => all,
    };
    let keys = if extras.several { 2 } else { [1, 1, 3, 12][seed as usize % 4] };
    let room = match keys {
        12 => [64, 30][seed as usize % 8 / 4],
        _ => [UNBOUNDED, 16, UNBOUNDED, 3, 4][seed as usize % 5],
    };
    let rate = [usize::MAX, 3, usize::MAX][seed as usize % 3];
    let (regions, servers) = (2 + seed as usize % 3, 1 + seed as usize / 3 % 3);
    // Only a long run sees entries end that are as old as two spans of a bucket.
    let horizon = if (seed / 7).is_multiple_of(4) { 6000 } else { 2800 };
    let setup = |&kind: &Kind| Setup { regions, servers, extras, keys, room, rate, horizon, ..Setup::new(seed, kind) };
    kinds.iter().map(setup).flat_map(|setup| [setup.clone(), Setup { faults: true, ..setup }]).collect()
}

/// `REGIONS_TRACES` sets another number of runs of all three algorithms together.
fn hold(kind: Kind) {
    let runs = std::env::var("REGIONS_TRACES").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let (mut units, mut shares, mut untold) = (0, 0, 0);
    for setup in (1..).flat_map(|seed| traces(seed, &[kind])).take(usize::div_ceil(runs, 3)) {
        let sim = Sim::new(setup).run(|_, _| ());
        assert!(sim.failure.is_none(), "{:?}: {:?}", sim.failure, sim.setup);
        units += sim.log.iter().map(Vec::len).sum::<usize>();
        (shares, untold) = (shares + sim.by_share, untold + sim.untold);
    }
    println!(
        "{} runs: {units} units were admitted, {shares} by the share, {untold} could not be told",
        runs.div_ceil(3)
    );
}

#[test]
fn invariants_hold_for_buckets() {
    hold(Kind::Bucket);
}

#[test]
fn invariants_hold_for_windows() {
    hold(Kind::Window);
}

#[test]
fn invariants_hold_for_counters() {
    hold(Kind::Counter);
}
