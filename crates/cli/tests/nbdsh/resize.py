"""The export has the size of argument 2, its last block can be written, and old bytes stay."""
import sys
import nbd

h = nbd.NBD()
h.connect_uri(sys.argv[1])
size = int(sys.argv[2])
assert h.get_size() == size, h.get_size()
at = 64 << 20
if size > at:
    assert bytes(h.pread(4096, at - 4096)) == b"z" * 4096, "old bytes are gone"
    assert bytes(h.pread(4096, at)) == bytes(4096), "new space is not zero"
h.pwrite(b"z" * 4096, size - 4096)
assert bytes(h.pread(4096, size - 4096)) == b"z" * 4096
h.flush()
h.shutdown()
