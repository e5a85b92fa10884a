//! What ran, and how busy it was before.

use std::fs;

/// A line of markdown about this machine.
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu_info = read("/proc/cpuinfo");
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = cpu_info.lines().filter(|line| line.starts_with("processor")).count();
    let (kernel, load) = (read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"));
    let load = load.split(' ').next().unwrap_or("?");
    format!(
        "Machine: {cores} cores, {}, Linux {}; load average at the start {load}.\n",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim()
    )
}
