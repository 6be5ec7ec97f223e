"""Trials as processes of this machine, each bound to cores of its worker.

::

    fast-0: 2 units   cores 0 1        workers take their cores in turn; where there are more units
    slow-0: 1 unit    core  2          than cores, they begin again with the first, and share them
    slow-1: 1 unit    core  3

They are forked from one process that has PyTorch imported, so that a trial does not import it. GPUs are dealt out the
same way: a worker of a class of GPUs sees its own alone.

Left out: what a trial does (``trial_run.py``).
"""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import IO

from heterps_compile.cluster.local import usable_cores
from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.fork_server import PRELOADED, PRELOADED_TO_TRAIN, ForkedProcess, ForkServer
from heterps_compile.units import counted

from .trial_engine import Left, TrialEngine, Worker
from .trial_job import TrialJob, write_job

_POLL_S = 0.02
OF_TRIALS = (
    *PRELOADED,
    *PRELOADED_TO_TRAIN,
    "heterps_compile.runtime.launch.run_api",
    "heterps_compile.runtime.launch.prepare",
    "heterps_compile.runtime.engines.local_machine",
    "heterps_compile.tuning.trial_job",
    "pydantic",
)
"""What the process imports that trials are forked from."""

TRIAL_MODULE = "heterps_compile.tuning.trial_run"


class LocalEngine(TrialEngine):
    """Starts trials here."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        """Deal cores to workers, and begin to import what trials need."""
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._cores, self.notes = deal_cores(workers, cores[: usable_cores()])
        self._gpus = _deal_gpus(workers)
        self._server = ForkServer(OF_TRIALS)
        self._running: dict[Worker, ForkedProcess] = {}

    def start(self, worker: Worker, job: TrialJob) -> None:
        """Fork the process of a trial."""
        file = write_job(replace(job, cores=self._cores.get(worker.name, ()), gpus=self._gpus.get(worker.name)))
        self._running[worker] = self._server.start(TRIAL_MODULE, [str(file)], os.environ, merges_output=True)

    def wait(self, within_s: float) -> Sequence[Left]:
        """Return the trials whose process has left."""
        deadline_s = time.monotonic() + within_s
        while True:
            codes = {worker: process.poll() for worker, process in self._running.items()}
            left = [Left(worker, cause_of(code)) for worker, code in codes.items() if code is not None]
            for one in left:
                _close(self._running.pop(one.worker))
            if left or time.monotonic() >= deadline_s:
                return left
            time.sleep(_POLL_S)

    def end(self, worker: Worker) -> None:
        """Kill the processes of a trial."""
        process = self._running.pop(worker, None)
        if process is not None:
            process.kill_group()
            process.wait()
            _close(process)

    def close(self) -> None:
        """Kill all trials."""
        for worker in list(self._running):
            try:
                self.end(worker)
            except RunError:
                break  # the server is gone, and its trials with it
        self._server.__exit__(None, None, None)


def deal_cores(workers: Sequence[Worker], cores: Sequence[int]) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Return the cores of every worker by its name, and what is to be told about it."""
    if not cores:
        return {}, ("this system binds no processes to cores: workers share all of them",)
    dealt: dict[str, tuple[int, ...]] = {}
    taken = 0
    for worker in workers:
        count = min(worker.of.compute.units, len(cores))
        dealt[worker.name] = tuple(sorted(cores[(taken + index) % len(cores)] for index in range(count)))
        taken += worker.of.compute.units
    notes: tuple[str, ...] = ()
    if taken > len(cores):
        have = counted(len(cores), "core")
        notes = (
            f"workers have {taken:,} units in all and this machine {have}: they share them, and trials take longer",
        )
    return dealt, notes


def _deal_gpus(workers: Sequence[Worker]) -> dict[str, str]:
    """Return the GPUs of every worker that has some."""
    dealt, taken = {}, 0
    for worker in workers:
        if worker.of.gpus:
            dealt[worker.name] = ",".join(map(str, range(taken, taken + worker.of.gpus)))
            taken += worker.of.gpus
    return dealt


def cause_of(code: int) -> str:
    """Say how a process ended; "" for an orderly end."""
    if code < 0:
        return f"its process was killed by signal {-code}"
    return f"its process left with exit code {code}" if code else ""


def _close(process: ForkedProcess) -> None:
    streams: tuple[IO[str], ...] = (process.stdout, process.stderr)
    for stream in streams:
        stream.close()
