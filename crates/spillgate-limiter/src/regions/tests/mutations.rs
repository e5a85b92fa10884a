//! Each rule of the design is broken once, and an invariant has to notice it.

use super::sim::{Extras, Kind, Setup, Sim};
use super::traces;
use crate::regions::rules::Rule;

macro_rules! mutations {
    ($($name:ident)*) => {
        /// A rule that is broken. The names are those of the design.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Mutation {
            $($name),*
        }

        impl Mutation {
            pub(super) const ALL: &[Mutation] = &[$(Mutation::$name),*];
        }
    };
}

mutations! {
    Changes Overwrite SeenBesideCharge IdReused IdKept SpanIgnored EarlyCharged HashTooShort AckedWhenSent StepNotDivided
    OneHashForAllSpans NeverGivenUp ToldOn RefundBelowSent NoShare ShareAboveBrim ShareNotCharged OwnChargeLater
    ShareBurstOne ShareBurstReview ShareBurstWhole ShareWholeRate ForceThoughRefused NamedByQuota SpanFromNow FullForgets
    FullKeepsStep DrainKeepsStep LivesByStoreClock SentAfterItsEnd DeadPeerFills Clamp2BT
}

impl Mutation {
    /// The rule of the ledger that is broken. The other mutations are in the store, the network or the server of the
    /// simulation.
    pub(super) fn rule(self) -> Option<Rule> {
        match self {
            Mutation::RefundBelowSent => Some(Rule::RefundNotBelowSent),
            Mutation::NeverGivenUp => Some(Rule::EntriesEnd),
            Mutation::SentAfterItsEnd => Some(Rule::NotSentAfterItsEnd),
            Mutation::FullForgets => Some(Rule::FullKeepsWhatWaits),
            Mutation::FullKeepsStep => Some(Rule::FullSendsRests),
            Mutation::StepNotDivided => Some(Rule::StepIsDivided),
            Mutation::DeadPeerFills => Some(Rule::LostRegionsDoNotCount),
            _ => None,
        }
    }

    /// Some faults need a certain place: few entries, clocks that step, drains, a large step.
    fn place(self, setup: Setup) -> Setup {
        let none = Extras::default();
        let fast = Setup { rate: usize::MAX, ..setup };
        match self {
            Mutation::IdKept => Setup { room: 2, keys: 3, limit: Some(10), burst: Some(10), ..fast },
            Mutation::FullForgets => Setup { room: 4, keys: 12, ..fast },
            Mutation::FullKeepsStep => Setup {
                regions: 2,
                servers: 1,
                room: 30,
                keys: 12,
                limit: Some(200),
                burst: Some(200),
                faults: false,
                extras: none,
                ..fast
            },
            Mutation::DrainKeepsStep => Setup {
                regions: 2,
                servers: 1,
                limit: Some(200),
                burst: Some(200),
                faults: false,
                extras: Extras { drains: true, ..none },
                ..setup
            },
            Mutation::LivesByStoreClock => Setup { extras: Extras { steps: true, ..none }, ..setup },
            Mutation::SpanFromNow => Setup { extras: Extras { steps: true, ..none }, ..setup },
            Mutation::SentAfterItsEnd => Setup { extras: Extras { mute: true, ..none }, ..setup },
            Mutation::DeadPeerFills => Setup {
                regions: 3,
                room: 34,
                keys: 12,
                limit: Some(10),
                burst: Some(10),
                faults: false,
                extras: Extras { dead: true, ..none },
                ..fast
            },
            _ => setup,
        }
    }

    /// Returns after how many runs an invariant fails, and which one. The same run without the mutation must pass.
    fn caught(self) -> Option<(usize, String)> {
        let runs = (1..400).flat_map(|seed| traces(seed, &[Kind::Bucket, Kind::Window, Kind::Counter]));
        let runs = runs.map(|setup| self.place(Setup { horizon: 6000, ..setup }));
        (1..).zip(runs).find_map(|(run, setup)| {
            let broken = Sim::new(Setup { mutation: Some(self), ..setup.clone() }).run(|_, _| ());
            let failure = broken.failure?;
            let whole = Sim::new(setup).run(|_, _| ());
            assert_eq!(whole.failure, None, "{:?}", whole.setup);
            Some((run, failure))
        })
    }
}

/// Each mutation but the last one is caught by a random run.
#[test]
fn every_mutation_is_caught() {
    for &mutation in Mutation::ALL.iter().filter(|mutation| **mutation != Mutation::Clamp2BT) {
        let Some((runs, what)) = mutation.caught() else { panic!("no invariant notices {mutation:?}") };
        println!("{mutation:?}: run {runs}: {what}");
    }
}

/// Returns what regions admit that always burst together when all buckets are full, as a part of the limit.
fn long_run(regions: usize, mutation: Option<Mutation>) -> f64 {
    const BURST: u64 = 20;
    const INTERVAL: i64 = 50;
    let setup = Setup {
        regions,
        mutation,
        limit: Some(BURST),
        window: Some(BURST as i64 * INTERVAL),
        burst: Some(BURST),
        sync: Some(60),
        longest_way: Some(40),
        horizon: 60 * BURST as i64 * INTERVAL,
        quiet: true,
        ..Setup::new(1, Kind::Bucket)
    };
    let mut last = 0;
    let mut sim = Sim::new(setup);
    sim.call_at(1, 0);
    let sim = sim.run(|sim, _| {
        let is_full = sim.all_full();
        if is_full {
            last = sim.now;
            for region in (0..BURST).flat_map(|_| 0..regions) {
                sim.ask(region, 0, &[(0, 1)]);
            }
        }
        let later = if is_full { sim.sync + sim.longest_way + 5 } else { 5 };
        sim.call_at(sim.now + later, 0);
    });
    let units = sim.log[0].iter().filter(|unit| unit.at < last).count();
    units as f64 / (last / INTERVAL) as f64
}

/// A debt that is cut too early is never repaid: regions that burst together would admit more than the limit for ever.
#[test]
fn a_bucket_repays_what_regions_admit_together() {
    for regions in [2, 3, 4] {
        let (design, cut) = (long_run(regions, None), long_run(regions, Some(Mutation::Clamp2BT)));
        println!(
            "{regions} regions that burst together: {design:.2} of the limit, {cut:.2} with the debt of one region"
        );
        assert!((0.9..=1.01).contains(&design), "{regions} regions: {design}");
        assert!(regions == 2 || cut > 1.3, "{regions} regions: {cut}");
    }
}
