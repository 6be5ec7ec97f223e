"""Workers on the nodes of a Ray cluster, through a process that is connected to it (``ray_process.py``).

::

    the search ---> ray_process.py ---> an actor a worker, on a node that has room for it
         |
         +--------> processes of trials that span nodes ---> an actor a rank (runtime/engines/ray_nodes.py)

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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.packages import need
from heterps_compile.runtime.engines.ray_cluster import PREFIX

from .local_engine import LocalEngine
from .ray_process import no_cluster
from .trial_engine import Left, TrialEngine, Worker
from .trial_job import TrialJob, write_job

OUTPUT_FILE = "ray.txt"

_MODULE = "heterps_compile.tuning.ray_process"
_LEAVE_S = 20.0
_ANSWER_S = 10.0
_LOST_S = 15.0
_ASK_S = 1.0


class RayEngine(TrialEngine):
    """Starts trials on the nodes of a cluster."""

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
                [sys.executable, "-m", _MODULE, address or ""],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                encoding="ascii",
                env={"RAY_USAGE_STATS_ENABLED": "0", **os.environ},
                start_new_session=True,  # Ctrl-C reaches the search alone
            )
        self._workers = {each.name: each for each in workers}
        self._actors: set[str] = set()  # that run a trial
        self._local: LocalEngine | None = None
        try:
            said = self._answer({each.name: taken_by(each) for each in workers})
        except BaseException:
            self.close()
            raise
        self._head, self._spanning = str(said["address"]), frozenset(said["spanning"])
        self._heard_s = time.monotonic()
        if self._spanning:
            self._local = LocalEngine(())
            names = sorted(self._spanning)
            more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
            shown = ", ".join(map(printable, names[:5])) + more
            self.notes = (
                f"no node has what one of these workers takes, so that a trial of theirs runs on several: {shown}",
            )

    def start(self, worker: Worker, job: TrialJob) -> None:
        """Have the actor of a worker run the trial, or a process here whose ranks are actors."""
        self._check_head()
        if self._local is not None and worker.name in self._spanning:
            self._local.start(worker, replace(job, ray_address=self._head))
            return
        self._actors.add(worker.name)
        self._answer({"do": "start", "worker": worker.name, "file": str(write_job(job))})

    def wait(self, within_s: float) -> Sequence[Left]:
        """Return the trials that have left.

        Raises:
            RunError: if the head of the cluster does not answer for 15 s.
        """
        left = [] if self._local is None else list(self._local.wait(0.0 if self._actors else within_s))
        self._check_head(at_once=bool(left))
        if self._actors:
            found = self._answer({"do": "wait", "within_s": within_s})["left"]
            self._check_head(at_once=bool(found))
            self._actors -= {name for name, _ in found}
            left += [Left(self._workers[name], cause) for name, cause in found]
        return left

    def end(self, worker: Worker) -> None:
        """Kill the trial of a worker."""
        if self._local is not None:
            self._local.end(worker)
        if worker.name in self._actors:
            self._actors.remove(worker.name)
            self._answer({"do": "end", "worker": worker.name})

    def close(self) -> None:
        """Kill all trials; a cluster that was started here ends."""
        if self._local is not None:
            self._local.close()
        try:
            self._process.communicate(timeout=_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _check_head(self, *, at_once: bool = False) -> None:
        """Wait until the head answers, if it has not been heard for a second.

        Raises:
            RunError: if it does not for 15 s.
        """
        if not at_once and time.monotonic() - self._heard_s < _ASK_S:
            return
        while silence(self._head):
            silent_s = time.monotonic() - self._heard_s
            if silent_s > _LOST_S:
                raise _lost(f"the head of the Ray cluster at {self._head} has not answered for {silent_s:.0f} s")
            time.sleep(_ASK_S)
        self._heard_s = time.monotonic()

    def _answer(self, order: Mapping[str, Any]) -> Any:
        """Give an order; return the answer.

        Raises:
            RunError: if Ray refuses it, or is gone.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "a pipe"  # noqa: S101 - made above
        assert stdout is not None, "a pipe"  # noqa: S101 - as above
        with suppress(OSError):  # it has left, and so says its empty answer
            stdin.write(f"{json.dumps(order)}\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            lines = [each for each in self._output.read_text("utf-8", "replace").split("\n") if each.strip()]
            last = one_line(lines[-1])[:200] if lines else "it printed nothing"
            shown = printable(str(self._output))
            raise _lost(f"the process that is connected to Ray has left ({last}; {shown} has all that it printed)")
        said = json.loads(line)
        if "error" in said:
            raise RunError(said["error"])
        if "lost" in said:
            raise _lost(said["lost"])
        return said


def taken_by(worker: Worker) -> dict[str, int]:
    """Count the Ray resources of a worker."""
    taken: Counter[str] = Counter()
    for device, units in worker.of.devices:
        taken.update({f"{PREFIX}{device.name}": units, "CPU": units})
        if device.kind == "gpu":
            taken["GPU"] += units
    return dict(taken)


def silence(address: str) -> str:
    """Connect to ``HOST:PORT``; return the error, "" if there is none."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as error:
        return str(error) or type(error).__name__
    return ""


def _lost(reason: str) -> RunError:
    return RunError(
        f"{one_line(reason)}, and the trials there are lost; no trial that ended is: go on with --resume, on another "
        "cluster (--address HOST:PORT) or on this machine (--engine local)"
    )
