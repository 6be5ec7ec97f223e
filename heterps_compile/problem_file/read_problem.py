"""Reads a problem file: JSON with layers, their times, edges, a pool and a request.

::

    {"format": "heterps-compile problem", "version": 1, "name": "two layers",
     "layers": [
       {"name": "embed", "parameter_bytes": 4e8, "activation_bytes_per_sample": 4096,
        "times": [{"device": "gpu", "samples": [1, 8], "forward_s": [0.001, 0.004], "backward_s": [0.002, 0.008]}]},
       ...],
     "edges": [{"from": "embed", "to": ["head"], "bytes_per_sample": 4096}],
     "pool": "heterps-paper" or the tables of a pool's file,
     "request": {"mode": "training", "objective": "throughput"},
     "batch": 64}

``docs/problem-file.md`` says every key. A file may come from a stranger: it is read strictly.

Left out: the laws of a problem (``problem_laws.py``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import builtin_names, load_cluster, make_cluster
from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten
from heterps_compile.plan.request import OPTIONS, make_request
from heterps_compile.strict_json import Amount, Part, Text, Whole, checked, read_record

from .given_problem import (
    BATCHES_OF,
    HELD_IN_INFERENCE,
    HELD_IN_TRAINING,
    STEP,
    GivenEdge,
    GivenLayer,
    GivenProblem,
    GivenTable,
    GivenTimes,
    MeasuredAllReduce,
    MeasuredTransfer,
)
from .problem_laws import MOST_LAYERS, verify_given

FORMAT = "heterps-compile problem"
VERSION = 1
_MOST_SIZES = 1100  # of a table of measured messages, or of measured micro-batches
_NEUTRAL_RATE = 1e18
NEUTRAL_DEVICE: Mapping[str, Any] = {
    "price": "free",
    "price_source": "not told",
    "max_units": 1_000_000,
    "memory": "1e18 B",
    "peak": {"float32": f"{_NEUTRAL_RATE} FLOP/s"},
    "memory_bandwidth": f"{_NEUTRAL_RATE} B/s",
    "network_latency": "1e-12 s",
    "input_bandwidth": f"{_NEUTRAL_RATE} B/s",
    "launch": "1e-12 s",
    "efficiency": 1.0,
    "compute_parallel": 1.0,
    "data_parallel": 1.0,
}
"""What a device of a problem's own pool may leave out: what would estimate times that are given here, and limits."""

Fraction = Annotated[float, Field(ge=0, le=1)]
Times = Annotated[list[Amount], Field(max_length=_MOST_SIZES)]


class _Times(Part):
    device: Text
    tensor_parallel: Whole = 1
    samples: Annotated[list[Whole], Field(max_length=_MOST_SIZES)]
    forward_s: Times
    backward_s: Times | None = None
    update_s: Amount = 0.0
    parameter_bytes: Amount | None = None
    activation_bytes_per_sample: Amount | None = None
    compute_parallel: Fraction | None = None


class _LookUp(Part):
    name: Text
    size_bytes: Amount
    rows_bytes_per_sample: Amount


_Shape = Annotated[list[Whole], Field(max_length=16)]


class _Layer(Part):
    name: Text
    tables: Annotated[list[_LookUp], Field(default_factory=list, max_length=MOST_LAYERS)]
    parameter_bytes: Amount = 0.0
    activation_bytes_per_sample: Amount = 0.0
    shapes: Annotated[list[_Shape], Field(default_factory=list, max_length=MOST_LAYERS)]
    times: Annotated[list[_Times], Field(max_length=10_000)]


class _Edge(Part):
    producer: Annotated[Text, Field(alias="from")]
    readers: Annotated[list[Text], Field(alias="to", max_length=MOST_LAYERS)]
    bytes_per_sample: Amount


class _Measured(Part):
    sizes_bytes: Times
    times_s: Times


class _Transfer(_Measured):
    between: Annotated[list[Text], Field(min_length=2, max_length=2)]


class _AllReduce(_Measured):
    device: Text
    units: Whole


class ProblemFile(Part):
    """The whole file."""

    format: Literal["heterps-compile problem"]
    version: Literal[1]
    name: Text
    layers: Annotated[list[_Layer], Field(max_length=MOST_LAYERS)]
    edges: Annotated[list[_Edge], Field(default_factory=list, max_length=10 * MOST_LAYERS)]
    pool: dict[str, Any] | str | None = None
    request: Annotated[dict[str, Any], Field(default_factory=dict)]
    batch: Whole
    batch_of: Literal["step", "replica"] = "step"
    held_per_parameter: Amount | None = None
    step_overhead_s: Amount = 0.0
    transfers: Annotated[list[_Transfer], Field(default_factory=list, max_length=4096)]
    all_reduces: Annotated[list[_AllReduce], Field(default_factory=list, max_length=4096)]


assert BATCHES_OF == ("step", "replica")  # noqa: S101 - as the schema has them


