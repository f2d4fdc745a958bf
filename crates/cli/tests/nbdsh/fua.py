"""FUA writes and trims are durable when they are acknowledged; argument 2 says whether to write or to verify."""
import sys
import nbd

h = nbd.NBD()
h.connect_uri(sys.argv[1])
if sys.argv[2] == "write":
    for block in range(256):
        h.pwrite(bytes([block % 251 + 1]) * 4096, block * 12288, nbd.CMD_FLAG_FUA)
    for block in range(0, 256, 5):
        h.zero(4096, block * 12288, nbd.CMD_FLAG_FUA)
    # The server is killed next: there is no flush and no goodbye.
else:
    for block in range(256):
        value = 0 if block % 5 == 0 else block % 251 + 1
        assert bytes(h.pread(4096, block * 12288)) == bytes([value]) * 4096, block
    h.shutdown()
