//! Turns what is counted into 128 bits that nobody without the secret can steer.

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// Hashes keys with a secret: SipHash-1-3 with 128 bits of output (Aumasson and Bernstein, 2012).
///
/// Two keys share a state only if all bits that a store keeps agree. With n keys alive and all 128 kept that
/// happens with probability below n^2 / 2^129; the memory store keeps 88 at least: for twenty million keys one
/// in 10^12. A hash without a secret would let a client choose a key that collides with somebody else's.
///
/// ```
/// use spillgate::KeyHasher;
/// let keys = KeyHasher::random();
/// let ab_c = keys.start().part(b"ab").part(b"c").finish();
/// let a_bc = keys.start().part(b"a").part(b"bc").finish();
/// assert_ne!(ab_c, a_bc, "parts are length-prefixed");
/// ```
#[derive(Clone)]
pub struct KeyHasher {
    secret: [u8; 16],
}

impl KeyHasher {
    /// A hasher with a fresh secret, for state that ends with the process.
    ///
    /// # Panics
    /// If the operating system has no randomness to give: there is no safe limiter without.
    #[must_use]
    pub fn random() -> KeyHasher {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).expect("the operating system gives random bytes");
        KeyHasher { secret }
    }

    /// A hasher with a secret of the caller's, for state that several processes share.
    #[must_use]
    pub const fn with_secret(secret: [u8; 16]) -> KeyHasher {
        KeyHasher { secret }
    }

    pub(crate) const fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// Starts a key; add its [parts](KeyBuilder::part) in order.
    #[must_use]
    pub fn start(&self) -> KeyBuilder {
        KeyBuilder(SipHasher13::new_with_key(&self.secret))
    }
}

impl fmt::Debug for KeyHasher {
    /// Does not tell the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher")
    }
}

/// A key in the making.
#[derive(Clone, Debug)]
pub struct KeyBuilder(SipHasher13);

impl KeyBuilder {
    /// Adds one part with its length, so that no two lists of parts look alike.
    pub fn part(&mut self, bytes: &[u8]) -> &mut KeyBuilder {
        self.0.write_u64(bytes.len() as u64);
        self.0.write(bytes);
        self
    }

    /// The key.
    #[must_use]
    pub fn finish(&self) -> u128 {
        self.0.finish128().into()
    }
}