def read_problem(path: str | Path, *, cluster: str | Cluster | None = None) -> GivenProblem:
    """Read a problem file.

    Args:
        path: A file.
        cluster: A pool in place of the file's.

    Raises:
        InputError: where it cannot be read, is no problem file or breaks a law of problems.
        UnknownNameError: for a pool or a word that nobody knows.
    """
    where = f"the problem {shorten(printable(str(path)), 200)!r}"
    return make_given(read_record(path, where, FORMAT, (VERSION,)), where, cluster=cluster)


def make_given(document: dict[str, Any], where: str, *, cluster: str | Cluster | None = None) -> GivenProblem:
    """Check what a file says and return it as a value.

    Raises:
        InputError, UnknownNameError: as :func:`read_problem`.
    """
    file = checked(ProblemFile, document, where)
    has_backward = any(each.backward_s is not None for layer in file.layers for each in layer.times)
    asked = {"mode": "training" if has_backward else "inference", **file.request}
    for key in asked:
        if key not in OPTIONS:
            raise InputError(
                f"{where}: request has the unknown key {shorten(printable(key), 60)!r} (known: {', '.join(OPTIONS)})"
            )
    if not isinstance(asked.get("method", ""), str):
        raise InputError(f"{where}: request: method must be a text")
    pool = _pool(file.pool, where) if cluster is None else _loaded(cluster)
    training = asked["mode"] == "training"
    problem = GivenProblem(
        name=file.name,
        layers=tuple(_layer(layer, where, training=training) for layer in file.layers),
        edges=tuple(GivenEdge(edge.producer, tuple(edge.readers), edge.bytes_per_sample) for edge in file.edges),
        pool=pool,
        asked=asked,
        batch=file.batch,
        batch_of=file.batch_of or STEP,
        held_per_parameter=(HELD_IN_TRAINING if training else HELD_IN_INFERENCE)
        if file.held_per_parameter is None
        else file.held_per_parameter,
        step_overhead_s=file.step_overhead_s,
        transfers=tuple(
            MeasuredTransfer(tuple(each.sizes_bytes), tuple(each.times_s), tuple(each.between))
            for each in file.transfers
        ),
        all_reduces=tuple(
            MeasuredAllReduce(tuple(each.sizes_bytes), tuple(each.times_s), each.device, each.units)
            for each in file.all_reduces
        ),
    )
    try:
        make_request(pool.currency if pool else "USD", **asked)
    except TypeError as error:
        raise InputError(f"{where}: request: a value has the wrong type: {shorten(str(error), 100)}") from error
    except InputError as error:
        raise InputError(f"{where}: request: {error}") from error
    verify_given(problem)
    return problem


def _layer(layer: _Layer, where: str, *, training: bool) -> GivenLayer:
    return GivenLayer(
        layer.name,
        tuple(_times(layer, each, where, training=training) for each in layer.times),
        tuple(GivenTable(each.name, each.size_bytes, each.rows_bytes_per_sample) for each in layer.tables),
        tuple(map(tuple, layer.shapes)),
    )


def _times(layer: _Layer, times: _Times, where: str, *, training: bool) -> GivenTimes:
    """Return a layer's times; in inference a backward is left out, in training one must be there."""
    if training and times.backward_s is None:
        raise InputError(
            f"{where}: layer {shorten(printable(layer.name), 60)!r} has no backward_s on "
            f"{shorten(printable(times.device), 60)!r}; training needs it, or ask for inference in request.mode"
        )
    whole, kept = layer.parameter_bytes / times.tensor_parallel, layer.activation_bytes_per_sample
    own, own_kept = times.parameter_bytes, times.activation_bytes_per_sample
    return GivenTimes(
        device=times.device,
        tensor_parallel=times.tensor_parallel,
        samples=tuple(times.samples),
        forward_s=tuple(times.forward_s),
        backward_s=tuple(times.backward_s or ()) if training else (0.0,) * len(times.samples),
        update_s=times.update_s if training else 0.0,
        parameter_bytes=whole if own is None else own,
        activation_bytes_per_sample=kept / times.tensor_parallel if own_kept is None else own_kept,
        compute_parallel=times.compute_parallel,
    )


def _loaded(cluster: str | Cluster) -> Cluster:
    return cluster if isinstance(cluster, Cluster) else load_cluster(cluster)


def _pool(found: dict[str, Any] | str | None, where: str) -> Cluster | None:
    """Return the pool that a file holds or names; a file names built-in ones alone, no path."""
    if found is None:
        return None
    if isinstance(found, str):
        if found not in builtin_names():
            known = ", ".join(builtin_names())
            raise InputError(
                f"{where}: pool is {shorten(printable(found), 60)!r}; expected the name of a built-in one ({known}) or "
                f"its tables; a file of its own goes with --cluster FILE"
            )
        return load_cluster(found)
    devices = found.get("device")
    if isinstance(devices, list):
        found = {
            **found,
            "device": [{**NEUTRAL_DEVICE, **each} if isinstance(each, dict) else each for each in devices],
        }
    return make_cluster(found, "the problem's own", f"{where}: pool")
