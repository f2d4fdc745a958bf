//! The one region of I/O memory of a pool: page-aligned buffers that drives and sockets read and write.
//!
//! Owns: the region and its buddy allocator. Never: grows, or touches pages that nobody asked for.
//! Invariant: live buffers never overlap, and every buffer is aligned to 4096 bytes.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Bytes of the smallest buffer.
pub const PAGE_BYTES: usize = 4096;
/// Largest buffer: `PAGE_BYTES << MAX_ORDER` = 1 MiB.
pub const MAX_ORDER: usize = 8;
/// Bytes of the largest buffer.
pub const MAX_BUF_BYTES: usize = PAGE_BYTES << MAX_ORDER;

const NIL: u32 = u32::MAX;
const USED: u8 = 0x80;
const INNER: u8 = 0xff;

/// A handle to a buffer of a [`Mem`]: page number and length in bytes.
///
/// A plain copyable value: whoever the protocol says owns it frees it, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buf {
    page: u32,
    skip: u32,
    len: u32,
}

impl Buf {
    /// A handle to no bytes; freeing it is a no-op.
    pub const EMPTY: Buf = Buf { page: NIL, skip: 0, len: 0 };

    /// Length in bytes.
    pub const fn len(self) -> usize {
        self.len as usize
    }

    /// True for a handle to no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// A part of this buffer: for I/O only; free the whole, never a part.
    ///
    /// # Panics
    /// When the part does not lie inside.
    #[must_use]
    pub fn part(self, start: usize, len: usize) -> Buf {
        assert!(start + len <= self.len as usize, "part {start}+{len} of a buffer of {}", self.len);
        Buf { page: self.page, skip: self.skip + start as u32, len: len as u32 }
    }

    /// Byte offset of the buffer in its region, for registered I/O.
    pub const fn region_offset(self) -> usize {
        self.page as usize * PAGE_BYTES + self.skip as usize
    }
}

/// A fixed region of zeroed memory with a buddy allocator over 4 KiB pages.
///
/// Pages are touched only when a buffer is used, so an idle region costs no resident memory.
pub struct Mem {
    /// First page: inside the allocation, at a page boundary.
    base: *mut u8,
    bytes: usize,
    allocation: *mut u8,
    layout: Layout,
    /// Per page: order of the free or used buffer that begins there, or `INNER`.
    state: Vec<u8>,
    next: Vec<u32>,
    prev: Vec<u32>,
    heads: [u32; MAX_ORDER + 1],
    used_pages: usize,
}

// The region is owned by this value alone; the raw pointer is only its address.
unsafe impl Send for Mem {}

impl Mem {
    /// A region of `bytes`, rounded up to whole largest buffers (1 MiB).
    ///
    /// # Panics
    /// When the system has no such address space.
    pub fn new(bytes: usize) -> Mem {
        let bytes = bytes.max(1).next_multiple_of(MAX_BUF_BYTES);
        // Asked for with a small alignment and aligned here: with a large one the allocator zeroes by writing, which
        // would back every page. Without, memory of this size comes as fresh mappings that cost nothing until touched.
        let layout = Layout::from_size_align(bytes + PAGE_BYTES, 16).expect("region size fits the address space");
        let allocation = unsafe { alloc_zeroed(layout) };
        assert!(!allocation.is_null(), "no address space for a region of {bytes} bytes");
        let base = unsafe { allocation.add(allocation.align_offset(PAGE_BYTES)) };
        let pages = bytes / PAGE_BYTES;
        let mut mem = Mem {
            base,
            bytes,
            allocation,
            layout,
            state: vec![INNER; pages],
            next: vec![NIL; pages],
            prev: vec![NIL; pages],
            heads: [NIL; MAX_ORDER + 1],
            used_pages: 0,
        };
        for first in (0..pages).step_by(1 << MAX_ORDER).rev() {
            mem.push(first as u32, MAX_ORDER);
        }
        mem
    }

    /// A buffer of exactly `len` bytes (its space is rounded up to a power of two of pages), or `None` when
    /// the region has no such hole now. `len` is 1 to [`MAX_BUF_BYTES`]. Contents are unspecified.
    pub fn alloc(&mut self, len: usize) -> Option<Buf> {
        assert!(len > 0 && len <= MAX_BUF_BYTES, "buffer of {len} bytes");
        let order = order_of(len);
        let from = (order..=MAX_ORDER).find(|&o| self.heads[o] != NIL)?;
        let page = self.heads[from];
        self.unlink(page, from);
        for o in (order..from).rev() {
            self.push(page + (1 << o), o);
        }
        self.state[page as usize] = order as u8 | USED;
        self.used_pages += 1 << order;
        Some(Buf { page, skip: 0, len: len as u32 })
    }

