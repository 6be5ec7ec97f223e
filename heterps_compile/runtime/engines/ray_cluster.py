"""Ray: every rank is an actor in a placement group of custom resources, one a device type, and starts a process there.

::

    {"heterps_cpu-core": 1, "CPU": 1}   rank 0, on a node that was started with --resources '{"heterps_cpu-core": 8}'
    {"heterps_v100": 1, "CPU": 1}       rank 1, the same with v100; and "GPU": 1 where the cluster counts GPUs

The secret of the run is new, and reaches the actors as an argument. What ranks print is asked for, line by line. A node
that dies takes its actors along, which ends the run; so does the end of this process, with which Ray ends its actors.

Left out: the actor (``ray_rank.py``), starting Ray on machines (``ray start``, ``ray up``).
"""

import json
import logging
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.launch.stop_signals import collecting_signals

from .contract import Capabilities, Engine, Job, Streams, Written
from .device_parts import by_type, parts_of
from .ray_rank import ERR, RankProcess
from .told_once import ToldOnce

_PREFIX = "heterps_"
_ANSWER_S = 30.0
_COME_S = 120.0
_POLL_S = 0.3
_LEAVE_S = 45.0
_SECRET_BYTES = 32
_ANY_PORT = "1"  # ranks meet at that of the file of hosts


def _ray() -> Any:
    """Return the package, an extra, which is imported where it is asked for alone."""
    return import_module("ray")


@dataclass(frozen=True, slots=True)
class Ray(Engine):
    """Starts ranks as actors; fields are its options (``launch_options.py``)."""

    name: ClassVar[str] = "ray"
    capabilities: ClassVar[Capabilities] = Capabilities(extras=("ray",))

    ray_address: str = "auto"
    resources: tuple[tuple[str, str], ...] = ()

    def check(self, job: Job) -> None:
        """Check that the run leaves finding machines to Ray, and what its types are called there."""
        if job.options.hosts is not None:
            raise InputError("--hosts means nothing for --on ray, which finds the machines itself; leave it out")
        self._bundles(job, counts_gpus=False)

    def write(self, job: Job) -> Sequence[Written]:
        """Return the placement group, and what every actor runs."""
        bundles = json.dumps(self._bundles(job, counts_gpus=False), indent=2)
        return [
            Written('placement group, a bundle a rank, with "GPU": 1 for GPUs where the cluster counts them', bundles),
            Written(
                "what every actor runs, with its rank in the environment and a file of hosts of its own",
                shlex.join(["python3", "-m", "heterps_compile", *job.run_words()]),
            ),
        ]

    def start(self, job: Job, streams: Streams) -> int:
        """Start the actors, follow them, and end them."""
        ray = _ray()

        try:
            ray.init(
                address=self.ray_address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            reason = one_line(str(error)) or type(error).__name__
            raise RunError(
                f"no cluster of Ray answers at {printable(self.ray_address)!r} ({reason}); "
                f"start one (ray start --head), or name it (--ray-address HOST:PORT)"
            ) from error
        try:
            return self._run(job, streams)
        finally:
            ray.shutdown()

    def _run(self, job: Job, streams: Streams) -> int:
        ray = _ray()
        groups: Any = import_module("ray.util.placement_group")
        strategies: Any = import_module("ray.util.scheduling_strategies")
        bundles = self._bundles(job, counts_gpus="GPU" in ray.cluster_resources())
        _refuse_too_few(bundles, ray.cluster_resources())
        group = groups.placement_group(bundles, strategy="PACK")
        try:
            if not group.wait(timeout_seconds=_COME_S):
                _refuse_too_few(bundles, ray.available_resources(), free="free ")
                raise RunError(f"Ray did not place {len(bundles)} ranks within {_COME_S:g} s; look at 'ray status'")
            actor = ray.remote(RankProcess)
            actors = [
                actor.options(
                    num_cpus=bundle["CPU"],
                    num_gpus=bundle.get("GPU", 0),
                    resources={name: count for name, count in bundle.items() if name not in ("CPU", "GPU")},
                    max_restarts=0,
                    scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group, rank),
                ).remote()
                for rank, bundle in enumerate(bundles)
            ]
            return _Ranks(job, actors, streams).run()
        finally:
            groups.remove_placement_group(group)

    def _bundles(self, job: Job, *, counts_gpus: bool) -> list[dict[str, float]]:
        """Return what every rank takes."""
        parts = parts_of(job)
        named = by_type("--resource", self.resources, parts)
        bundles: list[dict[str, float]] = [{} for _ in job.prepared.places]
        for part in parts:
            name = (named[part.device] or (f"{_PREFIX}{part.device}",))[-1]
            if name in ("CPU", "GPU", "memory", "object_store_memory"):
                raise InputError(f"--resource {printable(part.device)}={name} is Ray's own; name one of your nodes'")
            for rank in part.ranks:
                bundles[rank] = {name: 1.0, "CPU": float(job.options.threads)}
                if counts_gpus and part.kind == "gpu":
                    bundles[rank]["GPU"] = 1.0
        return bundles


