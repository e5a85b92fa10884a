//! The tests of calls to other services. One program has them all, so that there is one to link. Each module says what it
//! tests. The program `waiters` is on its own, because it measures its own memory.

mod client;
mod far_side;
mod outbound;
mod pace;
