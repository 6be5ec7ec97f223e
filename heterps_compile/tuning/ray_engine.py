"""Workers on the nodes of a Ray cluster, through a process of its own that is connected to it (``ray_process.py``).

Ray ends whoever is connected to a cluster whose head is gone. Here that is a process beside the search, which then says
what happened, and that all that ended is kept. What Ray itself prints goes to ``ray.txt`` in the folder of the search.

Left out: what a trial does (``trial_run.py``).
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.packages import need

from .trial_engine import Left, TrialEngine, Worker
from .trial_job import TrialJob, write_job

OUTPUT_FILE = "ray.txt"

_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
_MODULE = "heterps_compile.tuning.ray_process"
_LEAVE_S = 20.0


class RayEngine(TrialEngine):
    """Starts trials on the nodes of a cluster."""

    def __init__(self, workers: Sequence[Worker], address: str | None, folder: Path) -> None:
        """Connect to a cluster, or start one here.

        Args:
            workers: All that the search has.
            address: ``HOST:PORT`` of a cluster, or ``auto``; None to start one on this machine.
            folder: Of the search.

        Raises:
            MissingPackageError: where Ray is not installed.
            RunError: where no cluster answers, or its nodes lack what the workers take.
        """
        need("the engine 'ray'", "ray")
        self._workers = {each.name: each for each in workers}
        self._output = folder / OUTPUT_FILE
        try:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(  # noqa: S603 - our own
                    [sys.executable, "-m", _MODULE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    encoding="ascii",
                    env={**_QUIET, **os.environ},
                    start_new_session=True,  # Ctrl-C reaches the search alone
                )
        except OSError as error:
            raise RunError(f"cannot start a process for Ray: {error.strerror or error}") from error
        given = [
            {"name": name, "devices": [(d.name, d.kind == "gpu", units) for d, units in each.of.devices]}
            for name, each in self._workers.items()
        ]
        try:
            self.notes = tuple(map(str, self._asked({"workers": given, "address": address})["notes"]))
        except BaseException:
            self.close()
            raise

    def start(self, worker: Worker, job: TrialJob) -> None:
        """Have the actor of a worker run the trial."""
        self._asked({"do": "start", "worker": worker.name, "file": str(write_job(job))})

    def wait(self, within_s: float) -> Sequence[Left]:
        """Return the trials whose actor has an exit code, is gone or found no place."""
        found = self._asked({"do": "wait", "within_s": within_s})["left"]
        return [Left(self._workers[name], cause) for name, cause in found]

    def end(self, worker: Worker) -> None:
        """Kill the actor of a worker, with which its trial ends."""
        self._asked({"do": "end", "worker": worker.name})

    def close(self) -> None:
        """Leave the cluster, with which all actors end; one that was started here ends."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _asked(self, order: Mapping[str, Any]) -> Any:
        """Give an order; return the answer.

        Raises:
            RunError: where Ray refuses it, or is gone.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "a pipe"  # noqa: S101 - made above
        assert stdout is not None, "a pipe"  # noqa: S101 - as above
        line = ""
        with suppress(OSError):  # it has left, and the end of what it said tells so
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
        with suppress(OSError):
            line = stdout.readline()
        try:
            said = json.loads(line)
        except ValueError:
            said = {"lost": f"the process that is connected to Ray has left ({self._last_words()})"}
        if "error" in said:
            raise RunError(str(said["error"]))
        if "lost" in said:
            raise RunError(
                f"{one_line(said['lost'])}, and the trials there are lost; no trial that ended is: go on with "
                "--resume, on another cluster (--address HOST:PORT) or on this machine (--engine local)"
            )
        return said

    def _last_words(self) -> str:
        try:
            lines = self._output.read_text("utf-8", "replace").split("\n")
        except OSError:
            lines = []
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        return f"{one_line(last)[:200]}; {printable(str(self._output))} has all that it printed"
