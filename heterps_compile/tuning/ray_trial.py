"""A worker of a search as Ray's worker processes see it: an object that runs the processes of trials, one at a time.

Ray makes it on a node that has what the class takes, and it stays there for the search. It forks trials from a process
that has PyTorch imported, which ends with it, and so do they. Left out: who calls it (``ray_engine.py``). Nothing of
Ray is imported.
"""

import os
import signal
from collections.abc import Mapping

from heterps_compile.runtime.launch.fork_server import ForkServer

from .local_engine import OF_TRIALS, TRIAL_MODULE

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class TrialWorker:
    """Runs trials on the machine where this object is."""

    def __init__(self) -> None:
        """Begin to import what trials need."""
        # Ray blocks SIGINT, and a child inherits that.
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        try:
            self._server = ForkServer(OF_TRIALS)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def run(self, job_file: str, environment: Mapping[str, str]) -> int:
        """Run a trial to its end; return its exit code, minus the number of the signal that killed it.

        Args:
            job_file: Of the trial, in a folder that all nodes have.
            environment: What the process has beside this one's.
        """
        process = self._server.start(TRIAL_MODULE, [job_file], {**os.environ, **environment}, merges_output=True)
        process.wait()
        process.stdout.close()
        code = process.poll()
        assert code is not None, "it has left"  # noqa: S101 - waited for above
        return code
