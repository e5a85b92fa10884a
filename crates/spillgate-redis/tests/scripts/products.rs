//! The scripts compare products of up to 106 bits, although the numbers of Lua are doubles. The tests check each
//! comparison with 128-bit integers.

use crate::support::client::{RedisServer, bytes};
use spillgate_testkit::Random;

const CASES: usize = 200_000;
const CASES_A_CALL: usize = 5_000;

/// Returns one digit for each case: 1 if `a * b` is at most `d * e + c`, otherwise 0.
const SCRIPT: &str = concat!(
    include_str!("../../src/scripts/lib/products.lua"),
    "local found, at = {}, 1
     while at <= #ARGV[1] do
       local a, b, c, d, e
       a, b, c, d, e, at = struct.unpack('>I7I7I7I7I7', ARGV[1], at)
       found[#found + 1] = at_most(a, b, c, d, e) and '1' or '0'
     end
     return table.concat(found)"
);

/// Returns numbers `[a, b, c, d, e]` below 2^53. In most cases, `a * b - c` and `d * e` are equal or nearly equal.
fn case(random: &mut Random) -> [u64; 5] {
    let mut number = || {
        let bits = 1 + random.below(53);
        random.below(1 << bits)
    };
    let (a, b, e) = (number(), number(), number().max(1));
    let product = u128::from(a) * u128::from(b);
    let d = u64::try_from(product / u128::from(e)).unwrap_or(u64::MAX).min((1 << 53) - 1);
    let left = product.saturating_sub(u128::from(d) * u128::from(e));
    let c = u64::try_from(left).unwrap_or(u64::MAX).min((1 << 53) - 1);
    match random.below(5) {
        0 => [a, b, c, d, e],
        1 => [a, b, c.saturating_sub(1), d, e],
        2 => [a, b, 0, d, e],
        3 => [a, b, random.below(c + 1), d, e],
        // In most cases the products are nearly equal. `c` is any small number.
        _ => [a, b, random.below(1000), (d + random.below(2)).min((1 << 53) - 1), e],
    }
}

fn is_at_most([a, b, c, d, e]: [u64; 5]) -> bool {
    u128::from(a) * u128::from(b) <= u128::from(d) * u128::from(e) + u128::from(c)
}

#[test]
fn products_compare_as_128_bit_integers() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let mut random = Random(5);
    let mut smaller = 0;
    for _ in 0..CASES / CASES_A_CALL {
        let cases: Vec<[u64; 5]> = (0..CASES_A_CALL).map(|_| case(&mut random)).collect();
        let packed: Vec<u8> = cases.iter().flatten().flat_map(|number| number.to_be_bytes()[1..].to_vec()).collect();
        let reply = client.ask_one(redis::cmd("EVAL").arg(SCRIPT).arg(0).arg(packed).clone());
        for (case, found) in cases.iter().zip(bytes(&reply)) {
            assert_eq!(*found == b'1', is_at_most(*case), "{case:?}");
            smaller += usize::from(is_at_most(*case));
        }
    }
    assert!(
        (CASES / 4..CASES * 9 / 10).contains(&smaller),
        "both answers must be common, but {smaller} of {CASES} are true"
    );
}
