//! Random requests for the tests of stores. They are the same in every run, so that a failure can be repeated.
#![allow(dead_code, reason = "each test program uses its own part")]

use spillgate_core::{Binding, Hit, Op, Quota, Receipt};

/// xorshift64* (Vigna, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let word = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(word) * u128::from(bound)) >> 64) as u64
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// The time from one request to the next. It is often 0.
    pub(crate) fn step_ns(&mut self) -> u64 {
        self.one_of(&[0, 1, 50_000_000, 400_000_000]) * self.below(3)
    }

    /// A request of one to four hits on five keys. `key` makes a key from a number.
    pub(crate) fn hits<'q>(&mut self, quotas: &'q [Quota], receipts: &[Receipt], key: fn(u64) -> u128) -> Vec<Hit<'q>> {
        let bindings = [Binding::Enforce, Binding::Enforce, Binding::Shadow, Binding::Quota];
        let hits = 0..=self.below(4);
        hits.map(|_| {
            let quota = &quotas[self.below(quotas.len() as u64) as usize];
            Hit::new(key(self.below(5)), quota, self.op(receipts), self.one_of(&bindings))
        })
        .collect()
    }

    /// Usually a take, and sometimes each of the other operations.
    fn op(&mut self, receipts: &[Receipt]) -> Op {
        let cost = self.below(4);
        let receipt = if receipts.is_empty() { None } else { Some(self.one_of(receipts)) };
        match (self.below(20), receipt) {
            (0, _) => Op::Peek,
            (1, _) => Op::Force { cost },
            (2, _) => Op::Refund { cost, receipt: None },
            (3 | 4, Some(_)) => Op::Refund { cost, receipt },
            (5, Some(receipt)) => Op::Renew { receipt },
            (6, _) if cost == 0 => Op::Reset,
            _ => Op::Take { cost, max_wait_ns: self.below(3) * 200_000_000 },
        }
    }
}
