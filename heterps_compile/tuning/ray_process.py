"""The process that is connected to Ray for a search: it holds the workers, as actors, and says which trials have left.

::

    the search            this process                        nodes of the cluster
    words in a pipe --->  placement groups, actors  --->      TrialWorker (ray_trial.py): the process of a trial
                   <---   what has left                         in a placement group: ranks on several nodes

Ray ends the process that is connected to it where the head of the cluster does not answer for a minute; so that is not
the process of the search, which goes on to say so and how the search goes on. The head is asked every few seconds here,
and this process says itself that it is lost. It ends with the search: at the end of its pipe, and on Linux by the
system.

A worker of one unit is an actor that takes it. A worker of several is a placement group, made before the first trial::

    one bundle   {"heterps_v100": 2, "GPU": 2, "CPU": 2}     where a node has room for it; trials run there
    2 bundles    {"heterps_v100": 1, "GPU": 1, "CPU": 1}     where none has: a bundle a rank, on several nodes

Left out: what the search makes of it (``ray_engine.py``), what a trial does (``trial_run.py``).
"""

import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Any

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.engines.ray_cluster import PREFIX
from heterps_compile.runtime.engines.ray_nodes import too_few
from heterps_compile.runtime.launch.fork_server import end_with_parent

from .local_engine import cause_of
from .ray_trial import TrialWorker
from .trial_group import VARIABLE as GROUP_VARIABLE
from .trial_group import TrialGroup

_ANSWER_S = 10.0
_PLACED_S = 60.0  # within which an actor is to be on a node
_GROUP_S = 15.0  # within which a placement group is made of what is free
_LOST_S = 15.0  # after which a head that does not answer is lost
_ASK_S = 1.0
_FEWER = "ask for fewer workers (--workers)"
_STORE_BYTES = 80 * 2**20

Bundle = dict[str, float]


@dataclass(frozen=True, slots=True)
class RayWorker:
    """What a worker takes of a cluster.

    Attributes:
        name: Of the worker.
        devices: Names of device types, whether they are GPUs, and units of each.
    """

    name: str
    devices: tuple[tuple[str, bool, int], ...]

    @property
    def units(self) -> int:
        """Return how many units it has."""
        return sum(units for _, _, units in self.devices)

    def bundles(self, *, counts_gpus: bool) -> list[Bundle]:
        """Return what each of its units takes."""
        return [
            {f"{PREFIX}{name}": 1.0, "CPU": 1.0, **({"GPU": 1.0} if is_gpu and counts_gpus else {})}
            for name, is_gpu, units in self.devices
            for _ in range(units)
        ]


def joined(bundles: Sequence[Bundle]) -> Bundle:
    """Return what bundles take together."""
    total: Counter[str] = Counter()
    for bundle in bundles:
        total.update(bundle)
    return dict(total)


def spanning(workers: Sequence[RayWorker], nodes: Sequence[Mapping[str, float]], *, counts_gpus: bool) -> set[str]:
    """Return the names of the workers that no node has room for, the largest workers first to take theirs."""
    left, found = [dict(node) for node in nodes], set()
    for worker in sorted(workers, key=lambda each: -each.units):
        takes = joined(worker.bundles(counts_gpus=counts_gpus))
        for has in left:
            if all(has.get(name, 0.0) >= count for name, count in takes.items()):
                for name, count in takes.items():
                    has[name] -= count
                break
        else:
            found.add(worker.name)
    return found


@dataclass(slots=True)
class _Actor:
    """A worker that Ray was asked to place.

    Attributes:
        actor: Ray's own.
        group: Where its trials run over several nodes: as they find it.
        ready: Answers once it is on a node; None since it has.
        deadline_s: By when.
    """

    actor: Any
    group: TrialGroup | None
    ready: Any
    deadline_s: float


