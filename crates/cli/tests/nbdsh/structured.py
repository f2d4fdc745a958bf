"""Structured replies: a read that spans data and holes says which is which, in any order of chunks."""
import sys
import nbd

h = nbd.NBD()
h.connect_uri(sys.argv[1])
assert h.get_structured_replies_negotiated()
h.pwrite(b"a" * 4096, 8192)
h.pwrite(b"b" * 8192, 65536)

chunks = []


def chunk(data, offset, status, error):
    assert error.value == 0, error.value
    chunks.append((offset, bytes(data), status))
    return 0


buf = h.pread_structured(131072, 0, chunk)
expected = bytearray(131072)
expected[8192:12288] = b"a" * 4096
expected[65536:73728] = b"b" * 8192
assert bytes(buf) == bytes(expected), "bytes differ"
assert sum(len(data) for _, data, _ in chunks) == 131072
for offset, data, status in chunks:
    assert expected[offset:offset + len(data)] == data
    if status == nbd.READ_HOLE:
        assert not any(data), "a hole with data"

# With DF the answer is one chunk.
chunks.clear()
h.pread_structured(65536, 4096, chunk, nbd.CMD_FLAG_DF)
assert len(chunks) == 1, chunks
h.shutdown()

# A client that does not know structured replies gets simple ones and the same bytes.
h = nbd.NBD()
h.set_request_structured_replies(False)
h.connect_uri(sys.argv[1])
assert not h.get_structured_replies_negotiated()
assert bytes(h.pread(131072, 0)) == bytes(expected)
h.shutdown()
