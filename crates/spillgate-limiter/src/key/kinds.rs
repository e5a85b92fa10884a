//! What can be a key: text, bytes, integers, addresses, and tuples of these.
//!
//! The parts of a key are hashed in place, without a copy or an allocation. So a key can be built from borrowed parts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::KeyBuilder;

/// These tags distinguish numbers, addresses and domains of rules from text with the same bytes.
const UNSIGNED: u64 = 1;
const NEGATIVE: u64 = 2;
const ADDRESS: u64 = 3;
const DOMAIN: u64 = 4;

impl KeyBuilder {
    /// Adds the domain of a rule. Every key of a rule begins with a domain, and no [`Key`] can add a domain. So a rule
    /// never shares a counter with a key that the program makes itself.
    #[doc(hidden)] // Only spillgate-rules calls this function.
    #[inline]
    pub fn domain(&mut self, name: &str) -> &mut KeyBuilder {
        self.tagged(DOMAIN, name.as_bytes())
    }
}

/// What a limit counts by: a user, an address, a group and a user, and so on.
///
/// | key | how it is compared with other keys |
/// |---|---|
/// | `&str`, `String`, `&[u8]`, `Vec<u8>`, `[u8; N]` | by its bytes. The text `a` and the bytes `a` are the same key |
/// | integers | by the value. `7_u8` and `7_u64` are the same key. The text `7` is another key |
/// | [`IpAddr`], [`Ipv4Addr`], [`Ipv6Addr`] | by the whole address. `::ffff:10.0.0.7` is the same key as `10.0.0.7`. An IPv6 client usually has a whole network, so count clients by [`network_of`](crate::network_of) |
/// | a tuple of 1 to 6 keys | by its parts and their order. `("ab", "c")` and `("a", "bc")` are different keys |
///
/// A tuple in a tuple is the same key as one long tuple. The first part of a tuple can name a group. In this example,
/// the same user is counted separately in the groups `login` and `export`:
///
/// ```
/// use spillgate::{Limiter, Quota};
///
/// const FIVE: Quota = Quota::per_minute(5).constant();
/// let limiter = Limiter::in_memory();
/// let user_id = 7_u64;
/// assert_eq!(limiter.take_now(&FIVE, ("login", user_id), 1).remaining, 4);
/// assert_eq!(limiter.take_now(&FIVE, ("export", user_id), 1).remaining, 4);
/// ```
///
/// To use a type of your own as a key, implement this trait:
///
/// ```
/// use spillgate::{Key, KeyBuilder};
///
/// struct Tenant {
///     region: String,
///     number: u32,
/// }
///
/// impl Key for Tenant {
///     fn add_to(&self, key: &mut KeyBuilder) {
///         key.key(&(self.region.as_str(), self.number));
///     }
/// }
/// ```
pub trait Key {
    /// Adds the parts of this key to `key`. Two keys are the same if they add the same parts in the same order.
    fn add_to(&self, key: &mut KeyBuilder);
}

impl<K: Key + ?Sized> Key for &K {
    #[inline]
    fn add_to(&self, key: &mut KeyBuilder) {
        (**self).add_to(key);
    }
}

macro_rules! bytes {
    ($($type:ty => |$value:ident| $bytes:expr;)*) => {
        $(impl Key for $type {
            #[inline]
            fn add_to(&self, key: &mut KeyBuilder) {
                let $value = self;
                key.part($bytes);
            }
        })*
    };
}

bytes! {
    str => |text| text.as_bytes();
    String => |text| text.as_bytes();
    [u8] => |bytes| bytes;
    Vec<u8> => |bytes| bytes;
}

impl<const N: usize> Key for [u8; N] {
    #[inline]
    fn add_to(&self, key: &mut KeyBuilder) {
        key.part(self);
    }
}

/// Adds a number by its value, so that `7_u8` and `7_u128` are the same key.
#[inline]
fn add_number(tag: u64, magnitude: u128, key: &mut KeyBuilder) {
    match u64::try_from(magnitude) {
        Ok(short) => key.tagged(tag, &short.to_le_bytes()),
        Err(_) => key.tagged(tag, &magnitude.to_le_bytes()),
    };
}

