//! Tests of the hash table. Loom is a model checker for threads. Its atomics work only inside its own models, so a
//! build for loom has only the module `model`.

#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod tables;
