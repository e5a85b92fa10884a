//! The versions of the lists in the shared store. A version is a text such as `57.1-<32 hexadecimal digits>`.
//!
//! | part | what it says |
//! |---|---|
//! | 57 | the number of the write. Each write has a higher one than the version that it replaces |
//! | 1 | how often the lists were restored since that write, because the store had lost them |
//! | the digits | random, so that two servers never write the same version. A failover can lose a write, and the next write then has the same number |
//!
//! The numbers show which of two copies is the later one. So a server sees that the store has lost writes, and an earlier
//! copy cannot replace a later one for long.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// The part of a version that says which of two versions is the later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    write: u64,
    restored: u64,
}

impl Order {
    /// The order before the first write. While a server restores the lists, they have a version of this order.
    pub(crate) const NOTHING: Order = Order { write: 0, restored: 0 };

    /// Returns the order of a version. `None` if another program wrote the version.
    pub(crate) fn of(version: &[u8]) -> Option<Order> {
        let (order, _) = std::str::from_utf8(version).ok()?.split_once('-')?;
        let (write, restored) = order.split_once('.')?;
        Some(Order { write: write.parse().ok()?, restored: restored.parse().ok()? })
    }

    pub(crate) const fn next_write(self) -> Order {
        Order { write: self.write.saturating_add(1), restored: 0 }
    }

    pub(crate) const fn next_restored(self) -> Order {
        Order { write: self.write, restored: self.restored.saturating_add(1) }
    }

    /// Returns a new version of this order.
    pub(crate) fn version(self) -> Vec<u8> {
        let random = || RandomState::new().build_hasher().finish();
        format!("{}.{}-{:016x}{:016x}", self.write, self.restored, random(), random()).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_write_and_then_by_restoration() {
        let first = Order::NOTHING.next_write();
        let orders = [Order::NOTHING, first, first.next_restored(), first.next_restored().next_write()];
        assert!(orders.is_sorted_by(|a, b| a < b), "{orders:?}");
        for order in orders {
            assert_eq!(Order::of(&order.version()), Some(order));
            assert_ne!(order.version(), order.version());
        }
        for other in [&b""[..], b"cleared", b"1-a", b"-1.0-a", b"1.-a", b"\xff", b"99999999999999999999.0-a"] {
            assert_eq!(Order::of(other), None, "{other:?}");
        }
    }
}
