//! Counts the calls of this thread into the allocator, for tests that must see none.
//!
//! Owns: the test binary's allocator; a test takes it in by `#[path]`. Never: counts other threads.
//! Invariant: every allocation, growth and freeing of the thread adds at least one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends frees after its counter has gone.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls so far.
pub fn calls() -> u64 {
    CALLS.with(Cell::get)
}
