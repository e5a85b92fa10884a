//! Several regions in simulated time: the real ledger, the real kernel, a model of the script that charges, and a network
//! that loses, repeats and reorders.
//!
//! A tick is 10 ms. `Sim::fail` keeps the first invariant that does not hold.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillgate_core::{
    AcrossRegions, Binding, Charged, Decision, Hit, Op, Quota, QuotaBuilder, Receipt, Regions, Span, State, Time,
    decide,
};
use spillgate_testkit::Random;

use super::mutations::Mutation;
use crate::regions::ledger::{Due, Ledger};

pub(super) const TICK_NS: u64 = 10_000_000;
/// The time of tick 0 in ticks since the epoch, so that no clock that is set back comes before the epoch.
const BASE: i64 = 1 << 32;
/// The ticks after which an unacknowledged total is sent again.
pub(super) const AGAIN: i64 = 100;
/// How much longer than its entry a hash lives: 10 s.
const GRACE: i64 = 1000;
const MOST_REGIONS: usize = 4;
pub(super) const UNBOUNDED: u32 = 1 << 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bucket,
    Window,
    Counter,
}

/// What can happen beside requests and faults of the network.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extras {
    pub(super) refunds: bool,
    pub(super) drains: bool,
    pub(super) reload: bool,
    pub(super) steps: bool,
    pub(super) resets: bool,
    pub(super) several: bool,
    /// The last region is cut off from the start.
    pub(super) dead: bool,
    /// The last region is charged, but its answers and what it tells are lost.
    pub(super) mute: bool,
}

/// Everything that is chosen for a run. `None` is chosen by the seed.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) kind: Kind,
    pub(super) regions: usize,
    pub(super) servers: usize,
    pub(super) keys: usize,
    pub(super) room: u32,
    /// The most entries that a server sends to one region at a time.
    pub(super) rate: usize,
    pub(super) faults: bool,
    pub(super) extras: Extras,
    pub(super) mutation: Option<Mutation>,
    pub(super) limit: Option<u64>,
    pub(super) window: Option<i64>,
    pub(super) burst: Option<u64>,
    pub(super) sync: Option<i64>,
    pub(super) longest_way: Option<i64>,
    pub(super) horizon: i64,
    /// No faults, no random demand, and no check but of the charges.
    pub(super) quiet: bool,
}

impl Setup {
    pub(super) fn new(seed: u64, kind: Kind) -> Setup {
        Setup {
            seed,
            kind,
            regions: 3,
            servers: 1,
            keys: 1,
            room: UNBOUNDED,
            rate: usize::MAX,
            faults: false,
            extras: Extras::default(),
            mutation: None,
            limit: None,
            window: None,
            burst: None,
            sync: None,
            longest_way: None,
            horizon: 6000,
            quiet: false,
        }
    }
}

/// A limit as it is shared. `window` is in ticks.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    pub(super) quota: Arc<Quota>,
    pub(super) window: i64,
    pub(super) regions: u64,
    shares: HashMap<u64, Quota>,
}

impl Limit {
    fn new(kind: Kind, regions: usize, limit: u64, window: i64, burst: u64, mutation: Option<Mutation>) -> Limit {
        let length = Duration::from_nanos(window as u64 * TICK_NS);
        let builder: QuotaBuilder = match kind {
            Kind::Bucket => Quota::token_bucket(limit, length).burst(burst),
            Kind::Window => Quota::fixed_window(limit, length),
            Kind::Counter => Quota::sliding_window_counter(limit, length),
        };
        let plain = builder.build().expect("the quota is valid");
        let number = Regions::new(regions as u8).expect("2 to 8 regions");
        let shared = plain.across(AcrossRegions::Shared(number)).expect("it can be shared");
        let quota = if mutation == Some(Mutation::Clamp2BT) { plain } else { shared };
        Limit { quota: Arc::new(quota), window, regions: regions as u64, shares: HashMap::new() }
    }

    pub(super) fn interval(&self) -> u64 {
        self.quota.interval_ns()
    }

    /// The largest burst of the share for requests of this cost.
    pub(super) fn burst(&self, cost: u64) -> u64 {
        cost.max((8 * cost).min(self.quota.capacity() / self.regions))
    }

    fn share(&mut self, cost: u64) -> &Quota {
        self.shares.entry(cost).or_insert_with(|| self.quota.guaranteed(cost).expect("a bucket has a share"))
    }

    /// The share as a mutation has it.
    fn broken_share(&mut self, cost: u64, mutation: Option<Mutation>) -> Quota {
        let capacity = self.quota.capacity();
        let (slower, burst) = match mutation {
            Some(Mutation::ShareBurstOne) => (self.regions, cost),
            Some(Mutation::ShareBurstWhole) => (self.regions, capacity),
            Some(Mutation::ShareBurstReview) => (self.regions, cost.max(8.min(capacity / self.regions))),
            Some(Mutation::ShareWholeRate) => (1, self.burst(cost)),
            _ => return self.share(cost).clone(),
        };
        let interval = Duration::from_nanos(self.interval() * slower);
        Quota::token_bucket(1, interval).burst(burst).build().expect("the share is valid")
    }

    /// The step that the ledger uses.
    pub(super) fn step(&self, servers: usize) -> u64 {
        (self.quota.capacity() / (20 * (self.regions - 1) * servers as u64)).max(1)
    }
}

/// What is counted under one id in one span.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) span: Option<Span>,
    pub(super) server: usize,
    /// The units in the log.
    units: Vec<u32>,
    pub(super) lowered: u64,
    pub(super) told: [u64; MOST_REGIONS],
}

/// One admitted unit.
pub(super) struct Unit {
    pub(super) at: i64,
    pub(super) region: usize,
    /// What it is counted under, and its number there. `None` if it is not told.
    pub(super) counted: Option<(u32, u64)>,
    pub(super) span: Span,
    /// When each region learned of it, or 0.
    pub(super) known_at: [i64; MOST_REGIONS],
}

