"""PipeDream's profile graphs as problems: their nodes are layers, in training forward and backward apart.

A graph is of one accelerator and one mini-batch: the times hold for every device type of the pool that is no CPU, and a
batch of the problem is one mini-batch, one sample of it. With ``batch_of`` ``"replica"``, as PipeDream has it, every
replica works on mini-batches of its own.

Left out: the text of a graph (``frontends/pipedream.py``).
"""

from pathlib import Path

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.node_order import in_order
from heterps_compile.frontends.pipedream import ProfiledNode, parse_profile
from heterps_compile.strict_json import read_utf8

from .given_problem import (
    HELD_IN_INFERENCE,
    HELD_IN_TRAINING,
    REPLICA,
    GivenEdge,
    GivenLayer,
    GivenProblem,
    GivenTimes,
)
from .problem_laws import accelerators_of, verify_given


def read_pipedream(path: str | Path, pool: Cluster, *, mode: str = "training", batch_of: str = REPLICA) -> GivenProblem:
    """Read a graph as a problem.

    Args:
        path: A file.
        pool: The device types.
        mode: ``"training"`` or ``"inference"``.
        batch_of: Whose a mini-batch is.

    Raises:
        InputError: where the file cannot be read, is no graph, has a cycle, or the pool has no accelerator.
    """
    path = Path(path)
    where = f"workload file {str(path)!r}"
    nodes, edges, read = parse_profile(read_utf8(path, where), path)
    devices = accelerators_of(pool, where)
    training = mode == "training"
    by_id = {node.id: node for node in nodes}
    ordered = [by_id[i] for i in in_order(by_id, edges, where)]
    readers: dict[int, set[int]] = {}
    for source, target in edges:
        readers.setdefault(source, set()).add(target)
    names = {node.id: f"node{node.id}" for node in nodes}
    problem = GivenProblem(
        name=path.name.split(".")[0],
        layers=tuple(
            GivenLayer(names[node.id], tuple(_times(node, device, training=training) for device in devices))
            for node in ordered
        ),
        edges=tuple(
            GivenEdge(
                names[node.id], tuple(names[reader] for reader in sorted(readers[node.id])), node.activation_bytes
            )
            for node in ordered
            if readers.get(node.id)
        ),
        pool=pool,
        asked={"mode": mode},
        batch=1,
        batch_of=batch_of,
        held_per_parameter=HELD_IN_TRAINING if training else HELD_IN_INFERENCE,
        assumptions=(
            *read,
            "a sample is a mini-batch of the graph's profile",
            f"its times hold on {', '.join(map(repr, devices))}",
        ),
    )
    verify_given(problem)
    return problem


def _times(node: ProfiledNode, device: str, *, training: bool) -> GivenTimes:
    backward_s = node.backward_ms / 1e3 if training else 0.0
    return GivenTimes(
        device, 1, (1,), (node.forward_ms / 1e3,), (backward_s,), 0.0, node.parameter_bytes, node.activation_bytes
    )