class RayTrials:
    """Runs trials on the nodes of a cluster, in the process that is connected to it."""

    def __init__(self, workers: Sequence[RayWorker], address: str | None) -> None:
        """Connect to a cluster, or start one here, and make the placement groups of workers with several units.

        Args:
            workers: All that the search has.
            address: ``HOST:PORT`` of a cluster, or ``auto``; None to start one on this machine.

        Raises:
            RunError: where no cluster answers, or its nodes lack what the workers take.
        """
        self._ray: Any = import_module("ray")
        self._workers = {each.name: each for each in workers}
        self._namespace = f"heterps-{secrets.token_hex(8)}"
        self._groups: dict[str, tuple[Any, TrialGroup | None]] = {}
        self._actors: dict[str, _Actor] = {}
        self._running: dict[str, Any] = {}
        if address is None:
            self._start_here()
        else:
            self._connect(address)
        self.head: str = self._ray.get_runtime_context().gcs_address
        self._counts_gpus = "GPU" in self._ray.cluster_resources()
        self._check_resources()
        several = [each for each in workers if each.units > 1]
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        spans = spanning(several, nodes, counts_gpus=self._counts_gpus)
        for worker in sorted(several, key=lambda each: (each.name in spans, -each.units)):
            self._groups[worker.name] = self._group(worker, spans=worker.name in spans)

    @property
    def notes(self) -> list[str]:
        """Return what is to be told of workers that have nodes together."""
        names = [name for name, (_, group) in self._groups.items() if group is not None]
        if not names:
            return []
        shown = ", ".join(map(printable, names[:5])) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
        return [f"no node has what one of these workers takes, so that a trial of theirs runs on several: {shown}"]

    def start(self, name: str, file: str) -> None:
        """Have the actor of a worker run the trial of a file; it is placed where it is not yet, or not any more."""
        if name not in self._actors:
            self._actors[name] = self._placed(self._workers[name])
        of = self._actors[name]
        environment = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
        if of.group is not None:
            environment[GROUP_VARIABLE] = of.group.to_json()
        self._running[name] = of.actor.run.remote(file, environment)

    def wait(self, within_s: float) -> list[tuple[str, str]]:
        """Return the trials whose actor has an exit code, is gone or found no place, each with the cause."""
        if not self._running:
            return []
        names = {answer: name for name, answer in self._running.items()}
        ready, _ = self._ray.wait(list(names), num_returns=1, timeout=within_s)
        left = []
        for answer in ready:
            name = names[answer]
            try:
                cause = cause_of(self._ray.get(answer))
                del self._running[name]
            except self._ray.exceptions.RayError as error:
                cause = f"its worker was lost ({type(error).__name__}: {_first_line(str(error))})"
                self.end(name)
            left.append((name, cause))
        return [*left, *self._unplaced()]

    def end(self, name: str) -> None:
        """Kill the actor of a worker, with which its trial ends; its placement group is given back."""
        if self._running.pop(name, None) is None:
            return
        self._ray.kill(self._actors.pop(name).actor)
        if name in self._groups:
            self._remove(self._groups.pop(name)[0])

    def close(self) -> None:
        """Kill all actors, and leave the cluster; one that was started here ends."""
        self._ray.shutdown()

    def _unplaced(self) -> list[tuple[str, str]]:
        """Return the trials whose worker Ray did not place in time."""
        arriving = {name: of for name in self._running if (of := self._actors[name]).ready is not None}
        if not arriving:
            return []
        here, _ = self._ray.wait([of.ready for of in arriving.values()], num_returns=len(arriving), timeout=0)
        left = []
        for name, of in arriving.items():
            if of.ready in here:
                of.ready = None
            elif time.monotonic() > of.deadline_s:
                self.end(name)
                left.append((name, f"Ray did not place its worker within {_PLACED_S:g} s{self._lacking(name)}"))
        return left

    def _lacking(self, name: str) -> str:
        bundles = self._workers[name].bundles(counts_gpus=self._counts_gpus)
        has = self._ray.available_resources()
        missing = too_few(bundles, has, free="free ", who="it takes", way_out=_FEWER)
        return f": {missing}" if missing else "; look at 'ray status'"

    def _placed(self, worker: RayWorker) -> _Actor:
        takes = joined(worker.bundles(counts_gpus=self._counts_gpus))
        group: Any = None
        told: TrialGroup | None = None
        if worker.units > 1:
            if worker.name not in self._groups:  # given back with the actor before
                nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
                spans = bool(spanning([worker], nodes, counts_gpus=self._counts_gpus))
                self._groups[worker.name] = self._group(worker, spans=spans)
            group, told = self._groups[worker.name]
        given: dict[str, Any] = {}
        if group is not None:
            strategies: Any = import_module("ray.util.scheduling_strategies")
            given["scheduling_strategy"] = strategies.PlacementGroupSchedulingStrategy(group, 0)
        if told is None:
            given |= {"num_cpus": takes.pop("CPU"), "num_gpus": takes.pop("GPU", 0), "resources": takes}
        else:  # ranks take what the bundles have
            given |= {"num_cpus": 0, "num_gpus": 0}
        actor = self._ray.remote(TrialWorker).options(max_restarts=0, **given).remote()
        return _Actor(actor, told, actor.__ray_ready__.remote(), time.monotonic() + _PLACED_S)

    def _group(self, worker: RayWorker, *, spans: bool) -> tuple[Any, TrialGroup | None]:
        """Make the placement group of a worker; where its node is busy with what others run, of several nodes.

        What cannot be placed in time waits: ``wait`` tells it of the trial that is to run there.
        """
        groups: Any = import_module("ray.util.placement_group")
        each = worker.bundles(counts_gpus=self._counts_gpus)
        if not spans:
            group = groups.placement_group([joined(each)], strategy="PACK")
            if group.wait(timeout_seconds=_GROUP_S):
                return group, None
            self._remove(group)
        name = f"{worker.name}-{secrets.token_hex(4)}"
        group = groups.placement_group(each, strategy="PACK", name=name)
        group.wait(timeout_seconds=_GROUP_S)
        return group, TrialGroup(self.head, self._namespace, name)

    @staticmethod
    def _remove(group: Any) -> None:
        import_module("ray.util.placement_group").remove_placement_group(group)

    def _start_here(self) -> None:
        total: Counter[str] = Counter()
        for worker in self._workers.values():
            total.update(joined(worker.bundles(counts_gpus=False)))
        cpus = total.pop("CPU")
        local: dict[str, Any] = {"num_cpus": int(cpus), "resources": dict(total), "object_store_memory": _STORE_BYTES}
        self._init("here", address="local", **local)  # without it Ray joins a cluster that it finds on this machine

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
            self._ray.init(
                namespace=self._namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False,
                **options,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise _no_cluster(where, str(error) or type(error).__name__) from error

    def _check_resources(self) -> None:
        """Check that the cluster has what all workers take together.

        Raises:
            RunError: where it has not.
        """
        wanted = [bundle for each in self._workers.values() for bundle in each.bundles(counts_gpus=self._counts_gpus)]
        missing = too_few(wanted, self._ray.cluster_resources(), who="the workers take", way_out=_FEWER)
        if missing:
            raise RunError(missing)


def _no_cluster(where: str, reason: str) -> RunError:
    return RunError(
        f"no cluster of Ray answers at {printable(where)!r} ({one_line(reason)[:300]}); start one (ray start --head), "
        "or name it (--address HOST:PORT)"
    )


def _first_line(text: str) -> str:
    return one_line(text.strip().splitlines()[0])[:200] if text.strip() else ""


def answers(address: str, within_s: float) -> bool:
    """Whether somebody accepts connections at ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=within_s).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


class _Pipe:
    """Takes orders, a line of JSON each, and answers likewise; from two threads."""

    def __init__(self, orders: IO[str], said: IO[str]) -> None:
        self._orders, self._said, self._lock = orders, said, threading.Lock()

    def order(self) -> Any:
        """Return the next order; None at the end of the pipe."""
        line = self._orders.readline()
        return json.loads(line) if line.endswith("\n") else None

    def say(self, said: Mapping[str, Any]) -> None:
        """Answer."""
        with self._lock:
            self._said.write(json.dumps(said) + "\n")
            self._said.flush()


def _watch_head(address: str, pipe: _Pipe) -> None:
    """Ask the head of the cluster until it does not answer; say so then, and end: calls of Ray would wait for it."""
    heard_s = time.monotonic()
    while (silent_s := time.monotonic() - heard_s) < _LOST_S:
        time.sleep(_ASK_S)
        if answers(address, _ANSWER_S):
            heard_s = time.monotonic()
    pipe.say({"lost": f"the head of the Ray cluster at {address} has not answered for {silent_s:.0f} s"})
    os._exit(1)


def main() -> int:
    """Serve a search until its pipe ends; its first line says who the workers are, and where the cluster is."""
    end_with_parent(os.getppid())
    said, pipe_out = os.dup(1), sys.stderr.fileno()
    os.dup2(pipe_out, 1)  # what Ray prints must not be taken for an answer
    with os.fdopen(said, "w", encoding="ascii") as out:
        pipe = _Pipe(sys.stdin, out)
        begun = pipe.order()
        if begun is None:
            return 0
        workers = [RayWorker(one["name"], tuple(map(tuple, one["devices"]))) for one in begun["workers"]]
        try:
            trials = RayTrials(workers, begun["address"])
        except HeterpsError as error:
            pipe.say({"error": str(error)})
            return 1
        pipe.say({"notes": trials.notes})
        threading.Thread(target=_watch_head, args=(trials.head, pipe), daemon=True).start()
        while (order := pipe.order()) is not None:
            pipe.say(_done(trials, order))
        trials.close()
    return 0


def _done(trials: RayTrials, order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Carry out an order; return the answer."""
    ray = import_module("ray")
    try:
        match order["do"]:
            case "start":
                trials.start(order["worker"], order["file"])
            case "wait":
                return {"left": trials.wait(order["within_s"])}
            case "end":
                trials.end(order["worker"])
    except (ray.exceptions.RayError, ConnectionError) as error:
        return {"lost": f"Ray gave up ({_first_line(str(error)) or type(error).__name__})"}
    return {}


if __name__ == "__main__":
    sys.exit(main())
