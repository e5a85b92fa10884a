//! One limit in several regions: how a server tells the others what it has admitted.
//!
//! Each region decides in a store of its own, and no request waits for another region. A server adds up what it admits, and
//! tells the store of each other region ([`ChargedStore`]) a moment later. There, what is new is charged.
//!
//! * `ledger.rs`: the units that have to be told. It is pure. `index.rs` and `order.rs` are its tables, and `rules.rs` has
//!   the rules of it that tests break.
//! * `peers.rs`: one task for each region. `pace.rs` says how much it sends, and `figures.rs` what an operator sees.
//! * `store.rs`: the store of a region, which records what it admits, and asks the guaranteed share.
//! * `about.rs`: what has to agree in all regions.
//!
//! ```
//! use std::num::NonZeroU32;
//! use std::time::Duration;
//! use spillgate::regions::{Options, Peers};
//! use spillgate::{AcrossRegions, Charge, Charged, ChargedStore, Quota, Regions, StoreError, Time};
//!
//! /// The store of another region that knows everything already.
//! struct Knowing;
//!
//! impl ChargedStore for Knowing {
//!     async fn charge(&self, _: Duration, _: &[Charge<'_>], results: &mut [Charged]) -> Result<(), StoreError> {
//!         results.fill(Charged::Known);
//!         Ok(())
//!     }
//!
//!     async fn about(&self, _: Duration) -> Result<Option<String>, StoreError> {
//!         Ok(None)
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
//! let options = Options {
//!     region: "eu".into(),
//!     nodes: NonZeroU32::MIN,
//!     max_keys: 1024,
//!     sync: Duration::from_millis(100),
//!     secret: 7,
//! };
//! let peers = Peers::start(&options, vec![("us".into(), Knowing)]);
//! let quota = Quota::per_minute(60).build()?.across(AcrossRegions::Shared(Regions::new(2).unwrap()))?;
//! tokio::time::sleep(Duration::from_millis(1)).await;
//! assert!(peers.record(7, &quota, Time::EPOCH, 3));
//! assert_eq!(peers.drain().await, 0);
//! # Ok::<(), spillgate::QuotaError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`ChargedStore`]: spillgate_core::ChargedStore

mod about;
mod figures;
mod index;
mod ledger;
mod order;
mod pace;
mod peers;
mod rules;
mod store;
#[cfg(test)]
mod tests;

pub use about::{About, Differs};
pub use figures::PeerStatus;
pub use ledger::Counts;
pub use peers::{Options, Peers, region_tag};
pub use store::{RegionStore, is_full, may_ask_share, not_supported};

const SECOND_NS: u64 = 1_000_000_000;
