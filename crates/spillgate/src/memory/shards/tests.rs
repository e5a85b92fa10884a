//! Tests of the hash table. A build for loom (a model checker for threads) has only the models, because loom replaces
//! the atomics.

#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod tables;
