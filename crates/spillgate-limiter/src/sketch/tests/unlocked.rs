//! Why each key has a lock: two variants without locks, which admit too much.
//!
//! The steps of several threads are written down here one after the other, in an order in which they can happen.
//! `model.rs` searches for such orders in the real sketch and finds nothing.

const LIMIT: u64 = 50;
const ROWS: usize = 4;

/// Eight threads read the cells of a key before one of them writes. Each write takes the maximum, so seven units are
/// lost in each round.
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

/// A thread admits if it can raise the smallest cell by a compare-and-swap. All cells of a key are equal after a
/// request, so four threads find four different smallest cells.
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
