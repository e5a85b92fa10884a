//! Figures of the process, under the names that programs commonly use for Prometheus.
//!
//! Most of them are read from `/proc`, and only while a page is written, so they cost nothing at other times. A figure
//! that cannot be read is left out, for example on systems without `/proc`.

use std::fmt::{Display, Write as _};
use std::fs;

use rustix::process::{Resource, getrlimit};

use super::registry::Format;

/// The times in `/proc` are in ticks. On every architecture, a tick of Linux is a hundredth of a second for programs.
const TICKS_PER_SECOND: u64 = 100;
/// At most this many entries of `/proc/self/fd` are counted.
const FDS_MAX: usize = 1 << 20;

pub(super) fn write(format: Format, out: &mut String) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let figures = Figures::of(&read("/proc/self/stat"), &read("/proc/self/status"), &read("/proc/stat"));
    let fds = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.take(FDS_MAX).count());
    let cpu = figures.cpu_ticks.map(seconds);
    let started = figures.started_ticks.map(seconds);
    let max_fds = getrlimit(Resource::Nofile).current;
    family("cpu_seconds_total", "CPU time of the process in seconds", cpu, format, out);
    family("max_fds", "Most file descriptors that the process may have open", max_fds, format, out);
    family("open_fds", "File descriptors that the process has open", fds, format, out);
    family("resident_memory_bytes", "Resident memory of the process in bytes", figures.resident_bytes, format, out);
    family("start_time_seconds", "When the process started, in seconds since 1970", started, format, out);
    family("threads", "Threads of the process", figures.threads, format, out);
    family("virtual_memory_bytes", "Virtual memory of the process in bytes", figures.virtual_bytes, format, out);
}

/// Returns the resident memory of this process in bytes. `None` on a system without `/proc/self/status`.
pub fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    Figures::of("", &status, "").resident_bytes
}

/// The figures that files of `/proc` have. A figure is `None` if its file lacks it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Figures {
    cpu_ticks: Option<u64>,
    started_ticks: Option<u64>,
    threads: Option<u64>,
    virtual_bytes: Option<u64>,
    resident_bytes: Option<u64>,
}

impl Figures {
    /// Reads the texts of `/proc/self/stat`, `/proc/self/status` and `/proc/stat`.
    fn of(stat: &str, status: &str, system: &str) -> Figures {
        // The second field is the name of the program in parentheses. The name can contain spaces and parentheses.
        let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        // The manual proc(5) numbers the fields from 1. The first one after the name has the number 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let number = |text: &str, name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        let bytes = |name: &str| Some(number(status, name)?.saturating_mul(1024));
        let started = |booted: u64| Some(booted.saturating_mul(TICKS_PER_SECOND).saturating_add(field(22)?));
        Figures {
            cpu_ticks: field(14).zip(field(15)).map(|(user, system)| user.saturating_add(system)),
            started_ticks: number(system, "btime ").and_then(started),
            threads: number(status, "Threads:"),
            virtual_bytes: bytes("VmSize:"),
            resident_bytes: bytes("VmRSS:"),
        }
    }
}

fn seconds(ticks: u64) -> String {
    format!("{}.{:02}", ticks / TICKS_PER_SECOND, ticks % TICKS_PER_SECOND)
}

/// Writes one metric. Writes nothing if its value is unknown.
fn family(name: &str, help: &str, value: Option<impl Display>, format: Format, out: &mut String) {
    let Some(value) = value else { return };
    let (kind, family) = match name.strip_suffix("_total") {
        Some(family) if format == Format::OpenMetrics => ("counter", family),
        Some(_) => ("counter", name),
        None => ("gauge", name),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP process_{family} {help}.\n# TYPE process_{family} {kind}\nprocess_{name} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_texts_of_linux() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 250 75 0 0 20 0 5 0 6000 1 2 3";
        let status = "Name:\ta b) c\nVmSize:\t  2000 kB\nVmRSS:\t  1000 kB\nThreads:\t5\n";
        let figures = Figures::of(stat, status, "cpu 1 2\nbtime 1700000000\n");
        let expected = Figures {
            cpu_ticks: Some(325),
            started_ticks: Some(170_000_006_000),
            threads: Some(5),
            virtual_bytes: Some(2_048_000),
            resident_bytes: Some(1_024_000),
        };
        assert_eq!(figures, expected);
        assert_eq!(seconds(325), "3.25");
    }

    #[test]
    fn other_texts_have_no_figures() {
        let huge = u64::MAX.to_string();
        let numbers = format!("7 (x) {}", format!("{huge} ").repeat(60));
        let strange = ["", ")", "(", "7 (x) S", "VmSize:", "VmSize: x kB", "btime", "btime -1", "\0\n\n", &*numbers];
        for stat in strange {
            for status in strange {
                for system in strange {
                    let figures = Figures::of(stat, status, system);
                    assert!((figures.virtual_bytes, figures.resident_bytes, figures.threads) == (None, None, None));
                    assert_eq!(figures.started_ticks, None);
                }
            }
        }
        let most = Figures::of(&numbers, &format!("VmRSS: {huge} kB"), &format!("btime {huge}"));
        assert_eq!((most.started_ticks, most.resident_bytes), (Some(u64::MAX), Some(u64::MAX)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_all_figures() {
        let mut text = String::new();
        write(Format::OpenMetrics, &mut text);
        assert_eq!(text.lines().filter(|line| line.starts_with("process_")).count(), 7, "{text}");
        assert!(text.contains("# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total "), "{text}");
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 20), "a process of Rust has more than 1 MiB");
        text.clear();
        write(Format::Text, &mut text);
        assert!(text.contains("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total "), "{text}");
    }
}
