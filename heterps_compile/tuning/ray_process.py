"""The process that is connected to Ray for a search: it checks the cluster, or starts one, and has the workers there.

::

    the search            this process                        nodes of the cluster
    words in a pipe --->  an actor a worker          --->     TrialWorker (ray_trial.py): the process of a trial
                   <---   the trials that left

Its one word is the address, ``""`` to start a cluster here. Its input is a line of JSON an order: first the resources
of every worker, then starts, waits and ends. It ends with its input, and a cluster that it started ends with it.

A worker that no node has room for is no actor: its trials span nodes (``trial_run.py``).

Left out: a trial's steps (``trial_run.py``).
"""

import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.engines.ray_nodes import too_few
from heterps_compile.runtime.launch.fork_server import end_with_parent

from .local_engine import cause_of
from .ray_trial import TrialWorker

_PLACED_S = 60.0  # within which an actor is to be on a node
_FEWER = "ask for fewer workers (--workers)"
_STORE_BYTES = 80 * 2**20
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}

Resources = dict[str, float]


class RayWorkers:
    """The workers of a search on the nodes of a cluster, an actor each."""

    def __init__(self, takes: Mapping[str, Resources], address: str) -> None:
        """Connect to a cluster, or start one here.

        Args:
            takes: Ray resources of every worker, by its name.
            address: ``HOST:PORT`` of a cluster, or ``auto``; "" to start one on this machine.

        Raises:
            RunError: if no cluster answers, or the nodes lack a resource.
        """
        self._ray: Any = import_module("ray")
        total: Counter[str] = Counter()
        for each in takes.values():
            total.update(each)
        self._init(address, total)
        has = self._ray.cluster_resources()
        self._takes = {
            name: {what: count for what, count in each.items() if what != "GPU" or what in has}
            for name, each in takes.items()
        }
        missing = too_few(list(self._takes.values()), has, who="the workers take", way_out=_FEWER)
        if missing:
            raise RunError(missing)
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self.spanning = [name for name, each in self._takes.items() if not any(has_room(node, each) for node in nodes)]
        self.head = str(self._ray.get_runtime_context().gcs_address)
        self._actors: dict[str, tuple[Any, Any, float]] = {}  # with the answer of one that is placed, and until when
        self._running: dict[str, Any] = {}

    def done(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out an order; return the answer."""
        try:
            if order["do"] == "wait":
                return {"left": self.wait(order["within_s"])}
            if order["do"] == "start":
                self.start(order["worker"], order["file"])
            else:
                self.end(order["worker"])
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            return {"lost": f"Ray gave up ({_first_line(error)})"}
        return {}

    def start(self, name: str, file: str) -> None:
        """Have the actor of a worker run the trial of a file; it is placed if it is not yet, or not any more."""
        if name not in self._actors:
            own = dict(self._takes[name])
            cpus, gpus = own.pop("CPU"), own.pop("GPU", 0)
            options = {"max_restarts": 0, "num_cpus": cpus, "num_gpus": gpus, "resources": own}
            actor = self._ray.remote(TrialWorker).options(**options).remote()
            self._actors[name] = actor, actor.__ray_ready__.remote(), time.monotonic() + _PLACED_S
        self._running[name] = self._actors[name][0].run.remote(file, _ENVIRONMENT)

    def wait(self, within_s: float) -> list[tuple[str, str]]:
        """Return the trials whose actor has an exit code, is gone or found no place, each with the cause."""
        names = {answer: name for name, answer in self._running.items()}
        ready, _ = self._ray.wait(list(names), num_returns=1, timeout=within_s)
        left = []
        for answer in ready:
            name = names[answer]
            try:
                cause = cause_of(self._ray.get(answer))
                del self._running[name]
            except self._ray.exceptions.RayError as error:
                cause = f"its worker was lost ({type(error).__name__}: {_first_line(error)})"
                self.end(name)
            left.append((name, cause))
        for name in list(self._running):
            _, placed, until_s = self._actors[name]
            if time.monotonic() > until_s and not self._ray.wait([placed], timeout=0)[0]:
                self.end(name)
                missing = too_few(
                    [self._takes[name]], self._ray.available_resources(), free="free ", who="it takes", way_out=_FEWER
                )
                lacking = f": {missing}" if missing else "; look at 'ray status'"
                left.append((name, f"Ray did not place its worker within {_PLACED_S:g} s{lacking}"))
        return left

    def end(self, name: str) -> None:
        """Kill the actor of a worker, with which its trial ends."""
        if self._running.pop(name, None) is not None:
            self._ray.kill(self._actors.pop(name)[0])

    def _init(self, address: str, total: Counter[str]) -> None:
        own = {name: count for name, count in total.items() if name not in ("CPU", "GPU")}
        started = {"num_cpus": int(total["CPU"]), "resources": own, "object_store_memory": _STORE_BYTES}
        try:
            self._ray.init(
                address=address or "local",  # without one Ray joins a cluster that it finds on this machine
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False,
                **({} if address else started),
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise no_cluster(address or "here", str(error) or type(error).__name__) from error


def has_room(node: Mapping[str, float], takes: Mapping[str, float]) -> bool:
    """Check that a node has all resources of a worker."""
    return all(node.get(name, 0.0) >= count for name, count in takes.items())


def no_cluster(where: str, reason: str) -> RunError:
    """Make the error of an address without a cluster."""
    return RunError(
        f"no cluster of Ray answers at {printable(where)!r} ({one_line(reason)[:300]}); start one (ray start --head), "
        "or name it (--address HOST:PORT)"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return one_line(lines[0])[:200] if lines else type(error).__name__


def main() -> int:
    """Serve a search until its pipe ends."""
    end_with_parent(os.getppid())
    said = os.dup(1)
    os.dup2(2, 1)  # Ray prints to standard output
    with os.fdopen(said, "w", encoding="ascii") as out:
        try:
            workers = RayWorkers(json.loads(sys.stdin.readline()), sys.argv[1])
        except HeterpsError as error:
            print(json.dumps({"error": str(error)}), file=out, flush=True)
            return 1
        print(json.dumps({"address": workers.head, "spanning": workers.spanning}), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(workers.done(json.loads(line))), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
