"""Reads Piper's JSON as a problem: layers with configurations of tensor parallelism, on devices of one type.

::

    {"maxDevices": 8, "maxMemoryPerDevice": bytes, "bandwidth": bytes per second, "mbsInBatch": samples,
     "nodes": [{"id": 0, "name": "Embedding",
                "TMPCs": {"1": [{"id": "vanilla", "timePerSample": s, "parameterSize": bytes, "memoryUsageA": bytes,
                                 "memoryUsageB": bytes, "syncTimeFw": {"2": bytes}, "syncTimeBw": {"3": bytes}}]}}],
     "edges": [{"sourceId": 0, "destId": 1, "communicationCost": bytes}]}

A key of ``TMPCs`` is a degree of tensor parallelism. ``timePerSample`` has forward and backward. A unit holds
``A y + B`` with y samples under way. ``syncTimeFw`` has the bytes that a group exchanges when the value of a node
enters its stage, ``syncTimeBw`` when the gradient from a node does. Source: Tarnawski, Narayanan, Phanishayee, "Piper:
Multidimensional planner for DNN parallelization" (NeurIPS 2021), section 3.

Not covered: other configurations of a degree than one, such as recomputation, which a note names.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import load_cluster, make_cluster
from heterps_compile.cost.node_order import in_order
from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten
from heterps_compile.strict_json import MOST, Amount, Part, Whole, checked, parsed, read_utf8
from heterps_compile.units import in_words

from .given_problem import REPLICA, GivenEdge, GivenLayer, GivenProblem, GivenTimes
from .problem_laws import MOST_LAYERS, MOST_TIME_S, accelerators_of, shown, verify_given
from .read_problem import NEUTRAL_DEVICE

_DEVICE = "device"
_USUAL = "vanilla"
_MOST_NAMED = 8

_Positive = Annotated[float, Field(gt=0, le=MOST)]
_Id = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_Degree = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,3}$")]
_Sizes = Annotated[dict[str, Amount], Field(max_length=MOST_LAYERS)]


class _Open(Part):
    """A record that may have more keys, which are ignored and reported."""

    model_config = ConfigDict(extra="allow")


class _Configuration(_Open):
    name: Annotated[str, Field(alias="id", max_length=1000)] = _USUAL
    time_s: Annotated[float, Field(alias="timePerSample", ge=0, le=MOST_TIME_S)]
    parameter_bytes: Annotated[Amount, Field(alias="parameterSize")]
    sample_bytes: Annotated[Amount, Field(alias="memoryUsageA")]
    fixed_bytes: Annotated[Amount, Field(alias="memoryUsageB")]
    entering_bytes: Annotated[_Sizes, Field(alias="syncTimeFw", default_factory=dict)]
    leaving_bytes: Annotated[_Sizes, Field(alias="syncTimeBw", default_factory=dict)]


class _Node(_Open):
    id: _Id
    name: Annotated[str, Field(max_length=1000)] = "node"
    degrees: Annotated[
        dict[_Degree, Annotated[list[_Configuration], Field(min_length=1, max_length=1000)]],
        Field(alias="TMPCs", min_length=1, max_length=100),
    ]

    @property
    def usual(self) -> dict[int, _Configuration]:
        """Choose a configuration per degree: vanilla, else the first."""
        return {
            int(degree): next((each for each in found if each.name == _USUAL), found[0])
            for degree, found in self.degrees.items()
        }


class _Edge(_Open):
    source: Annotated[_Id, Field(alias="sourceId")]
    target: Annotated[_Id, Field(alias="destId")]
    size_bytes: Annotated[Amount, Field(alias="communicationCost")]


class _File(_Open):
    units: Annotated[Whole, Field(alias="maxDevices")]
    memory_bytes: Annotated[_Positive, Field(alias="maxMemoryPerDevice")]
    bytes_per_s: Annotated[_Positive, Field(alias="bandwidth")]
    samples: Annotated[_Positive, Field(alias="mbsInBatch")]
    nodes: Annotated[list[_Node], Field(min_length=1, max_length=MOST_LAYERS)]
    edges: Annotated[list[_Edge], Field(max_length=MOST_LAYERS)]


def read_piper(path: str | Path, *, cluster: str | Cluster | None = None) -> GivenProblem:
    """Read a file of Piper's as a problem.

    Args:
        path: A file.
        cluster: A pool in place of the file's devices; the times hold on all of its types that are no CPU.

    Raises:
        InputError: if the file cannot be read, lacks a key, has a cycle, or breaks a law of problems.
        UnknownNameError: for an unknown pool.
    """
    where = f"the problem {shorten(printable(str(path)), 200)!r}"
    file = checked(_File, parsed(read_utf8(path, where), where), where)
    pool = cluster if isinstance(cluster, Cluster) else load_cluster(cluster) if cluster else _own_pool(file, where)
    devices = accelerators_of(pool, where)
    nodes = {node.id: node for node in file.nodes}
    if len(nodes) < len(file.nodes):
        raise InputError(f"{where}: nodes has {len(nodes):,} different ids; expected {len(file.nodes):,}")
    joined = Counter((edge.target, edge.source) for edge in file.edges)
    for (target, source), number in joined.items():
        if number > 1:
            raise InputError(
                f"{where}: edges from {source} to {target} is {number:,}; expected 1. Fix: give one edge with all bytes"
            )
    ordered = in_order(nodes, joined, where)[::-1]  # inputs as late as may be
    names = {i: f"{node.name} {i}" for i, node in nodes.items()}
    usual = {i: node.usual for i, node in nodes.items()}
    layers = (
        GivenLayer(names[i], tuple(_times(*each, device) for device in devices for each in usual[i].items()))
        for i in ordered
    )
    edges = (
        GivenEdge(
            names[edge.source],
            (names[edge.target],),
            edge.size_bytes,
            tuple(_exchanged(edge, usual[edge.source], usual[edge.target])),
        )
        for edge in file.edges
    )
    problem = GivenProblem(
        Path(path).stem or "piper",
        tuple(layers),
        tuple(edges),
        pool,
        {"mode": "training", "objective": "throughput"},
        batch=1,
        batch_of=REPLICA,
        assumptions=tuple(_notes(file, usual)),
        summed_every=file.samples,
    )
    verify_given(problem)
    return problem


def _own_pool(file: _File, where: str) -> Cluster:
    own = {
        "name": _DEVICE,
        "kind": "gpu",
        "network_bandwidth": f"{file.bytes_per_s:.17g} B/s",
        "memory": f"{file.memory_bytes:.17g} B",
        "max_units": file.units,
    }
    return make_cluster({"device": [{**NEUTRAL_DEVICE, **own}]}, "the problem's own", where)


def _times(degree: int, found: _Configuration, device: str) -> GivenTimes:
    return GivenTimes(
        device, degree, (1,), (found.time_s,), (0.0,), 0.0, found.parameter_bytes, found.sample_bytes,
        fixed_bytes=found.fixed_bytes,
    )  # fmt: skip


def _exchanged(
    edge: _Edge, producer: dict[int, _Configuration], reader: dict[int, _Configuration]
) -> Iterator[tuple[int, float, float]]:
    for degree in sorted({*producer, *reader}):
        entering = reader[degree].entering_bytes.get(str(edge.source), 0.0) if degree in reader else 0.0
        leaving = producer[degree].leaving_bytes.get(str(edge.target), 0.0) if degree in producer else 0.0
        if entering or leaving:
            yield degree, entering, leaving


def _notes(file: _File, usual: dict[int, dict[int, _Configuration]]) -> Iterator[str]:
    """Yield the law, ignored keys and ignored configurations."""
    yield (
        "Piper's law: a stage of d replicas takes a sample (timePerSample + bytes across its borders / bandwidth) / d, "
        "and its share of an all-reduce every mbsInBatch samples; forward_s has the backward too"
    )
    others = dict.fromkeys(
        shown(each.name or "?")
        for node in file.nodes
        for degree, found in node.degrees.items()
        for each in found
        if each is not usual[node.id][int(degree)]
    )
    found = (each for node in file.nodes for of_degree in node.degrees.values() for each in of_degree)
    records: list[_Open] = [file, *file.nodes, *file.edges, *found]
    keys = dict.fromkeys(shown(key) for record in records for key in record.model_extra or ())
    for what, ignored in (("configurations of TMPCs", list(others)), ("keys", list(keys))):
        if ignored:
            more = [f"{len(ignored) - _MOST_NAMED} more"] if len(ignored) > _MOST_NAMED else []
            yield f"{what} ignored: {in_words([*ignored[:_MOST_NAMED], *more])}"
