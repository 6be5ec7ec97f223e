"""What must hold of a problem with given costs: a list of laws, and the list is the verifier."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod

from heterps_compile.cluster.devices import Cluster
from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten
from heterps_compile.units import format_bytes

from .given_problem import BATCHES_OF, ELEMENT_BYTES, REPLICA, GivenLayer, GivenProblem, GivenTimes

MOST_LAYERS = 100_000
MOST_UNITS_OF_A_GROUP = 1024


def shown(name: str) -> str:
    """Return a name of a file, quoted for a message."""
    return repr(shorten(printable(name), 60))


def accelerators_of(pool: Cluster, where: str) -> list[str]:
    """Return the names of the device types that are no CPU.

    Args:
        pool: The pool.
        where: Name of the file in messages.

    Raises:
        InputError: if there is none.
    """
    found = [device.name for device in pool.device_types if device.kind != "cpu"]
    if not found:
        raise InputError(f"{where}: the pool {shown(pool.name)} has no GPU or NPU. Fix: give one that has (--cluster)")
    return found


def _has_layers(problem: GivenProblem) -> Iterator[str]:
    if not problem.layers:
        yield "it has no layers; give it at least one"
    if len(problem.layers) > MOST_LAYERS:
        yield f"it has {len(problem.layers):,} layers; {MOST_LAYERS:,} are the most"


def _names_once(problem: GivenProblem) -> Iterator[str]:
    for name, count in Counter(layer.name for layer in problem.layers).items():
        if count > 1:
            yield f"{count} layers are called {shown(name)}; names must differ"


def _has_times(problem: GivenProblem) -> Iterator[str]:
    for layer in problem.layers:
        if not layer.times:
            yield f"layer {shown(layer.name)} has no times; give those of one device type at least"
        for group, count in Counter((each.device, each.tensor_parallel) for each in layer.times).items():
            if count > 1:
                yield f"layer {shown(layer.name)} has {count} entries of times for {_group(*group)}; give one"
        for times in layer.times:
            yield from _sound(layer, times)


def _sound(layer: GivenLayer, times: GivenTimes) -> Iterator[str]:
    where = f"layer {shown(layer.name)} on {_group(times.device, times.tensor_parallel)}"
    if times.tensor_parallel > MOST_UNITS_OF_A_GROUP:
        yield f"{where}: {MOST_UNITS_OF_A_GROUP:,} units are the most of a group"
    if not times.samples:
        yield f"{where}: no size of a micro-batch is given"
    if any(first >= second for first, second in pairwise(times.samples)):
        yield f"{where}: samples must ascend, and they are {list(times.samples[:8])}"
    for what, found in (("forward_s", times.forward_s), ("backward_s", times.backward_s)):
        if len(found) != len(times.samples):
            yield f"{where}: {what} has {len(found)} entries for {len(times.samples)} sizes in samples"
        if any(not 0 <= time_s <= MOST_TIME_S for time_s in found):
            yield f"{where}: a time of {what} is not between 0 and {MOST_TIME_S:g} s"
    if times.compute_parallel is not None and not 0 <= times.compute_parallel <= 1:
        yield f"{where}: compute_parallel is {times.compute_parallel:g}; it must be from 0 to 1"


MOST_TIME_S = 1e9


def _group(device: str, tensor_parallel: int) -> str:
    return shown(device) if tensor_parallel == 1 else f"{tensor_parallel} units of {shown(device)}"


def _tables_are_parts_of_layers(problem: GivenProblem) -> Iterator[str]:
    names = Counter(table.name for layer in problem.layers for table in layer.tables)
    for name, count in names.items():
        if count > 1:
            yield (f"{count} tables are called {shown(name)}; names must differ, so join layers that share one")
    for layer in problem.layers:
        size = sum(table.size_bytes for table in layer.tables)
        for times in layer.times:
            held = times.parameter_bytes * times.tensor_parallel
            if size > held * (1 + _ROUNDING):
                yield (
                    f"layer {shown(layer.name)} has {format_bytes(size)} of tables among parameters of "
                    f"{format_bytes(held)} on {_group(times.device, times.tensor_parallel)}; parameter_bytes has the "
                    f"tables in it"
                )


_ROUNDING = 1e-9  # relative


def _shapes_are_parameters(problem: GivenProblem) -> Iterator[str]:
    """The shapes of a layer have its bytes, so that rules by which replicas agree count the same as all else."""
    for layer in problem.layers:
        size = sum(prod(shape) for shape in layer.shapes) * ELEMENT_BYTES
        for times in layer.times if layer.shapes else ():
            held, group = times.parameter_bytes * times.tensor_parallel, _group(times.device, times.tensor_parallel)
            if abs(size - held) > held * _ROUNDING:
                yield (
                    f"layer {shown(layer.name)} has shapes of {format_bytes(size)}, with {ELEMENT_BYTES} bytes an "
                    f"element, and {format_bytes(held)} of parameters on {group}; both must be the same"
                )


def _edges_join_known_layers(problem: GivenProblem) -> Iterator[str]:
    for edge in problem.edges:
        for end in (edge.producer, *edge.readers):
            if end not in problem.position:
                yield f"an edge from {shown(edge.producer)} names layer {shown(end)}, which does not exist"
        if not edge.readers:
            yield f"an edge from {shown(edge.producer)} has no reader"


def _edges_run_forward(problem: GivenProblem) -> Iterator[str]:
    """Layers stand in an order in which every edge runs forward, so that none waits for itself."""
    for edge in problem.edges:
        for reader in edge.readers:
            if problem.position[reader] <= problem.position[edge.producer]:
                yield (
                    f"the edge from {shown(edge.producer)} to {shown(reader)} runs backward or in a circle; list a "
                    "layer after all that it reads from"
                )


def _devices_are_in_the_pool(problem: GivenProblem) -> Iterator[str]:
    if problem.pool is None:
        return
    known = {device.name for device in problem.pool.device_types}
    named = {each.device for layer in problem.layers for each in layer.times}
    named |= {name for each in problem.transfers for name in each.between}
    for name in sorted((named | {each.device for each in problem.all_reduces}) - known):
        have = ", ".join(map(shown, sorted(known)[:8]))
        yield f"it names the device type {shown(name)}, and the pool {shown(problem.pool.name)} has {have}"


def _tables_ascend(problem: GivenProblem) -> Iterator[str]:
    tables = [(f"transfers between {' and '.join(map(shown, each.between))}", each) for each in problem.transfers]
    tables += [(f"all-reduces of {_group(each.device, each.units)}", each) for each in problem.all_reduces]  # type: ignore[misc]
    for what, each in tables:
        if len(each.sizes_bytes) != len(each.times_s) or not each.sizes_bytes:
            yield f"{what} have {len(each.sizes_bytes)} sizes and {len(each.times_s)} times; give as many of both"
        if any(first >= second for first, second in pairwise(each.sizes_bytes)):
            yield f"the sizes of {what} must ascend"


def _counts_batches(problem: GivenProblem) -> Iterator[str]:
    if problem.batch_of not in BATCHES_OF:
        yield f"a batch is of {' or '.join(map(repr, BATCHES_OF))}, not of {shown(problem.batch_of)}"
    if problem.batch < 1:
        yield f"its batch is {problem.batch}; it must be 1 or more"
    if problem.batch_of == REPLICA:
        for layer in problem.layers:
            if any(times.compute_parallel is not None for times in layer.times):
                yield (
                    f"layer {shown(layer.name)} has a compute_parallel, and batches of one replica each are not "
                    f"divided among replicas; leave it out, or say that a batch is of a step (batch_of)"
                )


Law = tuple[str, Callable[[GivenProblem], Iterator[str]]]

LAWS: tuple[Law, ...] = (
    ("there are layers, and not too many", _has_layers),
    ("every name is one layer's", _names_once),
    ("every layer has times, ascending by size and none negative", _has_times),
    ("every table is of one layer, and among its parameters", _tables_are_parts_of_layers),
    ("the shapes of a layer are those of its parameters", _shapes_are_parameters),
    ("edges join layers that exist", _edges_join_known_layers),
    ("edges run forward in the order of the layers", _edges_run_forward),
    ("every device type is one of the pool", _devices_are_in_the_pool),
    ("measured messages ascend by size", _tables_ascend),
    ("a batch is somebody's", _counts_batches),
)
"""What a problem must keep, in the order it is checked: a later law may rely on an earlier one."""


def verify_given(problem: GivenProblem) -> None:
    """Check a problem against :data:`LAWS`.

    Raises:
        InputError: for the first fault of the first law broken.
    """
    for _, faults in LAWS:
        for fault in faults(problem):
            raise InputError(f"problem {shown(problem.name)}: {fault}")
