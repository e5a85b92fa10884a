//! What the measuring programs share.

mod draw;
mod machine;
mod process;
mod spread;

pub use draw::draw;
pub use machine::machine;
pub use process::{Process, free_address, pinned, redis_server};
pub use spread::{Spread, quantile, spread};
