//! Hints to the processor about memory that will be needed soon.
//!
//! Owns: the one instruction. Never: changes a result; without the instruction nothing is different but the time.
//! Invariant: any reference may be given.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for the memory of a value, its first four lines at most. A simulation of many nodes touches each of them seldom, so every
/// event waits for memory unless it was asked for a few events before.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).cast(), size_of_val(value));
}

/// Asks for the memory at an address, its first four lines at most. Any address may be given.
#[inline]
pub fn prefetch_at(address: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(LINE).min(4) {
        fetch(address.wrapping_add(line * LINE));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn fetch(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing and cannot fault, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch(_: *const u8) {}

#[cfg(test)]
mod tests {
    #[test]
    fn any_value_may_be_asked_for() {
        super::prefetch::<[u8]>(&[]);
        super::prefetch(&[0u8; 1000]);
        super::prefetch("text");
        super::prefetch_at(std::ptr::null(), 64);
    }
}
