//! The arguments of `spillgate size`.

use std::time::Duration;

use clap::{Arg, ArgMatches, Command, value_parser};
use spillgate::units::{parse_bytes, parse_count, parse_duration};
use spillgate::{MAX_UNITS, Regions};

use super::arguments::json_argument;
use super::verb::Size;

const EXIT_CODES: &str = "Exit codes:
  0  success
  1  nothing fits the memory
  2  the command line is wrong
  3  the output cannot be written";

/// Names of windows with the duration that each of them means.
const WINDOWS: [(&str, &str); 12] = [
    ("second", "1s"),
    ("minute", "1m"),
    ("hour", "1h"),
    ("day", "1d"),
    ("week", "1w"),
    ("month", "30d"),
    ("year", "365d"),
    ("s", "1s"),
    ("m", "1m"),
    ("h", "1h"),
    ("d", "1d"),
    ("w", "1w"),
];

pub(super) fn command() -> Command {
    let count = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("COUNT").value_parser(at_least_one).help(help)
    };
    Command::new("size")
        .about("Compute the memory of a limit: exact, in a sketch, and in Redis")
        .after_help(format!(
            "Examples:\n  spillgate size --limit 10/s --rate 1M --keys 1G\n  \
             spillgate size --limit 100/day --rate 10k --keys 1M --memory 64MiB\n  \
             spillgate size --limit 600/m --rate 20k --keys 1M --regions 3\n\n{EXIT_CODES}"
        ))
        .arg(
            Arg::new("limit")
                .long("limit")
                .value_name("COUNT/WINDOW")
                .required(true)
                .value_parser(limit)
                .help("Units that each key may use: 10/s, 100/day, 5/10s"),
        )
        .arg(count("burst", "Burst of the token bucket [default: the limit]"))
        .arg(count("rate", "Units that all keys together use in a second").required(true))
        .arg(count("keys", "Number of different keys").required(true))
        .arg(
            Arg::new("memory")
                .long("memory")
                .value_name("SIZE")
                .value_parser(memory)
                .help("Greatest memory, 128KiB at least. Without it, the memory that each representation needs"),
        )
        .arg(
            Arg::new("regions")
                .long("regions")
                .value_name("COUNT")
                .value_parser(value_parser!(u8).range(2..=i64::from(Regions::MAX)))
                .conflicts_with("memory")
                .help("Number of regions that share the limit: the memory in the store of each. --rate and --keys are those of all"),
        )
        .arg(json_argument("Print one line of JSON"))
}

pub(super) fn read(matches: &ArgMatches) -> Size {
    let count = |name: &str| matches.get_one::<u64>(name).copied();
    let (limit, window) = matches.get_one::<(u64, Duration)>("limit").copied().unwrap_or_default();
    Size {
        limit,
        window,
        burst: count("burst"),
        rate: count("rate").unwrap_or(1),
        keys: count("keys").unwrap_or(1),
        memory: count("memory"),
        regions: matches.get_one("regions").copied(),
        json: matches.get_flag("json"),
    }
}

/// Reads a count. Here `1B` means a billion, as `1G` does.
fn at_least_one(text: &str) -> Result<u64, String> {
    let billions = text.strip_suffix(['B', 'b']).map(|number| format!("{number}G"));
    match parse_count(billions.as_deref().unwrap_or(text)) {
        Ok(0) => Err("write 1 or more".to_owned()),
        Ok(count) if count > MAX_UNITS => Err(format!("write at most {MAX_UNITS}")),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}: write a number such as 500, 10k, 1M or 1B")),
    }
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).map_err(|error| format!("{error}: write a size such as 64MiB or 1GB"))?;
    if (128 << 10..=1 << 50).contains(&bytes) { Ok(bytes) } else { Err("write 128KiB to 1048576GiB".to_owned()) }
}

/// Reads a limit such as `10/s`, `100/day` or `5/10s`.
fn limit(text: &str) -> Result<(u64, Duration), String> {
    let help = "write COUNT/WINDOW, such as 10/s, 100/day or 5/10s";
    let (count, window) = text.split_once('/').ok_or_else(|| help.to_owned())?;
    let count = at_least_one(count.trim())?;
    let named = WINDOWS.iter().find(|(name, _)| *name == window.trim());
    let duration = parse_duration(named.map_or(window.trim(), |(_, duration)| duration));
    let duration = duration.map_err(|error| format!("the window `{window}` is wrong: {error}; {help}"))?;
    if duration.is_zero() { Err(format!("the window is 0; {help}")) } else { Ok((count, duration)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_a_count_and_a_window() {
        let seconds = |count, s| Ok((count, Duration::from_secs(s)));
        assert_eq!(limit("10/s"), seconds(10, 1));
        assert_eq!(limit("100/day"), seconds(100, 86_400));
        assert_eq!(limit("1k / 10s"), seconds(1_000, 10));
        assert_eq!(limit("10/month"), seconds(10, 30 * 86_400));
        assert_eq!(limit("1B/s"), seconds(1_000_000_000, 1));
        for wrong in ["10", "/s", "0/s", "10/0s", "10/decade", "10/s/s", "-1/s"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }
}
