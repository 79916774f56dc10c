"""System calls that Python does not offer."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]

KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE = 1, 2, 8, 16, 32
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
AT_FDCWD = -100


def _check(result, *names):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), *names)


def fallocate(handle, mode, at, length):
    _check(libc.fallocate(handle, mode, at, length))


def rename2(old, new, flags):
    _check(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags), old)
