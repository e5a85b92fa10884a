//! Hashes the value that a program counts by, such as the name of a user, to a key of 128 bits. The hash depends on a
//! secret.
//!
//! A store compares only the hashes of keys. Without a secret, a client could choose a key whose hash equals the hash
//! of another client's key, and use up that client's limit.

mod forwarded;
mod kinds;
mod network;

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

pub use forwarded::{address_of, client_of};
pub use kinds::Key;
pub use network::network_of;

/// Hashes keys with a secret: SipHash-1-3 with 128 bits of output (Aumasson and Bernstein, 2012).
///
/// A store keeps all 128 bits of a key, or only some of them. Two keys share a state only if they are equal in all bits
/// that the store keeps. If a store keeps `b` bits of each of `n` keys, the probability that at least two keys share a
/// state is below `n^2 / 2^(b+1)`. The memory store keeps at least 88 bits. For 20 million keys, the probability is
/// then below one in 10^12.
///
/// ```
/// use spillgate::KeyHasher;
/// let keys = KeyHasher::random();
/// let ab_c = keys.start().part(b"ab").part(b"c").finish();
/// let a_bc = keys.start().part(b"a").part(b"bc").finish();
/// assert_ne!(ab_c, a_bc, "the length of each part is hashed too");
/// ```
#[derive(Clone)]
pub struct KeyHasher {
    secret: [u8; 16],
}

impl KeyHasher {
    /// Makes a hasher with a new random secret, for a store whose states are lost when the process ends.
    ///
    /// # Panics
    /// Panics if the operating system returns no random bytes. A limiter without a secret is not safe.
    #[must_use]
    pub fn random() -> KeyHasher {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).expect("the operating system gives random bytes");
        KeyHasher { secret }
    }

    /// Makes a hasher with the secret of the caller, for a store that several processes share.
    ///
    /// The secret must be random, and clients must not know it. A client that knows the secret can find keys that share
    /// a state.
    ///
    /// ```
    /// use spillgate::KeyHasher;
    /// let key = |secret| KeyHasher::with_secret(secret).start().part(b"ann").finish();
    /// assert_eq!(key([1; 16]), key([1; 16]), "every process finds the same state");
    /// assert_ne!(key([1; 16]), key([2; 16]));
    /// ```
    #[must_use]
    pub const fn with_secret(secret: [u8; 16]) -> KeyHasher {
        KeyHasher { secret }
    }

    #[cfg(feature = "snapshot")]
    pub(crate) const fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// Starts a key. Add its [parts](KeyBuilder::part) in order, then [finish](KeyBuilder::finish) it.
    #[must_use]
    #[inline]
    pub fn start(&self) -> KeyBuilder {
        KeyBuilder(SipHasher13::new_with_key(&self.secret))
    }
}

impl fmt::Debug for KeyHasher {
    /// Leaves out the secret, which must not get into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher")
    }
}

/// A key to which parts are added. See the example of [`KeyHasher`].
#[derive(Clone, Debug)]
pub struct KeyBuilder(SipHasher13);

impl KeyBuilder {
    /// Adds one part and its length. The length ensures that different lists of parts give different keys.
    #[inline]
    pub fn part(&mut self, bytes: &[u8]) -> &mut KeyBuilder {
        self.tagged(0, bytes)
    }

    /// Adds a part that is neither text nor bytes. `tag` (1 to 255) is the kind of the part. The tag is hashed as the
    /// highest byte of the length. For text and bytes, this byte is 0.
    #[inline]
    pub(crate) fn tagged(&mut self, tag: u64, bytes: &[u8]) -> &mut KeyBuilder {
        self.0.write_u64(tag << 56 | bytes.len() as u64);
        self.0.write(bytes);
        self
    }

    /// Adds all parts of `key`, in order.
    ///
    /// ```
    /// use spillgate::KeyHasher;
    /// let keys = KeyHasher::random();
    /// let (by_hand, whole) = (keys.start().part(b"login").part(b"ann").finish(), keys.start().key(&("login", "ann")).finish());
    /// assert_eq!(by_hand, whole);
    /// ```
    #[inline]
    pub fn key(&mut self, key: &(impl Key + ?Sized)) -> &mut KeyBuilder {
        key.add_to(self);
        self
    }

    /// Returns the key: the hash of all parts that were added until now.
    #[must_use]
    #[inline]
    pub fn finish(&self) -> u128 {
        self.0.finish128().into()
    }
}
