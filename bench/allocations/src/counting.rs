//! The system's allocator, counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Counts every piece of memory that is asked for or grown.
pub(crate) struct Counting;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// Requests that come before what is counted: buffers grow, tables fill, header maps are reused.
const WARMUP: u32 = 500;
const COUNTED: u32 = 2000;

/// Allocations of the whole process for each of many calls of `ask`, which must not allocate itself.
pub(crate) fn each(mut ask: impl FnMut()) -> f64 {
    (0..WARMUP).for_each(|_| ask());
    let before = CALLS.load(Ordering::Relaxed);
    (0..COUNTED).for_each(|_| ask());
    (CALLS.load(Ordering::Relaxed) - before) as f64 / f64::from(COUNTED)
}
