//! Tests of durations and counts: which texts can be read, and that a printed duration can be read again.

use proptest::prelude::*;

use super::*;

#[test]
fn durations_add_up() {
    let ns = |text: &str| parse_duration(text).map(|duration| duration.as_nanos());
    for (text, expected) in [
        ("500ms", 500_000_000),
        ("1.5s", 1_500_000_000),
        ("1m30s", 90_000_000_000),
        ("1d 12h", 129_600_000_000_000),
        ("0.000000001s", 1),
        ("1.50000000000000000000s", 1_500_000_000),
        ("2w", 1_209_600_000_000_000),
        ("7µs", 7_000),
        ("0s", 0),
    ] {
        assert_eq!(ns(text), Ok(expected), "{text}");
    }
    for wrong in ["", "10", "s", ".5s", "5.s", "1.5ns", "1.2.3s", "-1s", "1 fortnight", "1sµ", "1e3s", "1.0000000001s"]
    {
        assert_eq!(ns(wrong), Err(UnitError::Malformed), "{wrong}");
    }
    for large in ["99999999999999999999s", "400000w", "213504d"] {
        assert_eq!(ns(large), Err(UnitError::TooLarge), "{large}");
    }
}

#[test]
fn durations_are_printed_short() {
    for (ns, expected) in [
        (0, "0s"),
        (1, "1ns"),
        (1_500_001, "1.500001ms"),
        (20_000_000, "20ms"),
        (59_940_000_000, "59.94s"),
        (60_000_000_000, "1m"),
        (5_400_000_000_000, "1h30m"),
        (86_400_500_000_000, "1d0.5s"),
        (2_592_000_000_000_000, "30d"),
    ] {
        assert_eq!(format_duration(Duration::from_nanos(ns)), expected);
    }
}

#[test]
fn counts_have_units_and_separators() {
    let counts = ["500", "1_000", "10k", "10K", "10 M", "1G"].map(parse_count);
    assert_eq!(counts, [500, 1_000, 10_000, 10_000, 10_000_000, 1_000_000_000].map(Ok));
    for wrong in ["", "_", "_1", "k", "1.5k", "1T", "-1", "1e3", "0x10"] {
        assert_eq!(parse_count(wrong), Err(UnitError::Malformed), "{wrong}");
    }
    assert_eq!(parse_count("99999999999999999999"), Err(UnitError::TooLarge));
    assert_eq!(parse_count("99999999999999999G"), Err(UnitError::TooLarge));
}

proptest! {
    #[test]
    fn what_is_printed_is_read_as_the_same_value(ns in prop_oneof![any::<u64>(), 0u64..200_000_000_000_000]) {
        let duration = Duration::from_nanos(ns);
        prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
    }

    #[test]
    fn any_text_is_read_or_rejected(text in "[0-9.nusmhdwµ ]{0,12}") {
        let _ = (parse_duration(&text), parse_count(&text));
    }
}
