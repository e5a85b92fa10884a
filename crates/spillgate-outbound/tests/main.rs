//! The tests of calls to other services. They are one program, so that only one has to be linked. Only `waiters` is
//! another program, because it measures its own memory.

mod client;
mod far_side;
mod outbound;
mod pace;
mod pacing_bound;
