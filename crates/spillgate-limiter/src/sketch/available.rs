//! Whether a sketch fits the memory of the machine.
//!
//! A sketch writes all its memory when it is made. If the machine has less memory, the operating system ends the
//! process at that moment. The allocation before it does not fail, because Linux and some allocators promise more
//! memory than the machine has.

use std::fs;
use std::hint::black_box;

/// The line `MemAvailable` of this file says how much memory programs can get without swapping. Only Linux has this
/// file.
const MACHINE: &str = "/proc/meminfo";
/// The files with the memory limit of a container, in version 2 and in version 1 of control groups. Only Linux has
/// these files.
const CONTAINERS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Returns whether the machine seems to have that much memory now. This function does not keep the memory.
///
/// On Linux, the memory has to be available on the machine, and must not be more than the limit of the container. On
/// all systems, an allocation of this size has to succeed. Until the caller has written the memory, other programs, or
/// other parts of this process, can still use it up.
///
/// ```
/// assert!(spillgate::sketch::has_memory(1 << 20));
/// assert!(!spillgate::sketch::has_memory(usize::MAX));
/// ```
#[must_use]
pub fn has_memory(bytes: usize) -> bool {
    let read = |path: &str| fs::read_to_string(path).ok();
    let on_machine = read(MACHINE).and_then(|text| available(&text));
    let in_container = CONTAINERS.iter().filter_map(|path| read(path)?.trim().parse().ok());
    let most = on_machine.into_iter().chain(in_container).min();
    if most.is_some_and(|most: u64| most < bytes as u64) {
        return false;
    }
    let mut tried = Vec::<u8>::new();
    let is_there = tried.try_reserve_exact(bytes).is_ok();
    // Without `black_box`, the compiler may remove an allocation that nothing uses.
    drop(black_box(tried));
    is_there
}

/// Returns the available bytes from the text of `/proc/meminfo`.
fn available(text: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_read_in_bytes() {
        let text =
            "MemTotal:       24731708 kB\nMemFree:         8572212 kB\nMemAvailable:   22945268 kB\nBuffers: 1 kB\n";
        assert_eq!(available(text), Some(22_945_268 * 1024));
        for wrong in ["", "MemAvailable: many kB", "MemAvailable: 1 MB", "MemAvailable: 18446744073709551615 kB"] {
            assert_eq!(available(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_sketch_larger_than_the_available_memory_is_an_error() {
        // Only Linux says how much is available.
        let Some(most) = fs::read_to_string(MACHINE).ok().and_then(|text| available(&text)) else { return };
        // Other programs can free memory during the test, but not so much that the available memory doubles.
        assert!(!has_memory(2 * most as usize));
        let quota = spillgate_core::Quota::per_second(10).constant();
        let error = crate::sketch::Sketch::new(&quota, 2 * most as usize).expect_err("there is less memory");
        assert_eq!(error, crate::sketch::SketchError::Memory);
    }
}
