//! An allocator that counts the allocations of the whole process. It gets the memory from the allocator of the system.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Counts every allocation, and every call that makes an allocation larger or smaller.
pub(crate) struct Counting;

// SAFETY: every call is forwarded unchanged to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of this method, and the called method has the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this method, and the called method has the same contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of this method, and the called method has the same contract.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// The number of requests before the count starts. During these requests, buffers grow and tables are filled.
const WARMUP: u32 = 500;
/// The number of requests that are counted.
const COUNTED: u32 = 2000;

/// Returns the average number of allocations of the whole process for one call of `request`, over [`COUNTED`] calls.
/// The code of `request` itself must not allocate, because its allocations would be counted too.
pub(crate) fn each(mut request: impl FnMut()) -> f64 {
    (0..WARMUP).for_each(|_| request());
    let before = CALLS.load(Ordering::Relaxed);
    (0..COUNTED).for_each(|_| request());
    (CALLS.load(Ordering::Relaxed) - before) as f64 / f64::from(COUNTED)
}
