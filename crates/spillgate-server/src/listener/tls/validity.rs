//! Reads from when until when a certificate is valid.
//!
//! The libraries of TLS check these dates, but do not return them. An operator has to see the end before it comes, so this
//! file reads the few fields in front of the dates (RFC 5280, section 4.1), and nothing behind them.

/// From when until when a certificate is valid, in seconds since 1970. Both are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) begin: i64,
    pub(crate) end: i64,
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// The number of the version, which a certificate of version 1 does not have.
const VERSION: u8 = 0xa0;

impl Validity {
    /// Reads the dates of a certificate in DER. Returns `None` if it is no certificate.
    pub(crate) fn of(certificate: &[u8]) -> Option<Validity> {
        let (certificate, _) = element(certificate, SEQUENCE)?;
        let (mut fields, _) = element(certificate, SEQUENCE)?;
        if let Some((_, rest)) = element(fields, VERSION) {
            fields = rest;
        }
        // The serial number, the algorithm of the signature, and the name of the issuer are in front of the dates.
        for tag in [INTEGER, SEQUENCE, SEQUENCE] {
            (_, fields) = element(fields, tag)?;
        }
        let (dates, _) = element(fields, SEQUENCE)?;
        let (begin, dates) = time(dates)?;
        let (end, rest) = time(dates)?;
        rest.is_empty().then_some(Validity { begin, end })
    }
}

/// Splits the first element, which must have this tag, from the bytes. Returns its content, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match *length {
        short @ 0..=0x7f => (usize::from(short), rest),
        // More than three bytes would be the length of a certificate of 16 MiB.
        long @ 0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    if *first == tag { rest.split_at_checked(length) } else { None }
}

/// Reads a time. Certificates have two forms of it, always in UTC and with seconds: `YYMMDDhhmmssZ` and
/// `YYYYMMDDhhmmssZ`.
fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (digits_of_year, (text, rest)) = match bytes.first()? {
        &UTC_TIME => (2, element(bytes, UTC_TIME)?),
        _ => (4, element(bytes, GENERALIZED_TIME)?),
    };
    let digits = text.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let (year, digits) = digits.split_at_checked(digits_of_year)?;
    let number = |digits: &[u8]| digits.iter().fold(0, |sum, digit| 10 * sum + i64::from(digit - b'0'));
    let year = match (digits_of_year, number(year)) {
        (2, short @ 0..50) => 2000 + short,
        (2, short) => 1900 + short,
        (_, year) => year,
    };
    let pairs: Vec<i64> = digits.chunks(2).map(number).collect();
    let &[month @ 1..=12, day @ 1..=31, hour @ 0..=23, minute @ 0..=59, second @ 0..=60] = &pairs[..] else {
        return None;
    };
    let of_day = (hour * 60 + minute) * 60 + second;
    (digits.len() == 10).then_some((days_since_1970(year, month, day) * 86_400 + of_day, rest))
}

