//! Memory that all connections share: a pool of bytes, and the account of each connection with it.
//!
//! A connection has a few bytes of its own, and takes further bytes from a pool before it uses them. So all connections
//! together cannot use more than the pool and their own bytes, whatever their clients do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use spillgate_service::metrics::Gauge;

/// The bytes that all connections share, in addition to those that each connection has of its own.
#[derive(Debug)]
pub(super) struct Pool {
    left: AtomicUsize,
    /// The last bytes of the pool, which only [`Account::take_reserved`] takes.
    reserve: usize,
    taken: Gauge,
}

impl Pool {
    /// Makes a pool of `bytes`, of which the last `reserve` are only for what is taken with
    /// [`Account::take_reserved`]. The gauge `taken` shows how many bytes connections have taken.
    pub(super) fn new(bytes: usize, reserve: usize, taken: Gauge) -> Pool {
        Pool { left: AtomicUsize::new(bytes), reserve, taken }
    }

    /// Takes `bytes` from the pool, if at least `kept` bytes are left then. Returns whether they were taken.
    fn draw(&self, bytes: usize, kept: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes).filter(|left| *left >= kept);
        let drawn = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if drawn {
            self.taken.add(bytes);
        }
        drawn
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
        self.taken.sub(bytes);
    }
}

/// What one connection uses.
#[derive(Debug)]
pub(super) struct Account {
    /// The bytes in use.
    held: AtomicUsize,
    /// The bytes that were taken from the pool.
    drawn: AtomicUsize,
    /// The bytes that the connection has in addition to the pool. Because of them, a client with few requests is served
    /// even while the pool is used up.
    own: usize,
    /// The connection takes bytes from the pool in blocks of this size. It keeps a block for a while, because all cores
    /// share the counter of the pool, and each access to this counter is slow.
    block: usize,
    pool: Arc<Pool>,
}

impl Account {
    pub(super) fn new(pool: &Arc<Pool>, own: usize, block: usize) -> Account {
        let (held, drawn) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Account { held, drawn, own, block, pool: Arc::clone(pool) }
    }

    #[inline]
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns whether the connection can use `bytes` more. Its bytes in use and `bytes` must together be at most
    /// `most`. Bytes that the connection lacks are taken from the pool.
    #[inline]
    pub(super) fn fits(&self, bytes: usize, most: usize) -> bool {
        let wanted = self.held() + bytes;
        let capacity = self.own + self.drawn.load(Ordering::Relaxed);
        wanted <= most && (wanted <= capacity || self.draw(wanted - capacity, self.pool.reserve))
    }

    /// Counts `bytes` as in use, if they fit. Returns whether they did.
    #[inline]
    pub(super) fn take(&self, bytes: usize) -> bool {
        let fits = self.fits(bytes, usize::MAX);
        if fits {
            self.hold(bytes);
        }
        fits
    }

    /// Counts `bytes` as in use, if they fit, also into the reserve of the pool. Returns whether they did.
    pub(super) fn take_reserved(&self, bytes: usize) -> bool {
        let (wanted, capacity) = (self.held() + bytes, self.own + self.drawn.load(Ordering::Relaxed));
        let fits = wanted <= capacity || self.draw(wanted - capacity, 0);
        if fits {
            self.hold(bytes);
        }
        fits
    }

    /// Counts `bytes` as in use, even if they do not fit.
    #[inline]
    pub(super) fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `bytes` as no longer in use.
    #[inline]
    pub(super) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[cold]
    fn draw(&self, bytes: usize, kept: usize) -> bool {
        let blocks = bytes.next_multiple_of(self.block);
        let drawn = self.pool.draw(blocks, kept);
        if drawn {
            self.drawn.fetch_add(blocks, Ordering::Relaxed);
        }
        drawn
    }

    /// Returns unused blocks to the pool, except the last `kept` of them.
    pub(super) fn return_unused(&self, kept: usize) {
        let drawn = self.drawn.load(Ordering::Relaxed);
        let needed = self.held().saturating_sub(self.own).next_multiple_of(self.block) + kept * self.block;
        if drawn > needed {
            self.drawn.fetch_sub(drawn - needed, Ordering::Relaxed);
            self.pool.give_back(drawn - needed);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.pool.give_back(*self.drawn.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_accounts_together_take_at_most_the_pool_and_give_all_of_it_back() {
        let taken = Gauge::default();
        let pool = Arc::new(Pool::new(100, 0, taken.clone()));
        let accounts: Vec<_> = (0..4).map(|_| Account::new(&pool, 10, 40)).collect();
        assert!(accounts.iter().all(|account| account.take(10)), "each has 10 bytes of its own");
        assert_eq!(taken.get(), 0);
        assert_eq!([0, 1, 2].map(|at| accounts[at].take(1)), [true, true, false], "a block has 40 bytes, the pool 100");
        assert!(accounts[0].take(39) && !accounts[0].take(1), "the first block is full");
        assert_eq!(taken.get(), 80);
        accounts[0].release(50);
        accounts[0].return_unused(1);
        assert_eq!(taken.get(), 80, "one block is kept");
        accounts[0].return_unused(0);
        assert_eq!(taken.get(), 40);
        assert!(accounts[2].take(1), "what was given back can be taken");
        drop(accounts);
        assert_eq!(taken.get(), 0);
    }
    #[test]
    fn the_reserve_is_only_for_what_may_take_it() {
        let pool = Arc::new(Pool::new(100, 30, Gauge::default()));
        let account = Account::new(&pool, 10, 10);
        assert!(account.take(80) && !account.take(1), "30 bytes are left");
        assert!(account.take_reserved(30) && !account.take_reserved(1), "nothing is left");
        account.release(30);
        account.return_unused(0);
        assert!(!account.take(1) && account.take_reserved(30), "what was given back is a reserve again");
    }
}
