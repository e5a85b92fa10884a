//! A store in the memory of this process. It is exact and bounded, and a snapshot can keep its states over a restart.
//!
//! Without it a program could not decide anything by itself: every other store needs a server. It also counts this
//! node's share of each limit while a shared store fails.
//!
//! # Words
//!
//! ```text
//! MemoryStore
//!   narrow, wide     two sets of shards, by the width of their slots
//!     shard 0 .. n   one part of the keys: a table, a slab, a sweep cursor
//!       table        bucket | bucket | bucket | bucket | ... | spill buckets
//!         bucket     slot slot slot slot slot lock            (two cache lines)
//!           slot     fingerprint | time | state or slab index
//!       slab         the states that do not fit a slot
//!   budget           keys and bytes in use, and their bounds
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | entry | the state of one key, as the store has it |
//! | shard | a part of the keys, with a table of its own; a table grows, shrinks and is swept by itself |
//! | table | the buckets of one shard; a new table replaces it when the shard grows or shrinks |
//! | bucket | a few slots and a lock in two cache lines; the algorithm of this name is always called token bucket |
//! | slot | the cell of one entry in a bucket; three words (narrow) or five words (wide) |
//! | fingerprint | the bits of a key that a slot stores |
//! | position | the bucket and the slot of an entry |
//! | home bucket | the bucket where the search for a key begins |
//! | chain | the buckets from a home bucket on that may have its entries |
//! | overflow count | how many entries went past a bucket because it was full; a search ends at a bucket whose count is 0 |
//! | spill bucket | a bucket behind the last home bucket, for the ends of chains |
//! | rank | the number of a key in the order of all keys of its shard; the size of the table does not matter |
//! | slab, index | the states of a shard that do not fit a slot, and where a state is there |
//! | claim | to write the fingerprint of a new key into a free slot, before the decision |
//! | sweep, sweep cursor | to remove expired entries, a few buckets at a time; the bucket that is next |
//! | obstacle | why a request must be tried again: its table was replaced or is crowded, or the budget is used up |
//! | budget, capacity | the bounds of the store, and what they still allow |
//!
//! # Where to read on
//!
//! `decide.rs` has the calls. A request takes one of three paths: `single.rs`, `several.rs` or `batch.rs`. They share
//! `entry.rs` (slot to state and back), `retry.rs` (obstacles and sweeps) and `over_budget.rs`. The hash table is in
//! `shards/`, and the file is in `snapshot/`.

mod batch;
mod budget;
mod decide;
mod entry;
mod options;
mod over_budget;
mod retry;
mod several;
mod shards;
mod single;
#[cfg(feature = "snapshot")]
mod snapshot;
mod store;

pub use options::{MemoryOptions, OnFull};
#[cfg(feature = "snapshot")]
pub use snapshot::{Restored, Saved, SnapshotError};
pub use store::MemoryStore;

#[cfg(all(test, not(loom)))]
mod tests;
