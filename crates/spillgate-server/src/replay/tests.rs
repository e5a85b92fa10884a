//! Tests of a replay.