def _refuse_too_few(bundles: Sequence[dict[str, float]], has: dict[str, float], free: str = "") -> None:
    wanted: Counter[str] = Counter()
    for bundle in bundles:
        wanted.update(bundle)
    for name, count in wanted.items():
        if has.get(name, 0.0) < count:
            given = json.dumps({name: int(count)})
            raise RunError(
                f"the run takes {count:g} of {printable(name)!r}, and the nodes of the Ray cluster have {free}"
                f"{has.get(name, 0.0):g}; start nodes that have it (ray start --resources={shlex.quote(given)}), or "
                f"say what they call it (--resource TYPE=NAME)"
            )


class _Ranks:
    """The actors of a run, from their start to their end."""

    def __init__(self, job: Job, actors: Sequence[Any], streams: Streams) -> None:
        self._job, self._actors, self._streams = job, actors, streams
        self._codes: list[int | None] = [None] * len(actors)
        self._told = ToldOnce()

    def run(self) -> int:
        """Start the ranks and follow them to the end; return the first exit code other than 0.

        Raises:
            RunError: where an actor died.
        """
        ray = _ray()

        with collecting_signals() as caught:
            try:
                self._start()
                self._follow(caught)
            except ray.exceptions.RayError as error:
                raise RunError(f"Ray gave up: {one_line(str(error))[:500]}; look at 'ray status'") from error
            finally:
                for actor in self._actors:
                    ray.kill(actor)
        return next((code for code in self._codes if code), 0)

    def _start(self) -> None:
        ray = _ray()

        nodes = [self._ask(rank, actor.__ray_call__.remote(_node)) for rank, actor in enumerate(self._actors)]
        port = self._ask(0, self._actors[0].free_port.remote())
        hosts = f'secret = "{secrets.token_hex(_SECRET_BYTES)}"\nport = {port}\n'
        seen: Counter[str] = Counter()
        started = []
        for rank, (actor, (node, _)) in enumerate(zip(self._actors, nodes, strict=True)):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(seen[node]),
                "WORLD_SIZE": str(len(self._actors)),
                "MASTER_ADDR": nodes[0][1],
                "MASTER_PORT": _ANY_PORT,
                "OMP_NUM_THREADS": str(self._job.options.threads),
            }
            seen[node] += 1
            started.append(actor.start.remote(self._job.run_words(), environment, hosts))
        ray.get(started, timeout=_ANSWER_S)

    def _follow(self, caught: Sequence[int]) -> None:
        passed_on, deadline_s = 0, None
        while None in self._codes:
            for number in caught[passed_on:]:
                for actor in self._actors:
                    actor.send_signal.remote(int(number))
                passed_on, deadline_s = passed_on + 1, time.monotonic() + _LEAVE_S
            self._poll()
            if deadline_s is None and any(self._codes):
                deadline_s = time.monotonic() + _LEAVE_S
            if deadline_s is not None and time.monotonic() > deadline_s:
                late = ", ".join(str(rank) for rank, code in enumerate(self._codes) if code is None)
                raise RunError(
                    f"ranks {late} did not leave within {_LEAVE_S:g} s of the end of the run, and were killed"
                )
            time.sleep(_POLL_S)

    def _poll(self) -> None:
        asked = [(rank, self._actors[rank].poll.remote()) for rank, code in enumerate(self._codes) if code is None]
        for rank, answer in asked:
            lines, self._codes[rank] = self._ask(rank, answer)
            for stream, line in lines:
                text = printable(line.rstrip())
                if self._told.is_new(text):
                    to = self._streams.err if stream == ERR else self._streams.out
                    with suppress(OSError, ValueError):  # who read it has left: the run goes on
                        to.write(f"[{self._job.prepared.places[rank]}] {text}\n")
                        to.flush()

    def _ask(self, rank: int, answer: Any) -> Any:
        ray = _ray()

        try:
            return ray.get(answer, timeout=_ANSWER_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            place = self._job.prepared.places[rank]
            raise RunError(
                f"{place} (rank {rank}) is gone: its actor or node died or gave no answer for {_ANSWER_S:g} s; the run "
                f"was ended on all others"
            ) from error


def _node(_rank: RankProcess) -> tuple[str, str]:
    """Return the id and the address of the node that an actor is on."""
    ray = _ray()

    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
