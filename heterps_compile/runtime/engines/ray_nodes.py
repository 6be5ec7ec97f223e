"""The nodes of a Ray cluster as the machines of a run whose widths may change, and its ranks there.

A node is listed while Ray counts it as alive and it has something that the run takes. Every rank is an actor in one
placement group. What ranks print is asked for, line by line. A node that dies takes its actors along.

Left out: connecting to the cluster and what a rank takes (``ray_cluster.py``), the actor (``ray_rank.py``).
"""

import json
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.launch.prepare import Prepared
from heterps_compile.runtime.launch.stop_signals import STOPPING

from .deal import Deal, Dealt, Host
from .job import Job, Streams
from .machines import Left, Machines, Started
from .ray_rank import ERR, RankProcess

Bundle = dict[str, float]
Bundles = Callable[[Job], Sequence[Bundle]]
"""Returns what every rank of a run takes."""

_ANSWER_S = 30.0
_COME_S = 120.0  # also of an actor, whose process starts and imports before its first answer
_POLL_S = 0.3
_LEAVE_S = 45.0
_END_S = 5.0
_OF_THE_NODE = 0.001  # of the resource that every node has of itself
_ID_SHOWN = 6


def package() -> Any:
    """Return the package, an extra, which is imported where it is asked for alone."""
    return import_module("ray")


class RayNodes(Machines):
    """The nodes that are alive and have what the run takes."""

    patience_s = _COME_S

    def __init__(self, job: Job, bundles: Bundles, streams: Streams, *, is_elastic: bool) -> None:
        """Set up for a cluster that this process is connected to.

        Args:
            job: The run as asked for.
            bundles: What its ranks take.
            streams: Take what its ranks print, and what is decided.
            is_elastic: Whether ranks are bound to the nodes that they are dealt to; else Ray chooses.
        """
        super().__init__(streams.err)
        self._job, self._bundles, self._streams, self._is_elastic = job, bundles, streams, is_elastic
        self._nodes: dict[str, Mapping[str, Any]] = {}

    def listed(self) -> tuple[Host, ...]:
        """Return the nodes that are alive and have a resource of the run's ranks, the oldest name first."""
        takes = {name for bundle in self._bundles(self._job) for name in bundle if name not in ("CPU", "GPU")}
        found = {}
        for node in package().nodes():
            if node["Alive"] and takes & node["Resources"].keys():
                found[node_name(node)] = node
        self._nodes = dict(sorted(found.items()))
        return tuple(
            Host(name, max(1, int(sum(node["Resources"].get(one, 0.0) for one in takes))))
            for name, node in self._nodes.items()
        )

    def fill(self, prepared: Prepared, hosts: Sequence[Host]) -> Deal:
        """Put every rank on the first node that still has what it takes.

        Raises:
            RunError: naming the resource that the nodes have too little of.
        """
        bundles = self._bundles_of(prepared)
        found = fill_nodes(bundles, [(host.address, self._has(host)) for host in hosts])
        if found is None:
            total: Counter[str] = Counter()
            for host in hosts:
                total.update(self._has(host))
            missing = too_few(bundles, total)
            raise RunError(
                missing or f"the {len(hosts)} nodes do not take {prepared.world_size} ranks as their resources lie"
            )
        return found

    def start(self, run: Dealt) -> Started:
        """Place an actor for every rank, and start the ranks; what keeps them from it is told when they are polled."""
        job = replace(self._job, options=run.options, prepared=run.prepared)
        bundles = list(self._bundles(job))
        if self._is_elastic:
            bundles = self._bound(bundles, run.deal)
        return _Ranks(job, bundles, self._streams)

    def _bundles_of(self, prepared: Prepared) -> Sequence[Bundle]:
        return self._bundles(replace(self._job, prepared=prepared))

    def _has(self, host: Host) -> Mapping[str, float]:
        node = self._nodes.get(host.address)
        return {} if node is None else node["Resources"]

    def _bound(self, bundles: Sequence[Bundle], deal: Deal) -> list[Bundle]:
        """Return what ranks take, and of every rank's node a little of the resource that no other has."""
        names = assigned(bundles, [(name, self._nodes[name]["Resources"]) for name, _ in deal]) or ()
        of_node = [f"node:{self._nodes[name]['NodeManagerAddress']}" for name in names]
        return [{**bundle, name: _OF_THE_NODE} for bundle, name in zip(bundles, of_node, strict=True)]


