//! Tests of the hash table. Loom runs its models with atomics of its own, and nothing else.

#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod tables;
