//! What the measuring programs share.

mod draw;
mod machine;
mod spread;

pub use draw::draw;
pub use machine::machine;
pub use spread::{Spread, quantile, spread};