def node_name(node: Mapping[str, Any]) -> str:
    """Return how a node is called here: its address, and the beginning of its id, since a machine may have several."""
    return f"{node['NodeManagerAddress']}#{node['NodeID'][:_ID_SHOWN]}"


def assigned(bundles: Sequence[Bundle], nodes: Sequence[tuple[str, Mapping[str, float]]]) -> tuple[str, ...] | None:
    """Return the node of every rank: the first that still has what it takes; None where one finds none."""
    left = [(name, dict(has)) for name, has in nodes]
    names = []
    for bundle in bundles:
        for name, has in left:
            if all(has.get(what, 0.0) >= count for what, count in bundle.items()):
                for what, count in bundle.items():
                    has[what] -= count
                names.append(name)
                break
        else:
            return None
    return tuple(names)


def fill_nodes(bundles: Sequence[Bundle], nodes: Sequence[tuple[str, Mapping[str, float]]]) -> Deal | None:
    """Return how many ranks every node takes, nodes in their order; None where they do not take all."""
    names = assigned(bundles, nodes)
    if names is None:
        return None
    counts = Counter(names)
    return tuple((name, counts[name]) for name, _ in nodes if counts[name])


def too_few(
    bundles: Sequence[Bundle],
    has: Mapping[str, float],
    *,
    free: str = "",
    who: str = "the run takes",
    way_out: str = "say what they call it (--resource TYPE=NAME)",
) -> str:
    """Return what the nodes of a cluster lack, with the way out; "" for nothing."""
    wanted: Counter[str] = Counter()
    for bundle in bundles:
        wanted.update(bundle)
    for name, count in wanted.items():
        if has.get(name, 0.0) < count:
            given = json.dumps({name: int(count)})
            return (
                f"{who} {count:g} of {printable(name)!r}, and the nodes of the Ray cluster have {free}"
                f"{has.get(name, 0.0):g}; start nodes that have it (ray start --resources={shlex.quote(given)}), or "
                f"{way_out}"
            )
    return ""


