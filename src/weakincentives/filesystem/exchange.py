"""Two files that change places, and writing begun early: decides how the two calls are reached that Python has no name for.

Nothing may depend on them: where the system or the disk has none, the caller does without.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable

_SIGNATURES = {"renameat2": "isisi", "sync_file_range": "iqqi"}
_RENAME_EXCHANGE = 2
_SYNC_FILE_RANGE_WRITE = 2
# A disk, an old system or a sandbox may say any of these to a call it does not know. Nothing was done then, and who goes
# another way is told there what is really forbidden.
_ABSENT = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES}


@functools.cache
def _system(name: str) -> Callable[..., int] | None:
    """A call of the system, which returns 0 or fails; None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (ImportError, OSError, AttributeError):  # a Python or a C library without it
        return None
    kinds = {"i": ctypes.c_int, "q": ctypes.c_int64, "s": ctypes.c_char_p}
    call.argtypes = [kinds[letter] for letter in _SIGNATURES[name]]
    return call


def exchange(fd: int, name: str, other_fd: int, other_name: str) -> bool:
    """Let two names in open directories change places in one step. False: not on this system or disk."""
    call = _system("renameat2")
    if call is None:
        return False
    if not call(fd, os.fsencode(name), other_fd, os.fsencode(other_name), _RENAME_EXCHANGE):
        return True
    import ctypes

    failed = ctypes.get_errno()
    if failed in _ABSENT:
        return False
    raise OSError(failed, os.strerror(failed), name, None, other_name)


def begin_writing(fd: int) -> None:
    """Have the disk begin with what an open file has only in memory, without waiting for it."""
    call = _system("sync_file_range")
    if call is not None:
        call(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)
