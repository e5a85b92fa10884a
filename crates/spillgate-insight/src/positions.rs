//! A small hash index, which finds the position of a hash in a list.
//!
//! The lists of insight have a fixed capacity, so this index never grows, and a request that uses it allocates no
//! memory. The hashes are secret and evenly distributed, so their bits are used without further mixing.

/// Marks a cell without a position.
const EMPTY: u16 = u16::MAX;

#[derive(Debug)]
pub(super) struct Positions {
    cells: Box<[u16]>,
}

impl Positions {
    /// Makes an index for a list of at most `capacity` items. `capacity` is at most 16,384.
    pub(super) fn new(capacity: usize) -> Positions {
        debug_assert!(capacity <= 1 << 14, "positions need 16 bits, and one of their values means empty");
        // At least half of the cells stay empty, so that searches are short.
        Positions { cells: vec![EMPTY; (2 * capacity).next_power_of_two().max(2)].into() }
    }

    /// Returns the position of `hash`. `hash_at` returns the hash at a position of the list.
    #[inline]
    pub(super) fn find(&self, hash: u64, hash_at: impl Fn(usize) -> u64) -> Option<usize> {
        let mut cell = self.first(hash);
        loop {
            match self.cells[cell] {
                EMPTY => return None,
                position if hash_at(usize::from(position)) == hash => return Some(usize::from(position)),
                _ => cell = (cell + 1) & self.mask(),
            }
        }
    }

    /// Adds the position of a hash that the index does not have.
    #[inline]
    pub(super) fn add(&mut self, hash: u64, position: usize) {
        let mut cell = self.first(hash);
        while self.cells[cell] != EMPTY {
            cell = (cell + 1) & self.mask();
        }
        self.cells[cell] = u16::try_from(position).unwrap_or(EMPTY);
    }

    /// Replaces all positions by those of a list with these hashes.
    pub(super) fn rebuild(&mut self, hashes: impl Iterator<Item = u64>) {
        self.cells.fill(EMPTY);
        for (position, hash) in hashes.enumerate() {
            self.add(hash, position);
        }
    }

    /// A hash has three uses. Its lowest bits choose the part of the sample, its highest bits decide whether the caller
    /// is in the sample, and the bits between them choose the cell.
    fn first(&self, hash: u64) -> usize {
        (hash >> 8) as usize & self.mask()
    }

    /// The number of cells is a power of two.
    fn mask(&self) -> usize {
        self.cells.len() - 1
    }
}
