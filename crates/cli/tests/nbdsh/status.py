"""Block status follows writes and trims exactly, block by block, and never answers beyond what was asked with REQ_ONE."""
import sys
import nbd

h = nbd.NBD()
h.add_meta_context("base:allocation")
h.connect_uri(sys.argv[1])
size = h.get_size()


def extents(count, offset, flags=0):
    found = []

    def got(context, at, entries, error):
        assert context == "base:allocation"
        found.extend(zip(entries[0::2], entries[1::2]))
        return 0

    h.block_status(count, offset, got, flags)
    return found


def states(blocks):
    """One character for each of the first blocks: d data, h hole, from as many answers as it takes."""
    text, at = "", 0
    while at < blocks * 4096:
        for length, flags in extents(blocks * 4096 - at, at):
            assert length > 0
            take = min(length, blocks * 4096 - at)
            text += ("h" if flags & nbd.STATE_HOLE else "d") * (take // 4096)
            at += take
    return text


assert states(64) == "h" * 64
model = ["h"] * 64
for block in (0, 3, 4, 5, 31, 32, 63):
    h.pwrite(bytes([block + 1]) * 4096, block * 4096)
    model[block] = "d"
    assert states(64) == "".join(model)
for block in (4, 32):
    h.trim(4096, block * 4096)
    model[block] = "h"
    assert states(64) == "".join(model)

one = extents(64 * 4096, 0, nbd.CMD_FLAG_REQ_ONE)
assert len(one) == 1 and one[0][0] <= 64 * 4096, one
# The whole disk, however long.
at = 0
while at < size:
    answer = extents(min(size - at, 1 << 30), at)
    assert answer
    at += sum(length for length, _ in answer)
h.shutdown()
