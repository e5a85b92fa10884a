//! `check --store`, `key` and `doctor`.
