"""Multi-conn: a write acknowledged on one connection is read on all, and a flush on one covers the writes of all."""
import sys
import nbd

conns = []
for _ in range(8):
    h = nbd.NBD()
    h.connect_uri(sys.argv[1])
    assert h.can_multi_conn()
    conns.append(h)
for i, h in enumerate(conns):
    h.pwrite(bytes([i + 1]) * 16384, i * 16384)
for h in conns:
    for i in range(len(conns)):
        assert bytes(h.pread(16384, i * 16384)) == bytes([i + 1]) * 16384
conns[3].flush()

# A reader sees the same and may not write.
ro = nbd.NBD()
ro.connect_uri(sys.argv[2])
assert ro.is_read_only()
assert bytes(ro.pread(16384, 0)) == b"\x01" * 16384

# Many in flight on many connections, all over one range: each block ends as one of the values written, whole.
cookies = []
for step in range(64):
    for i, h in enumerate(conns):
        block = (step * 7 + i) % 32
        data = nbd.Buffer.from_bytearray(bytearray(bytes([i + 1]) * 4096))
        cookies.append((h, h.aio_pwrite(data, 1048576 + block * 4096)))
for h, cookie in cookies:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
for block in range(32):
    data = bytes(conns[0].pread(4096, 1048576 + block * 4096))
    assert len(set(data)) == 1, "torn block"
    assert 0 <= data[0] <= 8
for h in conns:
    h.shutdown()
