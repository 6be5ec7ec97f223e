"""Bound the work that an ONNX file requests beyond its own size.

A file of a few kB can name 2^24 calls of functions or a list of 10^9 tensors. :class:`Budget` alone says how much of
each is read. :mod:`.onnx_inline` counts the calls of functions against it, :mod:`.onnx_trips` the trips of loops, and
:func:`bounded_run` ends a run of the model whose trips only the run shows.

Not covered: work that is linear in the bytes of the file, and the FLOPs of a single node.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isinf
from threading import Event, Thread, get_ident

import onnx_ir as ir

from heterps_compile.errors import GraphError
from heterps_compile.units import format_bytes

from .onnx_bodies import every_node
from .onnx_names import describe

_LOOKS_S = 0.05


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one ONNX file may request.

    Attributes:
        functions: Local functions that are called.
        nodes: Nodes of the model, and nodes that inlining its functions makes.
        inlined_bytes: Bytes of names and attributes of these nodes.
        inlined_clashes: Pairs of these nodes, or of what they make, with one name.
        node_runs: Nodes that loops and scans run, nested ones multiplied, in one run of the model.
        items: Tensors of one list, outputs of one split, samples of a batch that is opened.
        constant_bytes: Bytes of one constant that nodes make.
        vector_bytes: Bytes of one vector, where shapes are computed from long ones.
        run_bytes: Bytes of one run beyond twice those of values of known sizes, where only the run shows other sizes.
        run_s: CPU seconds of one run, where a loop has trips that only the run shows.
    """

    functions: int = 2**11
    nodes: int = 2**18
    inlined_bytes: int = 2**31 - 1
    inlined_clashes: int = 200_000_000
    node_runs: int = 10_000_000
    items: int = 2**20
    constant_bytes: int = 2**32
    vector_bytes: int = 2**28
    run_bytes: int = 2**29
    run_s: float = 30.0


BUDGET = Budget()
"""The budget of every file that is read."""


def over_budget(name: str, value: str, most: str, fix: str) -> GraphError:
    """Describe a value that exceeds the budget."""
    return GraphError(f"{name} is {value}; expected at most {most}. Fix: {fix}")


def refuse_long_splits(graph: ir.Graph, budget: Budget = BUDGET) -> None:
    """Refuse a Split into more outputs than the budget allows: ONNX's inference makes a list of them.

    Raises:
        GraphError: naming the node and the number.
    """
    for node in every_node(graph):
        attribute = node.attributes.get("num_outputs") if node.op_type == "Split" and not node.domain else None
        if attribute is not None and not attribute.is_ref() and attribute.as_int() > budget.items:
            name, fix = f"num_outputs of {describe(node)}", "export the model with a smaller number"
            raise over_budget(name, f"{attribute.as_int():,}", f"{budget.items:,}", fix)


def running_loops(graph: ir.Graph) -> tuple[str, ...]:
    """Describe the nodes that run a body until the data end it."""
    held = (node for node in every_node(graph) if node.op_type not in ("If", "Scan"))
    return tuple(
        describe(node)
        for node in held
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
    )


@contextmanager
def bounded_run(loops: Sequence[str], stop: Callable[[], object], budget: Budget = BUDGET) -> Iterator[None]:
    """Call ``stop``, from another thread, if the block takes more CPU time in this thread than the budget allows.

    Args:
        loops: Descriptions of the loops that may be the cause; without any the block is not watched.
        stop: Ends the call that the block is in.
        budget: ``run_s`` of it counts.

    Raises:
        GraphError: naming the loops, after ``stop`` was called.
    """
    if not loops:
        yield
        return
    with limited_cpu(budget.run_s, stop) as is_stopped:
        try:
            yield
        except Exception as e:
            if is_stopped.is_set():
                raise _too_long(loops, budget) from e
            raise


@contextmanager
def limited_cpu(limit_s: float, stop: Callable[[], object]) -> Iterator[Event]:
    """Call ``stop``, from another thread, if the block takes more CPU time in this thread.

    Args:
        limit_s: Seconds of CPU time, which a busy machine does not shorten; ``inf`` for no limit.
        stop: Ends the call that the block is in.

    Yields:
        An event that is set before ``stop`` is called.
    """
    is_over, is_stopped = Event(), Event()
    if isinf(limit_s):
        yield is_stopped
        return
    clock = time.pthread_getcpuclockid(get_ident()) if hasattr(time, "pthread_getcpuclockid") else time.CLOCK_MONOTONIC
    end_s = time.clock_gettime(clock) + limit_s

    def look() -> None:
        while not is_over.wait(_LOOKS_S):
            if time.clock_gettime(clock) > end_s:
                is_stopped.set()
                stop()
                return

    looking = Thread(target=look, daemon=True)
    looking.start()
    try:
        yield is_stopped
    finally:
        is_over.set()
        looking.join()


def _too_long(loops: Sequence[str], budget: Budget) -> GraphError:
    shown = loops[0] if len(loops) == 1 else f"{loops[0]} and {len(loops) - 1} more loops"
    return over_budget(
        f"the time of one run of the model, in which {shown} runs until its data end it,",
        f"more than {budget.run_s:g} s of CPU time",
        f"{budget.run_s:g} s",
        "export the loop with a number of trips, or store its shapes and leave out the runs (--no-verify)",
    )


def too_large(node: str, requested_bytes: int, most_bytes: int) -> GraphError:
    """Describe a run that exceeds its memory."""
    name = f"the memory of a run of the model, in which the node {node} requests {format_bytes(requested_bytes)},"
    fix = "give smaller dimensions, or store the shapes of its values in the model"
    return over_budget(name, f"more than {format_bytes(most_bytes)}", format_bytes(most_bytes), fix)
