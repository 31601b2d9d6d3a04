"""The C library's heap: what is freed stays for the next tensor.

glibc hands large blocks back to the system when they are freed and fetches them anew, and every
page of them costs a fault when it is first written. A training step frees and allocates hundreds
of megabytes: kept, it runs up to half as fast again (measured). The process then stays at the peak
of its memory, and somewhat above it, so this is for a process that is ours, never for a library.
"""

from __future__ import annotations

import ctypes

# From malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Ask for it, for the rest of the process; False where the C library is another."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    wanted = {_MMAP_MAX: 0, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 64 << 20}
    return all([mallopt(name, value) for name, value in wanted.items()])
