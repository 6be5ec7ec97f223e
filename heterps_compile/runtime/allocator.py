"""Have the C library keep the memory that tensors free for the tensors of the next step.

By itself glibc gives the top of its heap back to the system whenever enough of it is free, and takes blocks above some
size from the system one by one. Which pass over a model is hit depends on what was allocated before; a pass that is
pays for every page anew. Ranks keep what they freed instead, and so do profiles, which are to say what ranks take.

Left out: blocks above 32 MiB, the most that glibc takes from its heap by size: they come from the system and go back to
it, so that what is used once, a checkpoint or a table that is read, does not stay. Other C libraries.
"""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_ALL = 2**31 - 1  # the most that mallopt takes
_LARGEST_FROM_HEAP = 32 << 20
_SAID_OTHERWISE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Have this process keep the memory it frees, unless the user set it otherwise; tell whether it does."""
    if any(name in os.environ for name in _SAID_OTHERWISE):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _ALL) and mallopt(_MMAP_THRESHOLD, _LARGEST_FROM_HEAP))
