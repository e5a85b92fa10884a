//! Writes and reads numbers in the formats of the Lua scripts. All numbers are big-endian.
//!
//! Lua numbers are doubles, which cannot store a time in nanoseconds exactly. So a time is stored as two numbers: whole
//! seconds, and the rest in nanoseconds or microseconds.
//!
//! | format in Lua | bytes | value |
//! |---|---|---|
//! | `B` | 1 | a small number or a flag |
//! | `I7` | 7 | units, or a span in microseconds, up to 2^53 - 1 |
//! | `I5I4` | 9 | seconds, and the rest in nanoseconds |
//! | `I5I3` | 8 | seconds, and the rest in microseconds |
//!
//! For example, the format `I5I4` stores the time 1.000000002 s as the bytes `00 00 00 00 01 00 00 00 02`
//! (hexadecimal).

use spillgate_core::MAX_UNITS;

const SECOND_NS: u64 = 1_000_000_000;

/// Writes the bytes that a script reads with `struct.unpack`.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    /// Appends the lowest `N` bytes of the number in big-endian order.
    fn integer<const N: usize>(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_be_bytes()[8 - N..]);
    }

    /// Appends a `B`.
    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Appends an `I5I4`: a time or a span in nanoseconds.
    pub(crate) fn time(&mut self, ns: u64) {
        self.integer::<5>(ns / SECOND_NS);
        self.integer::<4>(ns % SECOND_NS);
    }

    /// Appends an `I5I3`: a time, cut to whole microseconds.
    pub(crate) fn time_us(&mut self, ns: u64) {
        self.integer::<5>(ns / SECOND_NS);
        self.integer::<3>(ns % SECOND_NS / 1000);
    }

    /// Appends an `I7`: units, or a span in whole microseconds.
    pub(crate) fn units(&mut self, units: u64) {
        self.integer::<7>(units.min(MAX_UNITS));
    }
}

/// Reads the bytes that a script wrote with `struct.pack`. Each method returns `None` if the bytes end too early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'b>(pub(crate) &'b [u8]);

impl<'b> Reader<'b> {
    /// Returns the next `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads a number that has `length` bytes, at most eight.
    pub(crate) fn integer(&mut self, length: usize) -> Option<u64> {
        let bytes = self.take(length)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Reads an `I5I4` and returns it in nanoseconds.
    pub(crate) fn time(&mut self) -> Option<u64> {
        let (seconds, ns) = (self.integer(5)?, self.integer(4)?);
        seconds.checked_mul(SECOND_NS)?.checked_add(ns)
    }

    /// Reads an `I5I3` and returns it in nanoseconds.
    pub(crate) fn time_us(&mut self) -> Option<u64> {
        let (seconds, us) = (self.integer(5)?, self.integer(3)?);
        seconds.checked_mul(SECOND_NS)?.checked_add(us * 1000)
    }
}
