"""Whose the loopback interface is: attackers of tests knock at every port, so they have it to themselves."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def using_loopback(*, attacked: bool = False) -> Iterator[None]:
    """Wait until no test that runs beside this one attacks, or for an attack, until none uses the interface."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    with Path(tempfile.gettempdir(), f"loopback-{session}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if attacked else fcntl.LOCK_SH)
        yield
