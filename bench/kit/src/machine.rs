//! A description of the machine, for the head of a report.
//!
//! A measured time has a meaning only for one machine, and only if the machine was not busy.

use std::fs;

/// Returns a line of markdown with the processor, the kernel and the load of this machine.
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu_info = read("/proc/cpuinfo");
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = cpu_info.lines().filter(|line| line.starts_with("processor")).count();
    let (kernel, load) = (read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"));
    let load = load.split(' ').next().unwrap_or("?");
    format!(
        "Machine: {cores} cores, {}, Linux {}. The load average at the start is {load}.\n",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim()
    )
}