#[derive(Clone, Default)]
struct Hash {
    expires: i64,
    seen: Vec<(u64, u64)>,
}

#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) states: Vec<State>,
    shares: Vec<State>,
    hashes: HashMap<(usize, Option<Span>), Hash>,
    /// No hash expires earlier.
    earliest: i64,
}

impl Store {
    fn new(keys: usize) -> Store {
        Store { states: vec![State::default(); keys], shares: vec![State::default(); keys], ..Store::default() }
    }
}

pub(super) struct Server {
    pub(super) region: usize,
    pub(super) ledger: Ledger,
    pub(super) drains: Option<i64>,
    /// What a mutation has sent of each total.
    sent: HashMap<(usize, u64, Span, u128), u64>,
}

struct Message {
    server: usize,
    to: usize,
    due: Due,
    total: u64,
    half: bool,
}

enum Event {
    Request {
        region: usize,
    },
    Flush {
        server: usize,
    },
    Arrive(Box<Message>),
    Answer(Box<Message>, Charged),
    ChargeLater {
        region: usize,
        key: usize,
        cost: u64,
    },
    Refund(Box<Taken>),
    Replace {
        region: usize,
        place: usize,
        drain: bool,
    },
    Reload {
        region: usize,
    },
    Step {
        region: usize,
        by: i64,
    },
    Reset {
        region: usize,
    },
    Cut {
        from: usize,
        to: usize,
        is_cut: bool,
    },
    Keep {
        region: usize,
        later: i64,
    },
    Failover {
        region: usize,
        kept: Box<Store>,
    },
    Clear {
        region: usize,
    },
    Evict {
        region: usize,
    },
    /// An event of a test with a demand of its own.
    Own(u64),
}

struct Taken {
    region: usize,
    server: usize,
    key: usize,
    cost: u64,
    at: Time,
    share: Option<Receipt>,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Costs {
    One,
    Equal,
    Mixed,
}

pub(super) struct Sim {
    pub(super) setup: Setup,
    pub(super) random: Random,
    pub(super) now: i64,
    pub(super) limits: Vec<Limit>,
    pub(super) first_limit: Limit,
    pub(super) limit_now: Limit,
    pub(super) sync: i64,
    pub(super) longest_way: i64,
    /// The difference of the clocks, as far as it delays a charge.
    pub(super) apart: i64,
    pub(super) clocks: Vec<i64>,
    pub(super) stores: Vec<Store>,
    pub(super) servers: Vec<Server>,
    pub(super) current: Vec<Vec<usize>>,
    /// When each event happens, its number in the order of planning, and its place in `events`.
    queue: BinaryHeap<Reverse<(i64, u32, u32)>>,
    events: Vec<Event>,
    free: Vec<u32>,
    next_event: u32,
    ids: Arc<AtomicU64>,
    costs: Costs,
    equal_costs: Vec<u64>,
    pub(super) cut: Vec<(usize, usize)>,
    pub(super) cuts: u32,
    pub(super) losses: Vec<(i64, usize)>,
    pub(super) resets: Vec<(i64, usize)>,
    pub(super) stepped: Vec<(i64, usize)>,
    pub(super) killed: bool,
    pub(super) hash_losses: [u64; MOST_REGIONS],
    pub(super) given: u64,
    pub(super) untold: u64,
    pub(super) by_share: u64,
    pub(super) largest_cost: u64,
    several: bool,
    pub(super) log: Vec<Vec<Unit>>,
    pub(super) counted: Vec<Counted>,
    names: HashMap<(usize, u64, Span), u32>,
    reference: Vec<Vec<(State, u64)>>,
    pub(super) got: Vec<Vec<u64>>,
    cost_seen: Vec<Vec<Option<u64>>>,
    mixed_costs: Vec<Vec<bool>>,
    pub(super) failure: Option<String>,
}

fn take(key: u128, quota: &Quota, cost: u64) -> Hit<'_> {
    Hit::new(key, quota, Op::take(cost), Binding::Enforce)
}

/// Asks the kernel about one hit on one state.
fn ask_one(state: &mut State, hit: Hit<'_>, now: Time) -> Decision {
    let mut decisions = [Decision::default()];
    let _ = decide(std::slice::from_mut(state), &[0], &[hit], now, &mut decisions);
    decisions[0]
}

fn force(state: &mut State, quota: &Quota, cost: u64, now: Time) {
    let _ = ask_one(state, Hit::new(0, quota, Op::Force { cost }, Binding::Enforce), now);
}

