//! Random sequences of key numbers, uniform or by a Zipf distribution. The same seed gives the same sequence.
//!
//! Every limiter must get the same keys in the same order. Otherwise the times of two limiters could not be compared.

use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Draws `length` numbers below `count`. With an exponent of 0, all numbers are equally likely. Otherwise the number
/// `i` has the weight `(i + 1)^-exponent`. The numbers are drawn by inverse transform over the exact cumulative
/// weights.
pub fn draw(count: u32, exponent: f64, seed: u64, length: usize) -> Vec<u32> {
    let count = count.max(1);
    let mut rng = SmallRng::seed_from_u64(seed);
    if exponent == 0.0 {
        return (0..length).map(|_| rng.random_range(0..count)).collect();
    }
    let mut total = 0.0;
    let cumulative = |rank: u32| {
        total += f64::from(rank).powf(-exponent);
        total
    };
    let weights: Vec<f64> = (1..=count).map(cumulative).collect();
    let rank_at = |at: f64| weights.partition_point(|&weight| weight < at).min(weights.len() - 1);
    (0..length).map(|_| rank_at(rng.random::<f64>() * total) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::draw;

    #[test]
    fn a_sequence_follows_its_seed_and_its_weights() {
        let sequence = draw(1000, 1.0, 7, 100_000);
        assert_eq!(sequence, draw(1000, 1.0, 7, 100_000));
        assert_ne!(sequence, draw(1000, 1.0, 8, 100_000));
        let first = sequence.iter().filter(|&&index| index == 0).count() as f64;
        let second = sequence.iter().filter(|&&index| index == 1).count() as f64;
        assert!(
            (1.8..2.2).contains(&(first / second)),
            "rank 1 must be twice as frequent as rank 2: {first} / {second}"
        );
        let uniform = draw(10, 0.0, 7, 100_000);
        let counts: Vec<usize> = (0..10).map(|index| uniform.iter().filter(|&&i| i == index).count()).collect();
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
