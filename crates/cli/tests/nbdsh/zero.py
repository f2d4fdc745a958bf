"""Trim and write-zeroes: ranges read as zero, neighbours stay, NO_HOLE keeps the space, FAST_ZERO is honest."""
import sys
import nbd

h = nbd.NBD()
h.add_meta_context("base:allocation")
h.connect_uri(sys.argv[1])


def extents(count, offset):
    found = []

    def got(context, at, entries, error):
        found.extend(zip(entries[0::2], entries[1::2]))
        return 0

    h.block_status(count, offset, got)
    return found


def holes(count, offset):
    """Bytes of the range that are holes."""
    return sum(length for length, flags in extents(count, offset) if flags & nbd.STATE_HOLE)


ones = b"\x01" * 65536
h.pwrite(ones, 0)
assert holes(65536, 0) == 0

h.trim(16384, 16384)
got = bytes(h.pread(65536, 0))
assert got == ones[:16384] + bytes(16384) + ones[:32768], "trim touched its neighbours"
assert holes(65536, 0) == 16384

h.zero(8192, 0, nbd.CMD_FLAG_NO_HOLE)
assert bytes(h.pread(8192, 0)) == bytes(8192)
assert bytes(h.pread(4096, 8192)) == ones[:4096]
assert holes(8192, 0) == 0, "NO_HOLE left a hole"

h.zero(4096, 32768)
assert bytes(h.pread(8192, 32768)) == bytes(4096) + ones[:4096]

# Not aligned to blocks: only the range itself is zeroed.
h.pwrite(ones, 131072)
h.zero(1024, 131072 + 512)
assert bytes(h.pread(4096, 131072)) == ones[:512] + bytes(1024) + ones[:2560]
h.trim(1536, 131072 + 8192 + 512)
rest = bytes(h.pread(8192, 131072 + 8192))
assert rest[:512] == ones[:512] and rest[2048:] == ones[:6144], "trim of a part touched its neighbours"

# Either fast or refused, never slow: and when it was done, it reads as zero.
try:
    h.zero(32768, 131072 + 16384, nbd.CMD_FLAG_FAST_ZERO)
    assert bytes(h.pread(32768, 131072 + 16384)) == bytes(32768)
except nbd.Error as error:
    assert error.errnum in (95, 45), error

# FUA on both, and a flush.
h.trim(4096, 0, nbd.CMD_FLAG_FUA)
h.zero(4096, 4096, nbd.CMD_FLAG_FUA)
h.flush()

# Zeroing the whole disk gives all space back.
h.zero(h.get_size(), 0)
assert bytes(h.pread(1 << 20, 0)) == bytes(1 << 20)
assert holes(1 << 20, 0) == 1 << 20
h.shutdown()
