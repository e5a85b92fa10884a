//! Random requests for the tests of stores. The requests are the same in every run, so a failure can be repeated.

use spillgate_core::{Binding, Hit, Op, Quota, Receipt};
use spillgate_testkit::Random;

/// Makes requests from random numbers.
pub(crate) trait Requests {
    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T;

    /// Returns the time from one request to the next. The time is often 0.
    fn step_ns(&mut self) -> u64;

    /// Returns a request of one to four hits. Each hit is on one of five keys, which `key` makes from numbers.
    fn hits<'q>(&mut self, quotas: &'q [Quota], receipts: &[Receipt], key: fn(u64) -> u128) -> Vec<Hit<'q>>;
}

impl Requests for Random {
    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        *self.pick(choices)
    }

    fn step_ns(&mut self) -> u64 {
        self.one_of(&[0, 1, 50_000_000, 400_000_000]) * self.below(3)
    }

    fn hits<'q>(&mut self, quotas: &'q [Quota], receipts: &[Receipt], key: fn(u64) -> u128) -> Vec<Hit<'q>> {
        let bindings = [Binding::Enforce, Binding::Enforce, Binding::Shadow, Binding::Quota];
        let hits = 0..=self.below(4);
        hits.map(|_| {
            let quota = &quotas[self.below(quotas.len() as u64) as usize];
            Hit::new(key(self.below(5)), quota, random_op(self, receipts), self.one_of(&bindings))
        })
        .collect()
    }
}

/// Returns a random operation. Usually it is a take, and sometimes one of the other operations.
fn random_op(random: &mut Random, receipts: &[Receipt]) -> Op {
    let cost = random.below(4);
    let receipt = if receipts.is_empty() { None } else { Some(random.one_of(receipts)) };
    match (random.below(20), receipt) {
        (0, _) => Op::Peek,
        (1, _) => Op::Force { cost },
        (2, _) => Op::Refund { cost, receipt: None },
        (3 | 4, Some(_)) => Op::Refund { cost, receipt },
        (5, Some(receipt)) => Op::Renew { receipt },
        (7, Some(receipt)) => Op::settle(2, cost, receipt),
        (6, _) if cost == 0 => Op::Reset,
        _ => Op::Take { cost, max_wait_ns: random.below(3) * 200_000_000 },
    }
}
