"""Trials on the nodes of a Ray cluster: a process here for each trial, an actor there for each rank.

::

    the search ----> processes of trials ----> an actor a rank, in a placement group (runtime/engines/ray_nodes.py)
         |
         +---------> ray_head.py: checks the cluster, or is the cluster if the search names none

Ray ends a process whose cluster has lost its head. So the search is not connected: it opens a socket to the head every
second, and ends with the way to resume. Ray's own output goes to ``ray.txt`` in the folder of the search.

Left out: a trial's steps (``trial_run.py``).
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.packages import need
from heterps_compile.runtime.engines.ray_cluster import PREFIX

from .local_engine import LocalEngine
from .ray_head import no_cluster
from .trial_engine import Left, Worker
from .trial_job import TrialJob

OUTPUT_FILE = "ray.txt"

_MODULE = "heterps_compile.tuning.ray_head"
_LEAVE_S = 20.0
_ANSWER_S = 10.0
_LOST_S = 15.0
_ASK_S = 1.0


class RayEngine(LocalEngine):
    """Starts trials whose ranks run on the nodes of a cluster."""

    def __init__(self, workers: Sequence[Worker], address: str | None, folder: Path) -> None:
        """Check a cluster, or start one here.

        Args:
            workers: All that the search has.
            address: ``HOST:PORT`` of a cluster, or ``auto``; None to start one on this machine.
            folder: Of the search.

        Raises:
            MissingPackageError: if Ray is not installed.
            RunError: if no cluster answers, or its nodes lack a resource that the workers take.
        """
        need("the engine 'ray'", "ray")
        if address and ":" in address and (reason := silence(address)):
            raise no_cluster(address, reason)
        self._output = folder / OUTPUT_FILE
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                [sys.executable, "-m", _MODULE, address or "", json.dumps(taken_by(workers))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={"RAY_USAGE_STATS_ENABLED": "0", **os.environ},
                start_new_session=True,  # Ctrl-C reaches the search alone
            )
        self._heard_s = time.monotonic()
        super().__init__(())
        try:
            self._head = self._address()
        except BaseException:
            self.close()
            raise

    def start(self, worker: Worker, job: TrialJob) -> None:
        """Fork the process of a trial."""
        super().start(worker, replace(job, ray_address=self._head))

    def wait(self, within_s: float) -> Sequence[Left]:
        """Return the trials whose process has left.

        Raises:
            RunError: if the head of the cluster does not answer for 15 s.
        """
        left = super().wait(within_s)
        if not left and time.monotonic() - self._heard_s < _ASK_S:
            return left
        while silence(self._head):
            silent_s = time.monotonic() - self._heard_s
            if silent_s > _LOST_S:
                raise RunError(
                    f"the head of the Ray cluster at {self._head} has not answered for {silent_s:.0f} s, and the "
                    "trials there are lost; no trial that ended is: go on with --resume, on another cluster (--address "
                    "HOST:PORT) or on this machine (--engine local)"
                )
            time.sleep(_ASK_S)
        self._heard_s = time.monotonic()
        return left

    def close(self) -> None:
        """Kill all trials; a cluster that was started here ends."""
        super().close()
        try:
            self._process.communicate(timeout=_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _address(self) -> str:
        """Return the head's address.

        Raises:
            RunError: with the reason if there is none.
        """
        stdout = self._process.stdout
        assert stdout is not None, "a pipe"  # noqa: S101 - made above
        line = stdout.readline()
        if not line:
            lines = self._output.read_text("utf-8", "replace").split("\n")
            last = next((each for each in reversed(lines) if each.strip()), "it printed nothing")
            shown = printable(str(self._output))
            raise RunError(f"Ray did not start ({one_line(last)[:200]}); {shown} has all that it printed")
        said = json.loads(line)
        if "error" in said:
            raise RunError(str(said["error"]))
        return str(said["address"])


def taken_by(workers: Sequence[Worker]) -> dict[str, int]:
    """Return the Ray resources that all workers take together."""
    taken: Counter[str] = Counter()
    for worker in workers:
        for device, units in worker.of.devices:
            taken.update({f"{PREFIX}{device.name}": units, "CPU": units})
            if device.kind == "gpu":
                taken["GPU"] += units
    return dict(taken)


def silence(address: str) -> str:
    """Return the error of a connection to ``HOST:PORT``; "" if it is accepted."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as error:
        return str(error) or type(error).__name__
    return ""
