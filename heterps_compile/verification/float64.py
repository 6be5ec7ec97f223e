"""Repeat a verification that failed in float64, where rounding is 5e8 times finer than in float32.

What hangs on a near-tie (the k largest of many, a sign, a threshold) differs by rounding alone; it agrees in float64.

Left out: ONNX models and exported programs, whose data types are part of them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from heterps_compile.backends.comparable import find_comparable
from heterps_compile.backends.contract import build_wide
from heterps_compile.errors import InputError, VerificationError
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition, cut_graph

from .pair import SKIP, Pair, reason

_T = TypeVar("_T")


def compare_in_float64(pair: Pair, compare: Callable[[Pair], _T], error: VerificationError) -> tuple[_T, str]:
    """Compare a copy of the model in float64; give what was found, and a note on it.

    Args:
        pair: That was compared.
        compare: What compares it.
        error: What was found.

    Raises:
        VerificationError: where it differs in float64 as well, or where that cannot be found out.
    """
    try:
        wide = _widened(pair)
        found = compare(wide)
    except VerificationError:
        raise VerificationError(
            f"{error}; it differs in float64 too, where rounding is no reason: the stages compute something else; "
            f"please report it with the model; {SKIP}"
        ) from error
    except Exception as why:  # noqa: BLE001 - a model may not run in float64, and raise anything
        raise VerificationError(
            f"{error}; whether that is more than rounding (near-ties that an op decides, or ops that are fused) could "
            f"not be found out in float64: {reason(why)}; {SKIP}"
        ) from error
    note = (
        f"verified in float64, where stages and whole model agree; in the model's own precision {error}: rounding alone"
    )
    return found, note


def _widened(pair: Pair) -> Pair:
    """Give the pair of a copy of the model in float64, cut at the same nodes."""
    widen = getattr(pair.graph.source, "in_float64", None)
    if widen is None:
        raise InputError(f"the data types of {pair.graph.name!r} are part of it")
    from heterps_compile.frontends.torch_float64 import widen_values  # noqa: PLC0415 - torch only for torch models

    graph: Graph = widen()
    partition = _cut_alike(pair, graph)
    compared = find_comparable(graph, pair.backend.name)
    return replace(
        pair,
        compared=replace(compared, rounding=pair.compared.rounding),
        cuts=partition.stages,
        stages=build_wide(pair.backend)(graph, partition),
        inputs=[widen_values(inputs) for inputs in pair.inputs],
    )


def _cut_alike(pair: Pair, graph: Graph) -> Partition:
    """Cut a graph of the same model where its stages are cut; nodes it has more go with those before them."""
    stage_of = {pair.graph.nodes[index].name: cut.index for cut in pair.cuts for index in cut.nodes}
    groups: list[list[int]] = [[] for _ in pair.cuts]
    stage = 0
    for index, node in enumerate(graph.nodes):
        stage = stage_of.get(node.name, stage)
        groups[stage].append(index)
    return cut_graph(graph, groups)
