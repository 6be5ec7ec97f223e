"""One trial as Ray's worker processes see it: an object that runs the trial's process and says how it ended.

Ray makes it on a node that has what the class takes. The trial's process ends with it, since it leaves when its parent
does. Left out: who calls it (``ray_engine.py``). Nothing of Ray is imported.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class TrialProcess:
    """Runs the process of a trial, on the machine where this object is."""

    def run(self, job_file: str, environment: Mapping[str, str]) -> int:
        """Run a trial to its end; return its exit code, minus the number of the signal that killed it.

        Args:
            job_file: Of the trial, in a folder that all nodes have.
            environment: What the process has beside this one's.
        """
        # Ray blocks SIGINT, and a child inherits that.
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        try:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "heterps_compile.tuning.trial_run", job_file],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return process.wait()
