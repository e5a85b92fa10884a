//! What is checked at the end of a run: that every unit is told, and the published bounds.

use std::collections::{HashMap, HashSet};

use super::sim::{AGAIN, Kind, Sim, TICK_NS};

impl Sim {
    pub(super) fn check_end(&mut self) {
        let late = self.latest();
        self.check_told_in_time(late);
        for key in 0..self.setup.keys {
            let extras = &self.setup.extras;
            let is_hurt = self.is_hurt() || !self.cut.is_empty() || !self.resets.is_empty() || extras.reload;
            if !is_hurt && self.is_exact() && self.untold == 0 {
                let (over, bound) = (self.overshoot(key), self.bound(key, late));
                if over > bound as f64 {
                    self.fail(format!("I6 overshoot above the formula: {over} of {bound}"));
                }
            }
            self.check_each_region(key);
        }
    }

    fn is_hurt(&self) -> bool {
        let lost = self.hash_losses.iter().any(|losses| *losses > 0);
        self.cuts > 0 || !self.losses.is_empty() || self.killed || lost
    }

    /// The longest time until a unit is charged, in ticks, if nothing is cut off.
    fn latest(&self) -> i64 {
        let once = self.sync + self.longest_way + 1;
        let again = if self.setup.faults { 4 * (AGAIN + once) } else { 0 };
        let slow = if self.setup.rate < 1 << 20 { self.sync * self.setup.keys as i64 * 8 } else { 0 };
        once + 2 * self.sync + 2 * self.apart + again + slow
    }

    /// I2: every unit is charged in every region in time, except rests below the step, and what was counted as dropped or
    /// as untold.
    fn check_told_in_time(&mut self, late: i64) {
        if self.is_hurt() || !self.stepped.is_empty() || self.setup.kind != Kind::Bucket && self.setup.faults {
            return;
        }
        let servers = self.setup.servers;
        let step = self.first_limit.step(servers).max(self.limit_now.step(servers));
        let fastest = self.clocks.iter().copied().max().unwrap_or(0);
        let in_time = self.setup.horizon - late - 100;
        let mut problem = None;
        for (key, region) in (0..self.setup.keys).flat_map(|key| (0..self.setup.regions).map(move |r| (key, r))) {
            let mut unknown: HashMap<u32, u64> = HashMap::new();
            for unit in &self.log[key] {
                let Some((name, number)) = unit.counted else { continue };
                let ends = Sim::tick(unit.span.end_ns());
                let too_late = self.setup.kind == Kind::Window && unit.at + fastest + late + self.apart >= ends;
                // A region whose answers are lost is cut off, too.
                let pairs = [(unit.region, region), (region, unit.region)];
                let is_cut = pairs.iter().any(|pair| self.cut.contains(pair));
                if unit.region == region || is_cut || unit.at > in_time || too_late {
                    continue;
                }
                let counted = &self.counted[name as usize];
                if number >= counted.told[region] + counted.lowered {
                    *unknown.entry(name).or_default() += 1;
                }
                let known_at = unit.known_at[region];
                let is_exact = !self.setup.faults && step == 1 && self.given == 0;
                if known_at > 0 && is_exact && known_at - unit.at > late {
                    problem = Some(format!("I2 known too late: {} of {late}", known_at - unit.at));
                }
            }
            for (name, units) in unknown {
                let counted = &self.counted[name as usize];
                let server = &self.servers[counted.server];
                let ends = counted.span.map_or(0, |span| Sim::tick(span.end_ns()));
                let is_drained =
                    !self.setup.faults && server.drains.is_some_and(|since| since + fastest + late + self.apart < ends);
                // A window can end before its rest is told.
                let dropped = if self.setup.kind == Kind::Bucket {
                    0
                } else {
                    server.ledger.counts(region - usize::from(region > server.region)).units_dropped
                };
                if units >= if is_drained { 1 } else { step } + dropped {
                    problem = Some(format!("I2 never told: {units} units of region {}", server.region));
                }
            }
        }
        let enough = u64::from(self.setup.room) * 2 >= self.setup.keys as u64 * 5;
        let all_hear = self.cut.is_empty() || step == 1;
        let calm = !self.setup.faults && self.setup.rate > 1 << 20 && !self.setup.extras.reload;
        if self.setup.kind == Kind::Bucket && self.untold > 0 && all_hear && enough && calm {
            problem = Some(format!("I2 not told because the ledger is full: {}", self.untold));
        }
        if let Some(problem) = problem {
            self.fail(problem);
        }
    }

