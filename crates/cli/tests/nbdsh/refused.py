"""Requests that cannot be served get the errno of the protocol, and the connection goes on."""
import errno
import sys
import nbd

h = nbd.NBD()
# Send what libnbd itself would refuse to send.
h.set_strict_mode(0)
h.connect_uri(sys.argv[1])
size = h.get_size()


def refused(what, *expected):
    try:
        what()
    except nbd.Error as error:
        assert error.errnum in expected, (error, expected)
    else:
        raise AssertionError("was not refused")
    assert bytes(h.pread(512, 0)) == bytes(512), "the connection did not go on"


refused(lambda: h.pread(4096, size), errno.EINVAL)
refused(lambda: h.pread(8192, size - 4096), errno.EINVAL)
refused(lambda: h.pwrite(bytes(4096), size), errno.ENOSPC, errno.EINVAL)
refused(lambda: h.pwrite(bytes(8192), size - 4096), errno.ENOSPC, errno.EINVAL)
refused(lambda: h.zero(8192, size - 4096), errno.ENOSPC, errno.EINVAL)
refused(lambda: h.trim(8192, size - 4096), errno.EINVAL, errno.ENOSPC)
refused(lambda: h.pread(100, 0), errno.EINVAL)
refused(lambda: h.pwrite(bytes(512), 3), errno.EINVAL)
refused(lambda: h.pread(512, 2 ** 63), errno.EINVAL)
refused(lambda: h.pread(512, 2 ** 64 - 512), errno.EINVAL)
h.shutdown()

ro = nbd.NBD()
ro.set_strict_mode(0)
ro.connect_uri(sys.argv[2])
for what in (lambda: ro.pwrite(bytes(4096), 0), lambda: ro.trim(4096, 0), lambda: ro.zero(4096, 0)):
    try:
        what()
    except nbd.Error as error:
        assert error.errnum == errno.EPERM, error
    else:
        raise AssertionError("a reader wrote")
assert bytes(ro.pread(4096, 0)) == bytes(4096)
ro.shutdown()
