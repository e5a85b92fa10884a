//! An allocator that counts the allocated bytes. It gets the memory from the allocator of the system.
//!
//! The memory that a limiter needs for a key is measured in this way, because `size_of` of a type does not include what
//! its values allocate on the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Counting;

/// The number of bytes that are allocated now.
pub(crate) fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// The highest number of bytes that were allocated at one time.
pub(crate) fn peak_bytes() -> usize {
    PEAK.load(Ordering::Relaxed)
}

fn add(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

fn subtract(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call is forwarded unchanged to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of this method, and the called method has the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of this method, and the called method has the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: the caller keeps the contract of this method, and the called method has the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // While the bytes are copied, the old and the new memory may both exist. The new size is added first, so that
        // the peak includes both.
        add(new_size);
        subtract(layout.size());
        // SAFETY: the caller keeps the contract of this method, and the called method has the same contract.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::{live_bytes, peak_bytes};

    #[test]
    fn allocated_bytes_are_counted_and_the_peak_stays() {
        const SIZE: usize = 1 << 30;
        let bytes: Vec<u8> = Vec::with_capacity(SIZE);
        assert!(live_bytes() >= SIZE);
        drop(bytes);
        assert!(live_bytes() < SIZE && peak_bytes() >= SIZE);
    }
}