    /// Gives a buffer back. Pass the handle that `alloc` returned, not a part.
    ///
    /// # Panics
    /// When the buffer is not live (freed twice, or a part).
    pub fn free(&mut self, buf: Buf) {
        if buf.page == NIL {
            return;
        }
        let mut page = buf.page;
        let state = self.state[page as usize];
        assert!(buf.skip == 0 && state & USED != 0 && state != INNER, "free of a buffer that is not live");
        let mut order = (state & !USED) as usize;
        self.used_pages -= 1 << order;
        self.state[page as usize] = INNER;
        while order < MAX_ORDER {
            let buddy = page ^ (1 << order);
            if self.state[buddy as usize] != order as u8 {
                break;
            }
            self.unlink(buddy, order);
            page = page.min(buddy);
            order += 1;
        }
        self.push(page, order);
    }

    /// The bytes of a buffer.
    pub fn get(&self, buf: Buf) -> &[u8] {
        let at = self.check(buf);
        unsafe { std::slice::from_raw_parts(self.base.add(at), buf.len as usize) }
    }

    /// The bytes of a buffer, to change.
    pub fn get_mut(&mut self, buf: Buf) -> &mut [u8] {
        let at = self.check(buf);
        unsafe { std::slice::from_raw_parts_mut(self.base.add(at), buf.len as usize) }
    }

    /// Copies between two buffers of equal length that do not overlap.
    ///
    /// # Panics
    /// When lengths differ.
    pub fn copy(&mut self, from: Buf, to: Buf) {
        assert_eq!(from.len, to.len, "copy between buffers of different length");
        let (from_at, to_at) = (self.check(from), self.check(to));
        unsafe { std::ptr::copy(self.base.add(from_at), self.base.add(to_at), from.len as usize) }
    }

    /// Address of a buffer, for system calls. Valid for as long as the region lives.
    pub fn addr(&self, buf: Buf) -> *mut u8 {
        let at = self.check(buf);
        unsafe { self.base.add(at) }
    }

    /// Base address and bytes of the whole region, to register it with the kernel.
    pub fn region(&self) -> (*mut u8, usize) {
        (self.base, self.bytes)
    }

    /// Bytes handed out now, as rounded up.
    pub fn used_bytes(&self) -> usize {
        self.used_pages * PAGE_BYTES
    }

    /// Bytes of the region.
    pub fn capacity_bytes(&self) -> usize {
        self.bytes
    }

    fn check(&self, buf: Buf) -> usize {
        if buf.len == 0 {
            return 0;
        }
        let at = buf.region_offset();
        assert!(at + buf.len as usize <= self.bytes, "buffer outside its region");
        at
    }

    fn push(&mut self, page: u32, order: usize) {
        let head = self.heads[order];
        self.state[page as usize] = order as u8;
        self.next[page as usize] = head;
        self.prev[page as usize] = NIL;
        if head != NIL {
            self.prev[head as usize] = page;
        }
        self.heads[order] = page;
    }

    fn unlink(&mut self, page: u32, order: usize) {
        let (next, prev) = (self.next[page as usize], self.prev[page as usize]);
        if prev == NIL {
            self.heads[order] = next;
        } else {
            self.next[prev as usize] = next;
        }
        if next != NIL {
            self.prev[next as usize] = prev;
        }
        self.state[page as usize] = INNER;
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        unsafe { dealloc(self.allocation, self.layout) }
    }
}

fn order_of(len: usize) -> usize {
    len.div_ceil(PAGE_BYTES).next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn model_buffers_never_overlap_and_all_come_back(ops in prop::collection::vec((1usize..200_000, any::<u8>()), 1..300)) {
            let mut mem = Mem::new(4 << 20);
            let mut live: Vec<(Buf, u8)> = Vec::new();
            for (len, mark) in ops {
                if mark % 3 == 0 && !live.is_empty() {
                    let (buf, mark) = live.swap_remove(len % live.len());
                    prop_assert!(mem.get(buf).iter().all(|b| *b == mark));
                    mem.free(buf);
                } else if let Some(buf) = mem.alloc(len) {
                    prop_assert_eq!(mem.addr(buf) as usize % PAGE_BYTES, 0);
                    mem.get_mut(buf).fill(mark);
                    live.push((buf, mark));
                }
            }
            for (buf, mark) in live {
                prop_assert!(mem.get(buf).iter().all(|b| *b == mark));
                mem.free(buf);
            }
            prop_assert_eq!(mem.used_bytes(), 0);
            for _ in 0..4 {
                prop_assert!(mem.alloc(MAX_BUF_BYTES).is_some());
            }
        }
    }

    #[test]
    fn an_untouched_region_is_not_resident() {
        let resident_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap().trim().to_owned();
            line.trim_end_matches(" kB").trim().parse::<u64>().unwrap()
        };
        let before = resident_kib();
        let mut mem = Mem::new(1 << 30);
        assert!(mem.alloc(MAX_BUF_BYTES).is_some());
        // Other tests run in this process too: the bound is loose, and far from 1 GiB.
        assert!(resident_kib() < before + (256 << 10), "{} KiB before, {} KiB after", before, resident_kib());
    }

    #[test]
    #[should_panic(expected = "not live")]
    fn freeing_twice_is_a_bug() {
        let mut mem = Mem::new(1 << 20);
        let buf = mem.alloc(5000).unwrap();
        mem.free(buf);
        mem.free(buf);
    }
}
