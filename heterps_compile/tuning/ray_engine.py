"""Workers as actors of Ray, each of which takes what a worker of its class has, and runs trials.

::

    {"heterps_v100": 2, "GPU": 2, "CPU": 2}     a worker of a class with 2 units of v100: on one node, which was started
                                                with --resources '{"heterps_v100": 4}'

Without an address Ray is started on this machine, with what the workers have in all. A node that is lost takes its
trials along, which are then told as lost; their workers are placed anew. The folder of the search must lie where all
nodes have it.

Left out: what a trial does (``trial_run.py``), one that runs on several nodes.
"""

import json
import logging
import os
import shlex
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.packages import need

from .local_engine import cause_of
from .ray_trial import TrialWorker
from .trial_engine import Left, TrialEngine, Worker
from .trial_job import TrialJob, write_job

PREFIX = "heterps_"

_ANSWER_S = 10.0
_STORE_BYTES = 80 * 2**20
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}


class RayEngine(TrialEngine):
    """Starts trials on the nodes of a cluster."""

    def __init__(self, workers: Sequence[Worker], address: str | None) -> None:
        """Connect to a cluster, or start one here.

        Args:
            workers: All that the search has.
            address: ``HOST:PORT`` of a cluster, or ``auto``; None to start one on this machine.

        Raises:
            MissingPackageError: where Ray is not installed.
            RunError: where no cluster answers, or its nodes lack what the workers take.
        """
        need("the engine 'ray'", "ray")
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        self._ray: Any = import_module("ray")
        self._takes = {worker.name: _takes(worker) for worker in workers}
        self._actors: dict[Worker, Any] = {}
        self._running: dict[Worker, Any] = {}
        if address is None:
            self._start_here()
        else:
            self._connect(address)
        self._counts_gpus = "GPU" in self._ray.cluster_resources()
        try:
            self._check_resources()
        except RunError:
            self._ray.shutdown()
            raise

    def start(self, worker: Worker, job: TrialJob) -> None:
        """Have the actor of a worker run the trial; it is placed where it is not yet, or not any more."""
        file = write_job(job)
        with self._answering():
            self._begin(worker, str(file))

    def _begin(self, worker: Worker, file: str) -> None:
        if worker not in self._actors:
            self._actors[worker] = self._placed(worker)
        environment = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
        self._running[worker] = self._actors[worker].run.remote(file, environment)

    def wait(self, within_s: float) -> Sequence[Left]:
        """Return the trials whose actor has an exit code, or is gone."""
        if not self._running:
            return []
        workers = {answer: worker for worker, answer in self._running.items()}
        with self._answering():
            ready, _ = self._ray.wait(list(workers), num_returns=1, timeout=within_s)
        left = []
        for answer in ready:
            worker = workers[answer]
            try:
                cause = cause_of(self._ray.get(answer))
                del self._running[worker]
            except self._ray.exceptions.RayError as error:
                cause = f"its worker was lost ({type(error).__name__}: {_first_line(str(error))})"
                self.end(worker)
            left.append(Left(worker, cause))
        return left

    def end(self, worker: Worker) -> None:
        """Kill the actor of a worker, with which its trial ends."""
        if self._running.pop(worker, None) is not None:
            self._ray.kill(self._actors.pop(worker))

    def close(self) -> None:
        """Kill all actors, and leave the cluster; one that was started here ends."""
        for worker in list(self._running):
            with suppress(self._ray.exceptions.RayError):
                self.end(worker)
        self._ray.shutdown()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Tell in one sentence that Ray itself is gone.

        Raises:
            RunError: where it is.
        """
        try:
            yield
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            told = _first_line(str(error)) or type(error).__name__
            raise RunError(f"Ray gave up: {told}; start it again, and go on with --resume") from error

    def _placed(self, worker: Worker) -> Any:
        gpus = worker.of.units if self._counts_gpus and worker.of.device.kind == "gpu" else 0
        takes = self._takes[worker.name]
        made = self._ray.remote(TrialWorker)
        return made.options(num_cpus=worker.of.units, num_gpus=gpus, resources=takes, max_restarts=0).remote()

    def _start_here(self) -> None:
        total: Counter[str] = Counter()
        for takes in self._takes.values():
            total.update(takes)
        self._init(
            "here",
            num_cpus=int(sum(total.values())),
            resources=dict(total),
            object_store_memory=_STORE_BYTES,
        )

    def _connect(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if host and port.isdigit():
            try:
                socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
            except (OSError, OverflowError) as error:
                raise _no_cluster(address, str(error)) from error
        self._init(address, address=address)

    def _init(self, where: str, **options: Any) -> None:
        try:
            self._ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False, **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise _no_cluster(where, str(error) or type(error).__name__) from error

    def _check_resources(self) -> None:
        has = self._ray.cluster_resources()
        wanted: Counter[str] = Counter()
        for takes in self._takes.values():
            wanted.update(takes)
        for name, count in wanted.items():
            if has.get(name, 0.0) < count:
                given = shlex.quote(json.dumps({name: int(count)}))
                raise RunError(
                    f"the workers take {count:g} of {printable(name)!r}, and the nodes of the Ray cluster have "
                    f"{has.get(name, 0.0):g}; start nodes that have it (ray start --resources={given}), or ask for "
                    "fewer workers (--workers)"
                )


def _takes(worker: Worker) -> dict[str, float]:
    return {f"{PREFIX}{worker.of.device.name}": float(worker.of.units)}


def _no_cluster(where: str, reason: str) -> RunError:
    return RunError(
        f"no cluster of Ray answers at {printable(where)!r} ({one_line(reason)[:300]}); start one (ray start --head), "
        "or name it (--address HOST:PORT)"
    )


def _first_line(text: str) -> str:
    return one_line(text.strip().splitlines()[0])[:200] if text.strip() else ""
