"""Check the Ray cluster of a search, and start one on this machine if the search names none.

The process prints one line of JSON: the head's address, or the error. It stays until its standard input ends, and a
cluster that it started ends with it. Its words are the address (``""`` to start a cluster) and the resources that all
workers take, as JSON; ``GPU`` counts only where the nodes have some.

Left out: running trials (``trial_run.py``).
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.engines.ray_nodes import too_few
from heterps_compile.runtime.launch.fork_server import end_with_parent

_STORE_BYTES = 80 * 2**20


def main() -> int:
    """Connect, report, and wait for the end of the search."""
    end_with_parent(os.getppid())
    said = os.dup(1)
    os.dup2(2, 1)  # Ray prints to standard output
    with os.fdopen(said, "w", encoding="ascii") as out:
        try:
            found = {"address": connect(sys.argv[1], json.loads(sys.argv[2]))}
        except HeterpsError as error:
            found = {"error": str(error)}
        print(json.dumps(found), file=out, flush=True)
        sys.stdin.read()
    return 0


def connect(address: str, takes: Mapping[str, int]) -> str:
    """Connect to a cluster, or start one; return the head's address.

    Raises:
        RunError: if no cluster answers, or the nodes lack a resource.
    """
    ray: Any = import_module("ray")
    own = {name: count for name, count in takes.items() if name not in ("CPU", "GPU")}
    started = {"num_cpus": takes["CPU"], "resources": own, "object_store_memory": _STORE_BYTES}
    try:
        ray.init(
            address=address or "local",  # without one Ray joins a cluster that it finds on this machine
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False,
            **({} if address else started),
        )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise no_cluster(address or "here", str(error) or type(error).__name__) from error
    has = ray.cluster_resources()
    wanted = {name: float(count) for name, count in takes.items() if name != "GPU" or name in has}
    missing = too_few([wanted], has, who="the workers take", way_out="ask for fewer workers (--workers)")
    if missing:
        raise RunError(missing)
    return str(ray.get_runtime_context().gcs_address)


def no_cluster(where: str, reason: str) -> RunError:
    """Return the error of an address without a cluster."""
    return RunError(
        f"no cluster of Ray answers at {printable(where)!r} ({one_line(reason)[:300]}); start one (ray start --head), "
        "or name it (--address HOST:PORT)"
    )


if __name__ == "__main__":
    sys.exit(main())