/// Returns the number of days from the first day of 1970 to this day of the Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // A year that begins in March ends with the day that only some years have.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_year = (153 * month + 2) / 5 + day - 1;
    let of_leap_years = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // The first day of March in the year 0 is 719,468 days before 1970.
    365 * year + of_leap_years + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::{collection, sample};
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn validity(begin: (i32, u8, u8), end: (i32, u8, u8)) -> Option<Validity> {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).expect("the name is valid");
        (params.not_before, params.not_after) =
            (date_time_ymd(begin.0, begin.1, begin.2), date_time_ymd(end.0, end.1, end.2));
        let key = KeyPair::generate().expect("a key can be made");
        Validity::of(params.self_signed(&key).expect("a certificate can be made").der())
    }

    #[test]
    fn the_dates_of_certificates_are_read() {
        for (begin, end, seconds) in [
            ((1970, 1, 1), (1970, 1, 2), (0, 86_400)),
            ((1999, 12, 31), (2000, 2, 29), (946_598_400, 951_782_400)),
            ((2000, 3, 1), (2049, 12, 31), (951_868_800, 2_524_521_600)),
            // From 2050 on, the year has four digits.
            ((2024, 2, 29), (2050, 1, 1), (1_709_164_800, 2_524_608_000)),
            ((2100, 2, 28), (2100, 3, 1), (4_107_456_000, 4_107_542_400)),
            ((2026, 11, 30), (9999, 12, 31), (1_795_996_800, 253_402_214_400)),
        ] {
            let expected = Validity { begin: seconds.0, end: seconds.1 };
            assert_eq!(validity(begin, end), Some(expected), "{begin:?} to {end:?}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_dates() {
        let key = KeyPair::generate().expect("a key can be made");
        let params = CertificateParams::new(Vec::new()).expect("no names are valid");
        let certificate = params.self_signed(&key).expect("a certificate can be made");
        let der = certificate.der().to_vec();
        assert!(Validity::of(&der).is_some());
        for length in 0..der.len() {
            assert_eq!(Validity::of(&der[..length]), None, "the first {length} bytes");
        }
        // A wrong byte may change a date, but must never cause a panic.
        for at in 0..der.len() {
            for wrong in [0, 0x30, 0x7f, 0x80, 0x83, 0x84, 0xff] {
                let mut changed = der.clone();
                changed[at] = wrong;
                let _ = Validity::of(&changed);
            }
        }
    }

    /// What a well-known reader of certificates says.
    fn read_by_another(der: &[u8]) -> Option<Validity> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let validity = certificate.validity();
        Some(Validity { begin: validity.not_before.timestamp(), end: validity.not_after.timestamp() })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A changed byte may be in a date. What both readers take for a certificate has the same dates for both.
        #[test]
        fn another_reader_reads_the_same_dates(
            dates in [(1950_i32..10_000, 1_u8..13, 1_u8..29, 0_i64..86_400), (1950_i32..10_000, 1_u8..13, 1_u8..29, 0_i64..86_400)],
            changes in collection::vec((any::<sample::Index>(), any::<u8>()), 20),
        ) {
            let [begin, end] = dates.map(|(year, month, day, second)| {
                date_time_ymd(year, month, day) + std::time::Duration::from_secs(second.unsigned_abs())
            });
            let mut params = CertificateParams::new(Vec::new()).expect("no names are valid");
            (params.not_before, params.not_after) = (begin, end);
            let key = KeyPair::generate().expect("a key can be made");
            let der = params.self_signed(&key).expect("a certificate can be made").der().to_vec();
            let expected = Validity { begin: begin.unix_timestamp(), end: end.unix_timestamp() };
            prop_assert_eq!((Validity::of(&der), read_by_another(&der)), (Some(expected), Some(expected)));
            for (at, byte) in changes {
                let mut changed = der.clone();
                changed[at.index(der.len() / 2)] = byte;
                if let (Some(read), Some(expected)) = (Validity::of(&changed), read_by_another(&changed)) {
                    prop_assert_eq!(read, expected);
                }
            }
        }
    }

    #[test]
    fn times_that_no_certificate_has_are_refused() {
        let read = |tag, text: &str| time(&[&[tag, text.len() as u8], text.as_bytes()].concat()).map(|(time, _)| time);
        assert_eq!(read(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(read(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(read(GENERALIZED_TIME, "19691231235959Z"), Some(-1));
        for wrong in [
            "",
            "Z",
            "7001010000Z",
            "700101000000",
            "701301000000Z",
            "700101240000Z",
            "7001010000000Z",
            "70010100000Z",
            "7001+1000000Z",
        ] {
            assert_eq!(read(UTC_TIME, wrong), None, "{wrong}");
        }
        assert_eq!(read(GENERALIZED_TIME, "700101000000Z"), None, "the year has four digits");
    }
}
