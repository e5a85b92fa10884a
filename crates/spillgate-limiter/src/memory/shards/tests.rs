//! Tests of the hash table. loom is a model checker for threads. It replaces the atomics, and works only inside its own
//! models. So a build for loom has only the module `model`.

#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod tables;
