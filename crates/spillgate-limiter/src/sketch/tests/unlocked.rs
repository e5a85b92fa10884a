//! Shows why each key has a lock: two variants without locks admit too much.
//!
//! The tests make the steps of several threads one after the other, in an order in which they can really happen.
//! `model.rs` searches for orders in which the real sketch admits too much, and finds none.

const LIMIT: u64 = 50;
const ROWS: usize = 4;

/// Eight threads read the cells of a key before one of them writes. All eight threads then write the same number, so
/// seven of eight units are lost in each round.
#[test]
fn without_locks_the_maximum_loses_units() {
    let mut cells = [0_u64; ROWS];
    let mut admitted = 0;
    for _ in 0..LIMIT {
        let seen = [cells.into_iter().min().unwrap_or(0); 8];
        for used in seen.into_iter().filter(|used| *used < LIMIT) {
            cells = cells.map(|cell| cell.max(used + 1));
            admitted += 1;
        }
    }
    assert_eq!(admitted, 8 * LIMIT, "eight times the limit is admitted");
}

/// A thread admits a request if it can raise the smallest cell by a compare-and-swap. If all four cells of a key are
/// equal, four threads can raise four different cells. So all four are admitted.
#[test]
fn a_compare_and_swap_of_the_smallest_cell_loses_units() {
    let mut cells = [0_u64; ROWS];
    let mut admitted = 0;
    for round in 0..LIMIT {
        assert_eq!(cells, [round; ROWS]);
        for _ in 0..ROWS {
            // A thread finds the smallest cell, and raises it. It is interrupted before it raises the other cells.
            let smallest = (0..ROWS).min_by_key(|row| cells[*row]).unwrap_or(0);
            let used = cells[smallest];
            if used < LIMIT && used == round {
                cells[smallest] = used + 1;
                admitted += 1;
            }
        }
    }
    assert_eq!(admitted, ROWS as u64 * LIMIT, "four times the limit is admitted");
}
