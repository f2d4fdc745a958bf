"""Writes of 512-byte multiples, against a model in memory."""
import random
import sys
import nbd

h = nbd.NBD()
h.connect_uri(sys.argv[1])
chance = random.Random(42)
span = 1 << 20
model = bytearray(span)
for step in range(400):
    offset = chance.randrange(span // 512) * 512
    length = min(chance.randrange(1, 40) * 512, span - offset)
    kind = chance.random()
    if kind < 0.7:
        data = bytes(chance.getrandbits(8) for _ in range(512)) * (length // 512)
        h.pwrite(data, offset, nbd.CMD_FLAG_FUA if chance.random() < 0.1 else 0)
        model[offset:offset + length] = data
    elif kind < 0.85:
        h.zero(length, offset)
        model[offset:offset + length] = bytes(length)
    else:
        assert bytes(h.pread(length, offset)) == model[offset:offset + length], step
assert bytes(h.pread(span, 0)) == bytes(model)
h.flush()
h.shutdown()