macro_rules! unsigned {
    ($($type:ty)*) => {
        $(impl Key for $type {
            #[inline]
            fn add_to(&self, key: &mut KeyBuilder) {
                add_number(UNSIGNED, *self as u128, key);
            }
        })*
    };
}

macro_rules! signed {
    ($($type:ty)*) => {
        $(impl Key for $type {
            #[inline]
            fn add_to(&self, key: &mut KeyBuilder) {
                let tag = if *self < 0 { NEGATIVE } else { UNSIGNED };
                add_number(tag, self.unsigned_abs() as u128, key);
            }
        })*
    };
}

unsigned! { u8 u16 u32 u64 u128 usize }
signed! { i8 i16 i32 i64 i128 isize }

impl Key for IpAddr {
    #[inline]
    fn add_to(&self, key: &mut KeyBuilder) {
        match self.to_canonical() {
            IpAddr::V4(address) => address.add_to(key),
            IpAddr::V6(address) => {
                key.tagged(ADDRESS, &address.octets());
            }
        }
    }
}

impl Key for Ipv4Addr {
    #[inline]
    fn add_to(&self, key: &mut KeyBuilder) {
        key.tagged(ADDRESS, &self.octets());
    }
}

impl Key for Ipv6Addr {
    #[inline]
    fn add_to(&self, key: &mut KeyBuilder) {
        IpAddr::V6(*self).add_to(key);
    }
}

macro_rules! tuples {
    ($(($($part:ident $index:tt),+))*) => {
        $(impl<$($part: Key),+> Key for ($($part,)+) {
            #[inline]
            fn add_to(&self, key: &mut KeyBuilder) {
                $(self.$index.add_to(key);)+
            }
        })*
    };
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use crate::{Key, KeyHasher};

    use super::*;

    fn hashes(keys: &[&dyn Key]) -> Vec<u128> {
        let hasher = KeyHasher::with_secret([7; 16]);
        keys.iter().map(|key| hasher.start().key(*key).finish()).collect()
    }

    #[test]
    fn equal_values_of_different_types_are_one_key() {
        let seven: [&dyn Key; 8] = [&7_u8, &7_u16, &7_u32, &7_u64, &7_u128, &7_usize, &7_i8, &7_i128];
        let text: [&dyn Key; 5] = [&"ann", &String::from("ann"), b"ann", &b"ann".as_slice(), &b"ann".to_vec()];
        let v4 = Ipv4Addr::new(10, 0, 0, 7);
        let address: [&dyn Key; 4] = [&v4, &IpAddr::V4(v4), &v4.to_ipv6_mapped(), &IpAddr::V6(v4.to_ipv6_mapped())];
        let nested: [&dyn Key; 3] = [&("a", 1_u8, "c"), &(("a", 1_u8), "c"), &("a", (1_u8, ("c",)))];
        for same in [&seven[..], &text[..], &address[..], &nested[..]] {
            assert_eq!(hashes(same).into_iter().collect::<HashSet<_>>().len(), 1);
        }
    }

    #[test]
    fn different_values_are_different_keys() {
        let eight = 0x3132_3334_3536_3738_u64;
        let v4 = Ipv4Addr::new(49, 50, 51, 52);
        let different: [&dyn Key; 16] = [
            &1_u8,
            &-1_i8,
            &i64::MIN,
            &i128::MIN,
            &u64::MAX,
            &u128::MAX,
            &eight,
            &eight.to_le_bytes(),
            &"1",
            &v4,
            &v4.octets(),
            &Ipv6Addr::LOCALHOST,
            &Ipv6Addr::LOCALHOST.octets(),
            &("ab", "c"),
            &("a", "bc"),
            &"abc",
        ];
        assert_eq!(hashes(&different).into_iter().collect::<HashSet<_>>().len(), different.len());
    }
}
