//! The code that all measuring programs share: keys, statistics, servers, and the report.
//!
//! Without this code, each program would start servers and compute medians in its own way, and their results could not
//! be compared.

mod draw;
mod machine;
mod process;
mod report;
mod server;
mod spread;
mod timing;

pub use draw::draw;
pub use machine::machine;
pub use process::{Process, free_address, pinned};
pub use report::{met, print};
pub use server::{Counted, Redis};
pub use spread::{Spread, median_interval, quantile, spread};
pub use timing::{Cost, thread_cpu_ns, together};