class _Ranks(Started):
    """The actors of one start, from their placing to their end."""

    def __init__(self, job: Job, bundles: Sequence[Bundle], streams: Streams) -> None:
        self._job, self._streams = job, streams
        self._codes: list[int | None] = [None] * len(bundles)
        self._nodes: list[str] = []
        self._actors: list[Any] = []
        self._group: Any = None
        self._errors: set[str] = set()
        self._error: RunError | None = None
        self._lost: tuple[str, ...] = ()
        self._due_s, self._deadline_s = 0.0, float("inf")
        self._trying(lambda: self._begin(bundles))

    def poll(self, now_s: float) -> bool:
        """Pass on what the ranks have printed since the last time; return whether all have left."""
        if self._error is None and now_s >= self._due_s:
            self._due_s = now_s + _POLL_S
            self._trying(self._look)
        if self._error is None and None in self._codes and now_s > self._deadline_s:
            late = ", ".join(str(rank) for rank, code in enumerate(self._codes) if code is None)
            self._error = RunError(
                f"ranks {late} did not leave within {_LEAVE_S:g} s of the end of the run, and were killed"
            )
        return self._error is not None or None not in self._codes

    def stop(self, number: int) -> None:
        """Send a signal to all ranks; one that ends the run gives them a while to leave."""
        for actor in self._actors:
            actor.send_signal.remote(int(number))
        if number in STOPPING:
            self._deadline_s = time.monotonic() + _LEAVE_S

    def close(self) -> Left:
        """Kill the ranks that are left, then the actors, and give back what they took."""
        ray = package()
        with suppress(ray.exceptions.RayError):  # of a node that is gone there is no answer
            ray.wait([actor.end.remote() for actor in self._actors], num_returns=len(self._actors), timeout=_END_S)
        for actor in self._actors:
            ray.kill(actor)
        if self._group is not None:
            import_module("ray.util.placement_group").remove_placement_group(self._group)
        codes = tuple(128 + signal.SIGKILL if code is None else code for code in self._codes)
        return Left(codes, self._lost, self._error)

    def _trying(self, action: Callable[[], None]) -> None:
        try:
            action()
        except RunError as error:
            self._error = error
        except package().exceptions.RayError as error:
            self._error = RunError(f"Ray gave up: {one_line(str(error))[:500]}; look at 'ray status'")

    def _begin(self, bundles: Sequence[Bundle]) -> None:
        """Place the actors and start their ranks.

        Raises:
            RunError: where Ray does not place them in time, or one is gone.
        """
        ray = package()
        strategies: Any = import_module("ray.util.scheduling_strategies")
        groups: Any = import_module("ray.util.placement_group")
        group = self._group = groups.placement_group(list(bundles), strategy="PACK")
        if not group.wait(timeout_seconds=_COME_S):
            missing = too_few(bundles, ray.available_resources(), free="free ")
            raise RunError(
                missing or f"Ray did not place {len(bundles)} ranks within {_COME_S:g} s; look at 'ray status'"
            )
        actor = ray.remote(RankProcess)
        self._actors = [
            actor.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                resources={name: count for name, count in bundle.items() if name not in ("CPU", "GPU")},
                max_restarts=0,
                scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group, rank),
            ).remote()
            for rank, bundle in enumerate(bundles)
        ]
        asked = [actor.__ray_call__.remote(_node) for actor in self._actors]
        nodes = [self._ask(rank, answer, _COME_S) for rank, answer in enumerate(asked)]
        self._nodes = [f"{address}#{number[:_ID_SHOWN]}" for number, address in nodes]
        port = self._ask(0, self._actors[0].free_port.remote())
        seen: Counter[str] = Counter()
        started = []
        for rank, (actor, (node, _)) in enumerate(zip(self._actors, nodes, strict=True)):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(seen[node]),
                "WORLD_SIZE": str(len(self._actors)),
                "MASTER_ADDR": nodes[0][1],
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": str(self._job.options.threads),
                **self._job.environment,
            }
            seen[node] += 1
            started.append(actor.start.remote(self._job.run_words(), environment))
        ray.get(started, timeout=_ANSWER_S)

    def _look(self) -> None:
        asked = [(rank, self._actors[rank].poll.remote()) for rank, code in enumerate(self._codes) if code is None]
        for rank, answer in asked:
            lines, self._codes[rank] = self._ask(rank, answer)
            for stream, line in lines:
                text = printable(line.rstrip())
                if text not in self._errors:
                    to = self._streams.err if stream == ERR else self._streams.out
                    with suppress(OSError, ValueError):  # who read it has left: the run goes on
                        to.write(f"[{self._job.prepared.places[rank]}] {text}\n")
                        to.flush()
                if text.startswith("Error: "):  # several ranks print the same one
                    self._errors.add(text)
        if any(self._codes):
            self._deadline_s = min(self._deadline_s, time.monotonic() + _LEAVE_S)

    def _ask(self, rank: int, answer: Any, patience_s: float = _ANSWER_S) -> Any:
        ray = package()
        try:
            return ray.get(answer, timeout=patience_s)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            place = self._job.prepared.places[rank]
            self._lost = (self._nodes[rank],) if self._nodes else ()
            raise RunError(
                f"{place} (rank {rank}) is gone: its actor or node died or gave no answer for {patience_s:g} s; the "
                f"run was ended on all others"
            ) from error


def _node(_rank: RankProcess) -> tuple[str, str]:
    """Return the id and the address of the node that an actor is on."""
    ray = package()

    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
