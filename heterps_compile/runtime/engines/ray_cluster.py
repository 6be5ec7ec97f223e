"""Ray: every rank is an actor in a placement group of custom resources, one a device type, and starts a process there.

::

    {"heterps_cpu-core": 1, "CPU": 1}   rank 0, on a node that was started with --resources '{"heterps_cpu-core": 8}'
    {"heterps_v100": 1, "CPU": 1}       rank 1, the same with v100; and "GPU": 1 where the cluster counts GPUs

The end of this process ends the run: Ray ends its actors with it.

Left out: nodes and actors (``ray_nodes.py``), starting Ray on machines (``ray start``, ``ray up``).
"""

import json
import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import one_line, printable

from .deal import Dealt
from .device_parts import by_type, parts_of
from .driver import drive
from .elastic_limits import Limits
from .job import Job, Streams
from .ray_nodes import RayNodes, package, too_few

PREFIX = "heterps_"
"""Before the name of a device type, in what the nodes call it."""


@dataclass(frozen=True, slots=True)
class Ray:
    """Starts ranks as actors; fields are options of ``launch`` (``launch_options.py``)."""

    ray_address: str = "auto"
    resources: tuple[tuple[str, str], ...] = ()
    max_restarts: int = 0
    elastic: tuple[int, int] | None = None

    def check(self, job: Job) -> None:
        """Check the resources of the device types, and that restarts have checkpoints.

        Raises:
            HeterpsError: naming the option that does not fit the run.
        """
        self._bundles(job, counts_gpus=False)
        self._limits.check(job)

    def text(self, job: Job) -> str:
        """Return the placement group, and the command of an actor."""
        bundles = json.dumps(self._bundles(job, counts_gpus=False), indent=2)
        command = shlex.join(["python3", "-m", "heterps_compile", *job.run_words()])
        return (
            f'# placement group, a bundle a rank; "GPU": 1 is added for GPUs if the cluster counts them\n{bundles}\n'
            f"# command of every actor, with its rank in the environment\n{command}\n"
        )

    def start(self, job: Job, streams: Streams) -> int:
        """Start the actors, follow them, and start them again where a node is lost, comes or goes."""
        with connected(self.ray_address):
            return self._run(job, streams)

    def _run(self, job: Job, streams: Streams) -> int:
        ray = package()
        counts_gpus = "GPU" in ray.cluster_resources()
        bundles = partial(self._bundles, counts_gpus=counts_gpus)
        missing = too_few(bundles(job), ray.cluster_resources())
        if missing and self.elastic is None:
            raise RunError(missing)
        nodes = RayNodes(job, bundles, streams, is_elastic=self.elastic is not None)
        return drive(nodes, Dealt(job.options, job.prepared, ()), self._limits, job.advisor).code

    @property
    def _limits(self) -> Limits:
        return Limits(self.elastic, self.max_restarts)

    def _bundles(self, job: Job, *, counts_gpus: bool) -> list[dict[str, float]]:
        """Return what every rank takes."""
        parts = parts_of(job)
        named = by_type("--resource", self.resources, parts)
        bundles: list[dict[str, float]] = [{} for _ in job.prepared.places]
        for part in parts:
            name = (named[part.device] or (f"{PREFIX}{part.device}",))[-1]
            if name in ("CPU", "GPU", "memory", "object_store_memory"):
                raise InputError(f"--resource {printable(part.device)}={name} is Ray's own; name one of your nodes'")
            for rank in part.ranks:
                bundles[rank] = {name: 1.0, "CPU": float(job.options.threads)}
                if counts_gpus and part.kind == "gpu":
                    bundles[rank]["GPU"] = 1.0
        return bundles


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be connected to a cluster at an address, or ``auto``.

    Raises:
        RunError: where no cluster answers.
    """
    ray = package()
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        reason = one_line(str(error)) or type(error).__name__
        raise RunError(
            f"no cluster of Ray answers at {printable(address)!r} ({reason}); "
            f"start one (ray start --head), or name it (--ray-address HOST:PORT)"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
