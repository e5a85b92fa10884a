//! The tests of calls to other services. One program has them all, so that only one has to be linked. Each module says
//! what it tests. Only `waiters` is another program, because it measures its own memory.

mod client;
mod far_side;
mod outbound;
mod pace;