impl Sim {
    pub(super) fn new(setup: Setup) -> Sim {
        let mut random = Random(setup.seed * 0x9e37_79b9 + 1);
        for _ in 0..4 {
            random.below(2);
        }
        let regions = setup.regions;
        let limit = setup.limit.unwrap_or(*random.pick(&[4, 10, 40, 200]));
        let window = setup.window.unwrap_or(*random.pick(&[400, 1000, 2000]));
        let other = *random.pick(&[1, 3, limit * 2]);
        let burst = setup.burst.unwrap_or(if random.below(10) < 4 { other } else { limit });
        let limit = Limit::new(setup.kind, regions, limit, window, burst, setup.mutation);
        let longest_way = setup.longest_way.unwrap_or(*random.pick(&[20, 80, 150]));
        let sync = setup.sync.unwrap_or(*random.pick(&[20, 50, 100]));
        let clocks: Vec<i64> = (0..regions)
            .map(|region| match setup.kind {
                _ if region == 0 || setup.quiet => 0,
                Kind::Bucket => (random.below(11) as i64 - 5) * 100,
                _ => [0, 0, random.below(61) as i64 - 30][random.index(3)],
            })
            .collect();
        let apart =
            if setup.kind == Kind::Bucket { 0 } else { clocks.iter().map(|clock| clock.abs()).max().unwrap_or(0) * 2 };
        // "Not begun" costs one more round.
        let apart = if apart > 0 { apart + longest_way + sync } else { 0 };
        let costs = *random.pick(&[Costs::One, Costs::One, Costs::Equal, Costs::Mixed]);
        let capacity = limit.quota.capacity();
        let equal_costs = (0..regions)
            .map(|_| {
                let most = *random.pick(&[3, (capacity / 2).max(1), capacity]);
                1 + random.below(most.min(capacity).max(1))
            })
            .collect();
        let keys = setup.keys;
        let mut sim = Sim {
            random,
            now: 0,
            limits: vec![limit.clone(); regions],
            first_limit: limit.clone(),
            limit_now: limit,
            sync,
            longest_way,
            apart,
            clocks,
            stores: vec![Store::new(keys); regions],
            servers: Vec::new(),
            current: vec![Vec::new(); regions],
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            next_event: 0,
            ids: Arc::default(),
            costs,
            equal_costs,
            cut: Vec::new(),
            cuts: 0,
            losses: Vec::new(),
            resets: Vec::new(),
            stepped: Vec::new(),
            killed: false,
            hash_losses: [0; MOST_REGIONS],
            given: 0,
            untold: 0,
            by_share: 0,
            largest_cost: 1,
            several: false,
            log: (0..keys).map(|_| Vec::new()).collect(),
            counted: Vec::new(),
            names: HashMap::new(),
            reference: vec![vec![Default::default(); keys]; regions],
            got: vec![vec![0; keys]; regions],
            cost_seen: vec![vec![None; keys]; regions],
            mixed_costs: vec![vec![false; keys]; regions],
            failure: None,
            setup,
        };
        for region in 0..regions {
            for _ in 0..sim.setup.servers {
                let server = sim.start_server(region);
                sim.current[region].push(server);
            }
        }
        sim
    }

    pub(super) fn breaks(&self, mutation: Mutation) -> bool {
        self.setup.mutation == Some(mutation)
    }

    pub(super) fn fail(&mut self, what: impl Into<String>) {
        let at = self.now;
        self.failure.get_or_insert_with(|| format!("{} at tick {at}", what.into()));
    }

    fn start_server(&mut self, region: usize) -> usize {
        let (ids, mutation) = (Arc::clone(&self.ids), self.setup.mutation);
        let mut own = None;
        let fresh = move || match (mutation, own) {
            (Some(Mutation::IdReused), _) => region as u64 * 100,
            (Some(Mutation::IdKept), Some(own)) => own,
            _ => *own.insert(1_000_000 + ids.fetch_add(1, Ordering::Relaxed)),
        };
        let number = Regions::new(self.setup.regions as u8).expect("2 to 8 regions");
        let nodes = NonZeroU32::new(self.setup.servers as u32).expect("there is a server");
        let ledger = Ledger::new(number, nodes, self.setup.room, Box::new(fresh));
        if let Some(rule) = mutation.and_then(Mutation::rule) {
            ledger.break_rule(rule);
        }
        self.servers.push(Server { region, ledger, drains: None, sent: HashMap::new() });
        let server = self.servers.len() - 1;
        let first = self.random.below(self.sync as u64) as i64 + 1;
        self.at(self.now + first, Event::Flush { server });
        server
    }

    fn at(&mut self, when: i64, event: Event) {
        self.next_event += 1;
        let place = self.free.pop().unwrap_or(self.events.len() as u32);
        self.queue.push(Reverse((when, self.next_event, place)));
        match self.events.get_mut(place as usize) {
            Some(free) => *free = event,
            None => self.events.push(event),
        }
    }

    /// Calls the demand of the test at this tick, with this number.
    pub(super) fn call_at(&mut self, when: i64, number: u64) {
        self.at(when, Event::Own(number));
    }

    pub(super) fn request_at(&mut self, when: i64, region: usize) {
        self.at(when, Event::Request { region });
    }

    /// Returns whether no bucket of the first key owes anything.
    pub(super) fn all_full(&self) -> bool {
        (0..self.setup.regions).all(|region| {
            let debt = self.stores[region].states[0].debt();
            debt.is_none_or(|(paid_at, _)| paid_at <= self.time(region).as_nanos())
        })
    }

    fn time(&self, region: usize) -> Time {
        Time::from_nanos((BASE + self.now + self.clocks[region]) as u64 * TICK_NS)
    }

    /// The clock of a server's process.
    fn process_ns(&self, server: usize) -> u64 {
        let set = if self.breaks(Mutation::LivesByStoreClock) { self.clocks[self.servers[server].region] } else { 0 };
        (BASE + self.now + set) as u64 * TICK_NS
    }

    /// The tick of a time of a store.
    pub(super) fn tick(ns: u64) -> i64 {
        (ns / TICK_NS) as i64 - BASE
    }

    fn key(&self, key: usize, region: usize) -> u128 {
        let named = if self.breaks(Mutation::NamedByQuota) { self.limits[region].quota.limit() } else { 0 };
        (key as u128) << 100 | u128::from(named) << 64 | 0x5bd1_e995
    }

