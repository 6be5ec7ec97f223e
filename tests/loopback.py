"""Whose the loopback interface is: attackers of tests knock at every port, so they have it to themselves."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def using_loopback(*, attacked: bool = False) -> Iterator[None]:
    """Wait until no test that runs beside this one attacks, or for an attack, until none uses the interface."""
    # A folder can be locked as a file can, and nothing is left behind.
    here = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(here, fcntl.LOCK_EX if attacked else fcntl.LOCK_SH)
        yield
    finally:
        os.close(here)
