//! Cutting a large request into pieces that the volume engine takes.
//!
//! Owns: the cut points. Never: reorders or overlaps pieces.
//! Invariant: pieces cover the range exactly, in order, and the 4096-aligned span of each is at most the limit.

/// Iterator over `(offset, len)` pieces; see [`pieces`].
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    offset: u64,
    left: u64,
    span_max: u32,
}

/// Cuts `offset..offset + len` so that the aligned span of every piece has at most `span_max` bytes.
///
/// `span_max` is a multiple of 4096. Every cut is at a multiple of 4096, so only the first and last piece of a
/// misaligned request are misaligned.
///
/// # Panics
/// When `span_max` is 0 or not a multiple of 4096.
pub const fn pieces(offset: u64, len: u64, span_max: u32) -> Pieces {
    assert!(span_max > 0 && span_max.is_multiple_of(4096), "span_max is a positive multiple of 4096");
    Pieces { offset, left: len, span_max }
}

impl Iterator for Pieces {
    type Item = (u64, u32);

    #[inline]
    fn next(&mut self) -> Option<(u64, u32)> {
        if self.left == 0 {
            return None;
        }
        let skip = (self.offset & 4095) as u32;
        let len = self.left.min((self.span_max - skip) as u64);
        let piece = (self.offset, len as u32);
        self.offset = self.offset.wrapping_add(len);
        self.left -= len;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_aligned_small_request_is_one_piece() {
        assert_eq!(pieces(8192, 4096, 256 << 10).collect::<Vec<_>>(), [(8192, 4096)]);
        assert_eq!(pieces(512, 0, 4096).count(), 0);
    }

    proptest! {
        #[test]
        fn model_pieces_cover_exactly(offset in 0u64..1 << 40, len in 0u64..32 << 20, pages in 1u32..100) {
            let span_max = pages * 4096;
            let mut at = offset;
            for (from, n) in pieces(offset, len, span_max) {
                prop_assert_eq!(from, at);
                prop_assert!(n > 0);
                let span = (from + n as u64).next_multiple_of(4096) - (from & !4095);
                prop_assert!(span <= span_max as u64);
                at += n as u64;
                prop_assert!(at == offset + len || at % 4096 == 0);
            }
            prop_assert_eq!(at, offset + len);
        }
    }
}