    /// Runs until the horizon. `own` is the demand of a test.
    pub(super) fn run(mut self, mut own: impl FnMut(&mut Sim, u64)) -> Sim {
        if !self.setup.quiet {
            self.random_demand();
            if self.setup.faults {
                self.plan_faults();
            }
            self.plan_extras();
        }
        while let Some(Reverse((when, _, place))) = self.queue.pop()
            && when <= self.setup.horizon
            && self.failure.is_none()
        {
            self.now = when;
            self.free.push(place);
            match std::mem::replace(&mut self.events[place as usize], Event::Own(0)) {
                Event::Own(number) => own(&mut self, number),
                event => self.happen(event),
            }
        }
        if self.failure.is_none() && !self.setup.quiet {
            self.check_end();
        }
        self
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request { region } => self.request(region),
            Event::Flush { server } => self.flush_all(server),
            Event::Arrive(message) => self.arrive(message),
            Event::Answer(message, result) => self.acknowledge(message.server, message.to, &message.due, result),
            Event::ChargeLater { region, key, cost } => {
                let (now, quota) = (self.time(region), Arc::clone(&self.limits[region].quota));
                force(&mut self.stores[region].states[key], &quota, cost, now);
            }
            Event::Refund(taken) => self.refund(&taken),
            Event::Replace { region, place, drain } => self.replace(region, place, drain),
            Event::Reload { region } => self.limits[region] = self.limit_now.clone(),
            Event::Step { region, by } => {
                self.clocks[region] += by;
                self.stepped.push((self.now, region));
                self.hash_losses[region] += u64::from(by > 0);
            }
            Event::Reset { region } => {
                let store = &mut self.stores[region];
                (store.states[0], store.shares[0]) = (State::default(), State::default());
                self.resets.push((self.now, region));
            }
            Event::Cut { from, to, is_cut: true } => self.cut.push((from, to)),
            Event::Cut { from, to, is_cut: false } => self.cut.retain(|pair| *pair != (from, to)),
            Event::Keep { region, later } => {
                let kept = Box::new(self.stores[region].clone());
                self.at(self.now + later, Event::Failover { region, kept });
            }
            Event::Failover { region, kept } => {
                self.stores[region] = *kept;
                self.losses.push((self.now, region));
                self.hash_losses[region] += 1;
            }
            Event::Clear { region } => {
                self.stores[region] = Store::new(self.setup.keys);
                self.losses.push((self.now, region));
                self.hash_losses[region] += 1;
            }
            Event::Evict { region } => {
                self.stores[region].hashes.clear();
                self.hash_losses[region] += 1;
            }
            Event::Own(_) => {}
        }
    }

    fn request(&mut self, region: usize) {
        let capacity = self.first_limit.quota.capacity();
        let cost = |sim: &mut Sim| match sim.costs {
            Costs::One => 1,
            Costs::Equal => sim.equal_costs[region],
            Costs::Mixed => {
                let big = 1 + sim.random.below((capacity / 2).max(1));
                *sim.random.pick(&[1, 1, 1, 2, big])
            }
        };
        let place = self.random.index(self.setup.servers);
        if self.setup.keys > 1 && self.setup.extras.several && self.random.below(10) < 3 {
            let hits = [(0, cost(self)), (1, cost(self))];
            self.ask(region, place, &hits);
        } else {
            let key = self.random.index(self.setup.keys);
            let hits = [(key, cost(self))];
            self.ask(region, place, &hits);
        }
    }

    /// A request: takes from one or several shared limits. If a shared bucket refuses, once more, with the share and a
    /// charge in its place.
    pub(super) fn ask(&mut self, region: usize, place: usize, hits: &[(usize, u64)]) -> bool {
        let server = self.current[region][place];
        let now = self.time(region);
        let bucket = self.setup.kind == Kind::Bucket;
        let quota = Arc::clone(&self.limits[region].quota);
        self.several |= hits.len() > 1;
        for &(key, cost) in hits {
            let seen = self.cost_seen[region][key].get_or_insert(cost);
            self.mixed_costs[region][key] |= *seen != cost;
            self.largest_cost = self.largest_cost.max(cost);
            if bucket && cost <= quota.capacity() && !self.breaks(Mutation::Clamp2BT) {
                let (state, units) = &mut self.reference[region][key];
                let share = self.limits[region].share(cost);
                *units += if ask_one(state, take(0, share, cost), now).allowed { cost } else { 0 };
            }
        }
        let before: Vec<State> = hits.iter().map(|&(key, _)| self.stores[region].states[key].clone()).collect();
        let (mut decisions, mut states) = (vec![Decision::default(); hits.len()], before.clone());
        let takes: Vec<Hit<'_>> = hits.iter().map(|&(key, cost)| take(key as u128, &quota, cost)).collect();
        let places: Vec<usize> = (0..hits.len()).collect();
        let mut allowed = decide(&mut states, &places, &takes, now, &mut decisions).allowed;
        let refusing: Vec<bool> = decisions.iter().map(|decision| !decision.allowed).collect();
        let by_share = !allowed && bucket && !self.breaks(Mutation::NoShare) && !self.breaks(Mutation::Clamp2BT);
        let fits = hits.iter().zip(&refusing).all(|((_, cost), refuses)| !refuses || *cost <= quota.capacity());
        let mut receipts = vec![None; hits.len()];
        if by_share && fits {
            (allowed, receipts) = self.ask_share(region, hits, &refusing, &before, &mut states, &mut decisions);
        }
        for (i, &(key, cost)) in hits.iter().enumerate() {
            self.check_own_charge(&before[i], &states[i], &quota, if allowed { cost } else { 0 }, now);
            self.stores[region].states[key] = std::mem::take(&mut states[i]);
        }
        if allowed {
            for (i, &(key, cost)) in hits.iter().enumerate() {
                // A settlement has no receipt of its own. That of the share has the same time.
                let at = decisions[i].receipt.map_or(now, |receipt| receipt.at);
                self.admit(server, key, cost, at);
                if !refusing.contains(&true) {
                    self.check_known(region, key);
                }
                self.by_share += if refusing[i] { cost } else { 0 };
                if self.setup.extras.refunds && self.random.one_in(10) {
                    let later = self.random.below(301) as i64;
                    let limit = self.limits[region].clone();
                    let taken = Taken { region, server, key, cost, at, share: receipts[i], limit };
                    self.at(self.now + later, Event::Refund(Box::new(taken)));
                }
            }
        }
        for &(key, _) in hits {
            self.check_guaranteed(region, key);
        }
        allowed
    }

    fn ask_share(
        &mut self,
        region: usize,
        hits: &[(usize, u64)],
        refusing: &[bool],
        before: &[State],
        states: &mut Vec<State>,
        decisions: &mut [Decision],
    ) -> (bool, Vec<Option<Receipt>>) {
        let (now, mutation) = (self.time(region), self.setup.mutation);
        let quota = Arc::clone(&self.limits[region].quota);
        let charged = !self.breaks(Mutation::ShareNotCharged) && !self.breaks(Mutation::OwnChargeLater);
        let shares: Vec<Quota> =
            hits.iter().map(|&(_, cost)| self.limits[region].broken_share(cost, mutation)).collect();
        *states = before.to_vec();
        states.extend(hits.iter().map(|&(key, _)| self.stores[region].shares[key].clone()));
        let (mut asked, mut places) = (Vec::new(), Vec::new());
        for (i, &(key, cost)) in hits.iter().enumerate() {
            if !refusing[i] {
                asked.push(take(key as u128, &quota, cost));
                places.push(i);
                continue;
            }
            asked.push(take(key as u128, &shares[i], cost));
            places.push(hits.len() + i);
            if charged {
                let settle = Op::settle(0, cost, Receipt::new(now, 0));
                asked.push(Hit::new(key as u128, &quota, settle, Binding::Enforce));
                places.push(i);
            }
        }
        let above_brim = |state: &State| {
            let owed = state.debt().map_or(0, |(paid_at, _)| paid_at.saturating_sub(now.as_nanos()));
            owed > quota.capacity() * quota.interval_ns()
        };
        let refused = self.breaks(Mutation::ShareAboveBrim)
            && before.iter().zip(refusing).any(|(state, refuses)| *refuses && !above_brim(state));
        let mut answers = vec![Decision::default(); asked.len()];
        let allowed = !refused && decide(states, &places, &asked, now, &mut answers).allowed;
        if !allowed {
            *states = before.to_vec();
            if self.breaks(Mutation::ForceThoughRefused) {
                for (i, &(_, cost)) in hits.iter().enumerate().filter(|(i, _)| refusing[*i]) {
                    force(&mut states[i], &quota, cost, now);
                }
            }
            return (false, Vec::new());
        }
        let mut receipts = Vec::new();
        for (i, &(key, cost)) in hits.iter().enumerate() {
            let of_share = places.iter().position(|&place| place == hits.len() + i).map(|place| answers[place]);
            receipts.push(of_share.and_then(|answer| answer.receipt));
            let own = places.iter().position(|&place| place == i).map(|place| answers[place]);
            decisions[i] = of_share.or(own).expect("each hit has an answer");
            self.stores[region].shares[key] = states[hits.len() + i].clone();
            if refusing[i] && self.breaks(Mutation::OwnChargeLater) {
                self.at(self.now + self.sync, Event::ChargeLater { region, key, cost });
            }
        }
        states.truncate(hits.len());
        (true, receipts)
    }

    fn admit(&mut self, server: usize, key: usize, cost: u64, at: Time) {
        let region = self.servers[server].region;
        let (quota, named) = (Arc::clone(&self.limits[region].quota), self.key(key, region));
        let span = quota.span(at);
        let now = self.process_ns(server);
        let ledger = &self.servers[server].ledger;
        let recorded_at = if self.breaks(Mutation::SpanFromNow) { self.time(region) } else { at };
        let is_told = ledger.record(named, &quota, recorded_at, cost, now);
        let counted = if is_told {
            let (id, _) = ledger.entry(named, &quota, recorded_at).expect("the units are recorded");
            Some(self.counted(server, key, id, span))
        } else {
            self.untold += cost;
            None
        };
        if self.servers[server].ledger.len() > self.setup.room as usize {
            self.fail("I8 the ledger is larger than its bound");
        }
        for _ in 0..cost {
            let number = self.log[key].len() as u32;
            let counted = counted.map(|name| {
                let units = &mut self.counted[name as usize].units;
                units.push(number);
                (name, units.len() as u64 - 1)
            });
            self.log[key].push(Unit { at: self.now, region, counted, span, known_at: [0; MOST_REGIONS] });
        }
        self.got[region][key] += cost;
    }

    fn counted(&mut self, server: usize, key: usize, id: u64, span: Span) -> u32 {
        let all = &mut self.counted;
        *self.names.entry((key, id, span)).or_insert_with(|| {
            all.push(Counted { span: Some(span), server, ..Counted::default() });
            all.len() as u32 - 1
        })
    }

    fn refund(&mut self, taken: &Taken) {
        let Taken { region, server, key, cost, at, share, ref limit } = *taken;
        let (now, quota) = (self.time(region), &limit.quota);
        // A bucket gives back what was charged by a settlement, which has no receipt.
        let receipt = (self.setup.kind != Kind::Bucket).then(|| Receipt::new(at, 0));
        let refund = |receipt| Op::Refund { cost, receipt };
        let store = &mut self.stores[region];
        let _ = ask_one(&mut store.states[key], Hit::new(0, quota, refund(receipt), Binding::Enforce), now);
        if let Some(receipt) = share {
            let share = limit.quota.guaranteed(cost).expect("it has a share");
            let _ = ask_one(&mut store.shares[key], Hit::new(0, &share, refund(Some(receipt)), Binding::Enforce), now);
        }
        self.given += cost;
        let (named, process) = (self.key(key, region), self.process_ns(server));
        let ledger = &self.servers[server].ledger;
        let Some((id, _)) = ledger.entry(named, quota, at) else { return };
        let back = ledger.refund(named, quota, at, cost, process);
        let name = self.counted(server, key, id, quota.span(at));
        self.counted[name as usize].lowered += back;
        for region in 0..self.setup.regions {
            self.check_told(name, region, "I10 a refund of units that were told");
        }
    }

    fn check_told(&mut self, name: u32, region: usize, invariant: &str) {
        let counted = &self.counted[name as usize];
        let units = (counted.units.len() as u64).saturating_sub(counted.lowered);
        let told = counted.told[region];
        if told > units * (1 + self.hash_losses[region]) {
            self.fail(format!("{invariant}: {told} of {units}"));
        }
    }

    fn flush_all(&mut self, server: usize) {
        let region = self.servers[server].region;
        let is_current = self.current[region].contains(&server);
        if !is_current && self.servers[server].drains.is_none_or(|since| self.now > since + 1000) {
            return;
        }
        let peers: Vec<usize> = (0..self.setup.regions).filter(|peer| *peer != region).collect();
        let rare = if self.breaks(Mutation::SentAfterItsEnd) { 50 } else { 3 };
        if self.random.one_in(rare) {
            let now = self.process_ns(server);
            while !self.servers[server].ledger.sweep(now) {}
            self.check_spans(server);
        }
        for (number, &to) in peers.iter().enumerate() {
            self.flush(server, number, to);
        }
        self.at(self.now + self.sync, Event::Flush { server });
    }

    /// I8: an entry ends.
    fn check_spans(&mut self, server: usize) {
        let extras = &self.setup.extras;
        if !self.stepped.is_empty() || extras.reload || self.breaks(Mutation::SentAfterItsEnd) || !self.random.one_in(4)
        {
            return;
        }
        let most = self.servers[server].ledger.spans().into_values().max().unwrap_or(0);
        if most > 4 {
            self.fail(format!("I8 the ledger keeps old spans: {most} of one state"));
        }
    }

    fn flush(&mut self, server: usize, number: usize, to: usize) {
        let (mut all, now) = (Vec::new(), self.process_ns(server));
        let (ledger, most) = (&self.servers[server].ledger, self.setup.rate);
        for is_late in [true, false] {
            while ledger.due(number, is_late, now, most, &mut all) && all.len() < most {}
        }
        for due in all {
            let mut total = due.total;
            if self.breaks(Mutation::Changes) {
                let sent = self.servers[server].sent.entry((to, due.id, due.span, due.key)).or_default();
                total = due.total.saturating_sub(*sent);
                *sent = due.total;
            }
            if self.breaks(Mutation::Changes) || self.breaks(Mutation::AckedWhenSent) {
                self.acknowledge(server, to, &due, Charged::New);
            }
            if total > 0 {
                self.send(server, to, due, total);
            }
        }
    }

    fn send(&mut self, server: usize, to: usize, due: Due, total: u64) {
        let (faults, from) = (self.setup.faults, self.servers[server].region);
        if self.cut.contains(&(from, to)) || faults && self.random.below(100) < 8 {
            return;
        }
        let half = self.breaks(Mutation::SeenBesideCharge) && self.random.one_in(10);
        for _ in 0..if faults && self.random.below(100) < 8 { 2 } else { 1 } {
            let later = self.random.below(self.longest_way as u64) as i64 + 1;
            let message = Message { server, to, due: due.clone(), total, half };
            self.at(self.now + later, Event::Arrive(Box::new(message)));
        }
    }

    fn arrive(&mut self, message: Box<Message>) {
        let from = self.servers[message.server].region;
        let Some(result) = self.merge(&message) else { return };
        if self.cut.contains(&(message.to, from)) || self.setup.faults && self.random.below(100) < 5 {
            return;
        }
        let later = self.random.below(self.longest_way as u64) as i64 + 1;
        self.at(self.now + later, Event::Answer(message, result));
    }

    fn acknowledge(&mut self, server: usize, to: usize, due: &Due, result: Charged) {
        let region = self.servers[server].region;
        if matches!(result, Charged::New | Charged::Known) {
            // I9: what is acknowledged was charged, so somebody will tell the rest.
            let name = self.counted(server, (due.key >> 100) as usize, due.id, due.span);
            if self.counted[name as usize].told[to] < due.total {
                self.fail("I9 units that nobody will tell");
            }
        }
        let (number, now) = (to - usize::from(to > region), self.process_ns(server));
        self.servers[server].ledger.answered(number, std::slice::from_ref(due), &[result], now);
    }

    /// The script, in one step. `None` if it stopped in the middle, which is a mutation.
    fn merge(&mut self, message: &Message) -> Option<Charged> {
        let Message { server, to, ref due, total, half } = *message;
        let (region, key, span, id) = (to, (due.key >> 100) as usize, due.span, due.id);
        let (now, tick) = (self.time(region), self.now + self.clocks[region]);
        let kind = self.setup.kind;
        if self.stores[region].earliest <= tick {
            let store = &mut self.stores[region];
            store.hashes.retain(|_, hash| hash.expires > tick);
            store.earliest = store.hashes.values().map(|hash| hash.expires).min().unwrap_or(i64::MAX);
        }
        if kind != Kind::Bucket {
            let start = window_start(&self.stores[region].states[key], &due.quota, now);
            let earliest = if kind == Kind::Window { start } else { start.saturating_sub(span.length_ns) };
            if span.start_ns < earliest && !self.breaks(Mutation::SpanIgnored) {
                return Some(Charged::Ended);
            }
            if span.start_ns > start && !self.breaks(Mutation::EarlyCharged) {
                return Some(Charged::NotBegun);
            }
        }
        let length = (span.length_ns / TICK_NS) as i64;
        let life = if kind == Kind::Window { length + 100 } else { 2 * length };
        let life = if self.breaks(Mutation::HashTooShort) { length / 3 } else { life + GRACE };
        let (changes, overwrite) = (self.breaks(Mutation::Changes), self.breaks(Mutation::Overwrite));
        let name = (key, if self.breaks(Mutation::OneHashForAllSpans) { None } else { Some(span) });
        let hash = self.stores[region].hashes.entry(name).or_default();
        let place = hash.seen.iter().position(|(other, _)| *other == id);
        let seen = place.map_or(0, |place| hash.seen[place].1);
        let more = if changes { total } else { total.saturating_sub(seen) };
        if more == 0 && !overwrite {
            if hash.seen.is_empty() {
                self.stores[region].hashes.remove(&name);
            }
            return Some(Charged::Known);
        }
        let new = if changes { seen + total } else { total };
        match place {
            Some(place) => hash.seen[place].1 = new,
            None => {
                hash.seen.push((id, new));
                hash.expires = tick + life;
                let earliest = &mut self.stores[region].earliest;
                *earliest = (*earliest).min(tick + life);
            }
        }
        if half {
            return None;
        }
        if more > 0 {
            self.charge(server, region, key, due, more, now);
        }
        Some(if more > 0 { Charged::New } else { Charged::Known })
    }

    fn charge(&mut self, server: usize, region: usize, key: usize, due: &Due, more: u64, now: Time) {
        let state = &mut self.stores[region].states[key];
        let owed = |state: &State| state.debt().map_or(0, |(paid_at, _)| paid_at.saturating_sub(now.as_nanos()));
        let before = owed(state);
        force(state, &due.quota, more, now);
        let after = owed(state);
        let bucket = self.setup.kind == Kind::Bucket;
        let really = if bucket { more.min(after.saturating_sub(before) / due.quota.interval_ns()) } else { more };
        let most = self.first_limit.quota.max_debt_ns().max(self.limit_now.quota.max_debt_ns());
        // A clock that was set back makes a debt longer, but no charge does.
        if bucket && after > most && after > before {
            self.fail("I5 more than the greatest debt");
        }
        if !bucket {
            let start = window_start(&self.stores[region].states[key], &due.quota, now);
            let late = start.saturating_sub(due.span.start_ns);
            let is_it = if self.setup.kind == Kind::Window { late == 0 } else { late <= due.span.length_ns };
            if !is_it || due.span.start_ns > start {
                self.fail("I4 charged into another window");
            }
        }
        let name = self.counted(server, key, due.id, due.span);
        let counted = &mut self.counted[name as usize];
        let (told, units) = (counted.told[region], (counted.units.len() as u64).saturating_sub(counted.lowered));
        counted.told[region] += more;
        for number in told..(told + really).min(units) {
            let unit = &mut self.log[key][counted.units[number as usize] as usize];
            if unit.known_at[region] == 0 {
                unit.known_at[region] = self.now;
            }
        }
        self.check_told(name, region, "I3 charged more than was admitted");
        if self.breaks(Mutation::ToldOn) {
            let (named, process) = (self.key(key, region), self.process_ns(self.current[region][0]));
            let ledger = &self.servers[self.current[region][0]].ledger;
            ledger.record(named, &due.quota, now, more, process);
        }
    }

    fn replace(&mut self, region: usize, place: usize, drain: bool) {
        let old = self.current[region][place];
        if drain {
            self.servers[old].drains = Some(self.now);
            if !self.breaks(Mutation::DrainKeepsStep) {
                let now = self.process_ns(old);
                self.servers[old].ledger.drain();
                while !self.servers[old].ledger.sweep(now) {}
            }
        } else {
            self.killed = true;
        }
        self.current[region][place] = self.start_server(region);
    }

    fn random_demand(&mut self) {
        let capacity = self.first_limit.quota.capacity();
        let interval = match self.setup.kind {
            Kind::Bucket => (self.first_limit.interval() / TICK_NS).max(1) as i64,
            _ => (self.first_limit.window as u64 / self.first_limit.quota.limit()).max(1) as i64,
        };
        let (regions, window) = (self.setup.regions, self.first_limit.window);
        let mut when = 0;
        while when < self.setup.horizon - 1200 {
            match self.random.below(10) {
                0..3 => {
                    for region in 0..regions {
                        for _ in 0..self.random.below(capacity + 3) {
                            let later = self.random.below(6) as i64;
                            self.request_at(when + later, region);
                        }
                    }
                }
                3 => {
                    for later in (0..600).step_by((interval / 2).max(2) as usize) {
                        for region in 0..regions {
                            self.request_at(when + later, region);
                        }
                    }
                    when += 300;
                }
                _ => {
                    let region = self.random.index(regions);
                    for _ in 0..=self.random.below(6) {
                        let later = self.random.below(61) as i64;
                        self.request_at(when + later, region);
                    }
                }
            }
            when += *self.random.pick(&[5, 20, interval, interval * 3, window]);
        }
    }

    fn between(&mut self, from: i64, to: i64) -> i64 {
        from + self.random.below((to - from).max(1) as u64) as i64
    }

    fn plan_extras(&mut self) {
        let (extras, horizon, regions) = (self.setup.extras, self.setup.horizon, self.setup.regions);
        if extras.drains {
            for _ in 0..=self.random.below(3) {
                let when = self.between(200, horizon - 2500);
                let (region, place) = (self.random.index(regions), self.random.index(self.setup.servers));
                self.at(when, Event::Replace { region, place, drain: true });
            }
        }
        if extras.reload {
            let old = &self.first_limit.quota;
            let limit = (*self.random.pick(&[old.limit() / 2, old.limit() * 2])).max(1);
            let keeps = self.setup.kind == Kind::Bucket && (old.capacity() != old.limit() || self.random.one_in(2));
            let burst = if keeps { old.capacity() } else { limit };
            self.limit_now =
                Limit::new(self.setup.kind, regions, limit, self.first_limit.window, burst, self.setup.mutation);
            for region in 0..regions {
                let when = self.between(1500, 2500);
                self.at(when, Event::Reload { region });
            }
        }
        if extras.steps {
            for _ in 0..=self.random.below(2) {
                let (region, by) = (self.random.index(regions), *self.random.pick(&[-2500, -700, -120, 300, 1500]));
                let when = self.between(1000, horizon - 2500);
                self.at(when, Event::Step { region, by });
            }
        }
        if extras.dead && regions > 2 {
            let dead = regions - 1;
            self.cut.extend((0..dead).flat_map(|region| [(region, dead), (dead, region)]));
        }
        if extras.mute {
            self.cut.extend((0..regions - 1).map(|region| (regions - 1, region)));
        }
        if extras.resets {
            let (region, when) = (self.random.index(regions), self.between(500, horizon - 2000));
            self.at(when, Event::Reset { region });
        }
    }

    fn plan_faults(&mut self) {
        let regions = self.setup.regions;
        for _ in 0..self.random.below(4) {
            let (when, region) = (self.between(200, self.setup.horizon - 1200), self.random.index(regions));
            match self.random.below(100) {
                0..35 => {
                    let from = (region + 1 + self.random.index(regions - 1)) % regions;
                    let until = when + *self.random.pick(&[200, 900]);
                    let both = self.random.one_in(2);
                    for (from, to) in [(from, region), (region, from)].into_iter().take(1 + usize::from(both)) {
                        self.cuts += 1;
                        self.at(when, Event::Cut { from, to, is_cut: true });
                        self.at(until, Event::Cut { from, to, is_cut: false });
                    }
                }
                35..60 => {
                    let place = self.random.index(self.setup.servers);
                    self.at(when, Event::Replace { region, place, drain: false });
                }
                60..75 => {
                    let later = *self.random.pick(&[1, 50]);
                    self.at(when, Event::Keep { region, later });
                }
                75..85 => self.at(when, Event::Clear { region }),
                _ => self.at(when, Event::Evict { region }),
            }
        }
    }

    pub(super) fn is_exact(&self) -> bool {
        !self.several && !self.setup.extras.reload && self.stepped.is_empty()
    }

    /// I11: the own store is charged exactly what was admitted, in the same step.
    fn check_own_charge(&mut self, before: &State, after: &State, quota: &Quota, cost: u64, now: Time) {
        if self.setup.kind != Kind::Bucket {
            let count = |state: &State| {
                let start = window_start(state, quota, now);
                state.pack(quota).filter(|_| window_of(state, quota) == Some(start)).map_or(0, |packed| packed.first)
            };
            if count(after) != count(before) + cost {
                self.fail("I11 the own store was not charged exactly what was admitted");
            }
            return;
        }
        let owed = |state: &State| state.debt().map_or(0, |(paid_at, _)| paid_at.saturating_sub(now.as_nanos()));
        let is_converted = before.debt().is_some_and(|(_, interval)| interval != quota.interval_ns());
        let most = quota.max_debt_ns();
        // The kernel reduces a debt that is longer because the clock was set back.
        let bound = |debt: u64| debt.min(1 << quota.debt_bits());
        let debt = bound(owed(before));
        if !is_converted && bound(owed(after)) != (debt + cost * quota.interval_ns()).min(most.max(debt)) {
            self.fail("I11 the own store was not charged exactly what was admitted");
        }
    }

    /// I1: when the shared limit admits, what this region knows obeys it: its own units, and those that were charged.
    fn check_known(&mut self, region: usize, key: usize) {
        let lost = self.losses.iter().any(|(_, lost)| *lost == region);
        if self.setup.quiet || lost || !self.resets.is_empty() || !self.is_exact() || self.given > 0 {
            return;
        }
        let quota = &self.limits[region].quota;
        if self.setup.kind != Kind::Bucket {
            let state = &self.stores[region].states[key];
            if state.pack(quota).is_some_and(|packed| packed.first > quota.capacity()) {
                self.fail("I1 known above the limit");
            }
            return;
        }
        let (mut known, interval) = (0, quota.interval_ns());
        let depth = quota.capacity() * interval;
        for unit in self.log[key].iter().rev().take(300) {
            if unit.region != region && unit.known_at[region] == 0 {
                continue;
            }
            known += interval;
            if known > depth + (self.now - unit.at) as u64 * TICK_NS {
                return self.fail("I1 known above B + s/T");
            }
        }
    }

    /// G: a region gets at least what a bucket of its own with its share would have admitted of the same requests.
    fn check_guaranteed(&mut self, region: usize, key: usize) {
        let applies = self.setup.kind == Kind::Bucket && !self.setup.quiet && self.is_exact();
        let (got, least) = (self.got[region][key], self.reference[region][key].1);
        if applies && !self.mixed_costs[region][key] && got < least {
            self.fail(format!("G less than the guaranteed share: {got} of {least}"));
        }
    }
}

/// The start of the window of a state, or `None` if it has none.
fn window_of(state: &State, quota: &Quota) -> Option<u64> {
    let packed = state.pack(quota).filter(|packed| packed.expires_at > 0)?;
    let windows = if matches!(quota.algorithm(), spillgate_core::Algorithm::FixedWindow(_)) { 1 } else { 2 };
    Some(packed.expires_at - windows * quota.window_ns())
}

/// The start of the window in which a take would count now.
fn window_start(state: &State, quota: &Quota, now: Time) -> u64 {
    let (now, window) = (now.as_nanos(), quota.window_ns());
    match window_of(state, quota) {
        Some(start) if now < start && start <= now + window => start,
        _ => now - now % window,
    }
}
