//! Spreads keys over the cells of a sketch. The secret of the sketch decides which cells a key has.
//!
//! Clients must not be able to choose keys that share all cells with the key of another client. So each sketch has a
//! secret of its own. Sketches of windows also spread the same key differently in each window. Two keys that share
//! their cells in one window therefore usually have different cells in the next window.

pub(crate) struct Mixer {
    secret: [u64; 3],
}

/// A key, mixed with the secret. These 64 bits choose the cells of the key.
#[derive(Clone, Copy)]
pub(crate) struct Mixed(u64);

/// The numbers with which [`Mixed::below`] mixes, one pair for every two lanes. Their bits have no pattern, because
/// they are the first bits of the fractional parts of Euler's number and of pi. All of them are odd.
const LANES: [(u64, u64); 4] = [
    (0xb7e1_5162_8aed_2a6b, 0x243f_6a88_85a3_08d3),
    (0xbf71_5880_9cf4_f3c7, 0x1319_8a2e_0370_7345),
    (0x62e7_160f_38b4_da57, 0xa409_3822_299f_31d1),
    (0xa784_d904_5190_cfef, 0x082e_fa98_ec4e_6c89),
];

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Mixer {
    /// Makes a mixer with a new random secret.
    ///
    /// # Panics
    /// Panics if the operating system returns no random bytes. A sketch without a secret is not safe.
    pub(crate) fn random() -> Mixer {
        let mut bytes = [7; 24];
        // Loom, a model checker for threads, runs a model many times, and the model has to do the same each time.
        if !cfg!(loom) {
            getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        }
        let (words, _) = bytes.as_chunks::<8>();
        Mixer { secret: [0, 1, 2].map(|i| u64::from_le_bytes(words[i])) }
    }

    #[inline]
    pub(crate) fn mix(&self, key: u128) -> Mixed {
        Mixed(fold(key as u64 ^ self.secret[0], (key >> 64) as u64 ^ self.secret[1]))
    }

    /// Mixes a mixed key once more, for the window with the number `window`.
    #[inline]
    pub(super) fn in_window(&self, key: Mixed, window: u64) -> Mixed {
        Mixed(fold(key.0 ^ window, self.secret[2] | 1))
    }
}

impl Mixed {
    /// Returns a number below `range`. Each `lane`, from 0 to 7, gives another number. The numbers of different lanes
    /// are independent.
    #[inline]
    pub(crate) fn below(self, lane: usize, range: u32) -> usize {
        let (xor, times) = LANES[lane / 2];
        let both = fold(self.0 ^ xor, times);
        let half = if lane.is_multiple_of(2) { both >> 32 } else { both & 0xffff_ffff };
        ((half * u64::from(range)) >> 32) as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn keys_in_a_row_are_spread_evenly_in_every_lane_and_window() {
        const RANGE: u32 = 64;
        const KEYS: u32 = 64_000;
        let mixer = Mixer::random();
        for (lane, shift) in (0..8).flat_map(|lane| [0, 64, 90].map(|shift| (lane, shift))) {
            let mut counts = [0_u32; RANGE as usize];
            for key in 0..KEYS {
                let mixed = mixer.mix(u128::from(key) << shift);
                counts[mixer.in_window(mixed, 5).below(lane, RANGE)] += 1;
            }
            // 1000 keys are expected for each number, with a standard deviation of 32. So a deviation of 250 is
            // practically impossible by chance.
            assert!(counts.iter().all(|count| (750..1250).contains(count)), "lane {lane}, shift {shift}: {counts:?}");
        }
    }

    #[test]
    fn two_keys_meet_in_every_lane_no_more_often_than_chance() {
        const RANGE: u32 = 16;
        let mixer = Mixer::random();
        let lanes = |key: u32| [0, 1, 2, 3].map(|lane| mixer.mix(u128::from(key)).below(lane, RANGE));
        let first = lanes(0);
        let same = (1..2_000_000).filter(|key| lanes(*key) == first).count();
        // 2,000,000 / 16^4 = 30.5 keys are expected, with a standard deviation of 5.5.
        assert!((3..70).contains(&same), "{same} of 2,000,000 keys share all four numbers");
    }
}
