//! Tests of the indices of the slab (the list of states that do not fit a slot).
//!
//! Two states with one index would overwrite each other.

use super::*;

#[test]
fn an_index_is_allocated_once_reused_when_free_and_deallocated_at_the_end() {
    let mut slab = Slab::default();
    let indices: Vec<u32> = (0..200).map(|_| slab.allocate()).collect();
    assert_eq!(indices, (0..200).collect::<Vec<u32>>());
    for index in [70, 3, 199, 130] {
        slab.remove(index);
    }
    let reused: Vec<u32> = (0..5).map(|_| slab.allocate()).collect();
    assert_eq!(reused, [3, 70, 130, 199, 200]);
    for index in 0..=200 {
        slab.remove(index);
    }
    assert_eq!((slab.blocks.len(), slab.blocks.capacity()), (0, 0));
    assert_eq!(slab.allocate(), 0);
}

#[test]
fn the_indices_of_a_deallocated_block_are_allocated_again_in_order() {
    let mut slab = Slab::default();
    for _ in 0..130 {
        slab.allocate();
    }
    for index in 64..130 {
        slab.remove(index);
    }
    assert_eq!(slab.blocks.len(), 1);
    assert_eq!((slab.allocate(), slab.allocate()), (64, 65));
    slab.remove(5);
    assert_eq!((slab.allocate(), slab.allocate()), (5, 66));
}