    /// The most units above `B + s/T` in any interval, or above the limit in any window, of all regions together.
    pub(super) fn overshoot(&self, key: usize) -> f64 {
        let quota = &self.first_limit.quota;
        if self.setup.kind != Kind::Bucket {
            let mut windows: HashMap<u64, u64> = HashMap::new();
            for unit in &self.log[key] {
                *windows.entry(unit.span.start_ns).or_default() += 1;
            }
            let most = windows.into_values().max().unwrap_or(0);
            return most as f64 - quota.capacity() as f64;
        }
        let (mut owed, mut most, mut before, interval) = (0, 0, 0, quota.interval_ns());
        for unit in &self.log[key] {
            owed = u64::saturating_sub(owed, (unit.at - before) as u64 * TICK_NS) + interval;
            (before, most) = (unit.at, most.max(owed));
        }
        most as f64 / interval as f64 - quota.capacity() as f64
    }

    /// The published formula without `B + s/T`, with the units that each region admitted within `late` ticks.
    fn bound(&self, key: usize, late: i64) -> u64 {
        let (quota, late) = (&self.first_limit.quota, late + self.apart);
        let within: Vec<u64> = (0..self.setup.regions)
            .map(|region| {
                let times: Vec<i64> =
                    self.log[key].iter().filter(|unit| unit.region == region).map(|unit| unit.at).collect();
                let mut first = 0;
                let counts = times.iter().enumerate().map(|(i, at)| {
                    while at - times[first] > late {
                        first += 1;
                    }
                    (i - first + 1) as u64
                });
                counts.max().unwrap_or(0)
            })
            .collect();
        let spans: HashSet<u64> = self.log[key].iter().map(|unit| unit.span.start_ns).collect();
        let touched = match self.setup.kind {
            Kind::Bucket => spans.len() as u64,
            Kind::Window => 1,
            Kind::Counter => 2,
        };
        let regions = self.setup.regions as u64;
        let step = self.first_limit.step(self.setup.servers);
        let untold = (step - 1) * (regions - 1) * self.setup.servers as u64 * touched;
        debug_assert!(untold <= quota.capacity() * touched / 20);
        let shares = if self.by_share > 0 { regions * self.first_limit.burst(self.largest_cost) } else { 0 };
        within.iter().sum::<u64>() - within.iter().min().unwrap_or(&0) + untold + shares + self.given
    }

    /// I7: whatever happens, a region admits at most its own limit and the burst of its share. A state that is lost or reset
    /// gives one capacity more.
    fn check_each_region(&mut self, key: usize) {
        let (first, last) = (&self.first_limit, &self.limit_now);
        let interval = first.interval().min(last.interval());
        let depth = |limit: &super::sim::Limit| limit.quota.capacity() * limit.interval();
        let depth = depth(first).max(depth(last));
        let burst = first.burst(self.largest_cost).max(last.burst(self.largest_cost));
        let capacity = first.quota.capacity().max(last.quota.capacity());
        for region in 0..self.setup.regions {
            let lost = self.losses.iter().chain(&self.resets).chain(&self.stepped).filter(|(_, it)| *it == region);
            let times = 1 + lost.count() as u64 + if self.setup.extras.reload { 2 } else { 0 };
            let (mut owed, mut most, mut before) = (0, 0, 0);
            let mut windows: HashMap<u64, u64> = HashMap::new();
            for unit in self.log[key].iter().filter(|unit| unit.region == region) {
                *windows.entry(unit.span.start_ns).or_default() += 1;
                owed = u64::saturating_sub(owed, (unit.at - before) as u64 * TICK_NS) + interval;
                (before, most) = (unit.at, most.max(owed));
            }
            let in_window = windows.into_values().max().unwrap_or(0);
            let is_above = match self.setup.kind {
                Kind::Bucket => most > depth * times + (burst * times + self.given) * interval,
                _ => in_window > capacity * times + self.given,
            };
            if is_above {
                return self.fail("I7 a region above its own limit");
            }
        }
    }
}
