//! A store in the memory of this process. Its decisions are exact and its memory is bounded. A snapshot file can keep
//! the states of the store over a restart.
//!
//! With this store, a program needs no server to limit requests. A [`FallbackStore`](crate::FallbackStore) decides in
//! this store while a shared store fails.
//!
//! # Words
//!
//! ```text
//! MemoryStore
//!   narrow, wide     two sets of shards, by the width of their slots
//!     shard 0 .. n   a part of the keys, with a table, a slab and a sweep cursor
//!       table        bucket | bucket | bucket | bucket | ... | spill buckets
//!         bucket     slot slot slot slot slot lock            (two cache lines)
//!           slot     fingerprint | time | state or slab index
//!       slab         the states that do not fit a slot
//!   budget           keys and bytes in use, and their bounds
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | entry | the state of one key in the store: in a slot, or in the slab with its index in a slot |
//! | shard | a part of the keys; each shard has its own table, which grows, shrinks and is swept without the others |
//! | table | the buckets of one shard; a new table replaces it when the shard grows or shrinks |
//! | bucket | a few slots and a lock in two cache lines; the two algorithms are always called token bucket and leaky bucket |
//! | slot | the part of a bucket that can store one entry; it has three words of 8 bytes (narrow) or five words (wide) |
//! | fingerprint | the bits of a key that a slot stores, so that the key is recognized |
//! | position | the bucket and the slot of an entry |
//! | home bucket | the bucket where the search for a key begins |
//! | chain | the home bucket of a key, and the buckets after it in which the key can be |
//! | overflow count | how many entries passed a bucket because it was full; a search ends at a bucket whose count is 0 |
//! | spill bucket | a bucket after the last home bucket; it stores entries for which the last home buckets have no free slot |
//! | rank | a number that sorts the keys of a shard; it does not depend on the size of the table |
//! | slab | the list of the states of a shard that do not fit a slot |
//! | index | the number of a state in the slab |
//! | claim | to write the fingerprint of a new key into a free slot, before the decision |
//! | sweep | to remove expired entries, a few buckets at a time |
//! | sweep cursor | the home bucket of a shard that is swept next |
//! | obstacle | the reason why a request must be tried again: its table is being replaced or is crowded, or the budget is used up |
//! | crowded | a table is crowded if no slot near the home bucket of a key is free |
//! | capacity | the keys and bytes of the budget that are still free |
//!
//! # Where to read on
//!
//! `decide.rs` has the functions that callers use. A request of one hit is decided in `single.rs`, and a request of
//! several hits in `several.rs`. `batch.rs` decides many requests of one hit each. These three files use the following:
//!
//! * `entry.rs` loads and stores states.
//! * `retry.rs` removes the obstacles of requests, and it sweeps the shards.
//! * `over_budget.rs` decides the requests for which the store has too little capacity. With [`OnFull::Sketch`],
//!   `overflow.rs` then limits new keys by a sketch.
//!
//! The hash table is in `shards/`, and the code for snapshot files is in `snapshot/`.

mod batch;
mod budget;
mod decide;
mod entry;
mod options;
mod over_budget;
mod overflow;
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
