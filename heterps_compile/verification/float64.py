"""Repeat a verification that failed in float64, where rounding is 5e8 times finer than in float32.

What hangs on a near-tie (the k largest of many, a sign, a threshold) differs by rounding alone; it agrees in float64.

An ONNX model is copied with its float32 tensors as float64. ONNX Runtime runs the copy whole where it has kernels for
that, else ONNX's own reference does.

Left out: exported programs, whose data types are part of them; ops of ONNX models that know no float64.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from heterps_compile.backends.comparable import find_comparable
from heterps_compile.backends.contract import build_wide
from heterps_compile.errors import BackendError, InputError, VerificationError
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition, cut_graph
from heterps_compile.runtime.verify import compare_outputs

from .pair import SKIP, Pair, reason

_T = TypeVar("_T")
_DRAWS = 4
_MUCH = 4.0  # times what rounding changed in the draws


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
        is_rounding = pair.graph.family != "onnx" or _hangs_on_rounding(pair, wide)
    except VerificationError:
        narrow = _narrow_ops(pair.graph)
        if narrow:
            raise VerificationError(
                f"{error}; it differs in float64 too, but {narrow} may round to fewer bits whatever they are given, so "
                f"that it may be rounding alone; {SKIP}"
            ) from error
        raise VerificationError(
            f"{error}; it differs in float64 too, where rounding is no reason: the stages compute something else; "
            f"please report it with the model; {SKIP}"
        ) from error
    except Exception as why:  # noqa: BLE001 - a model may not run in float64, and raise anything
        raise VerificationError(
            f"{error}; whether that is more than rounding (near-ties that an op decides, or ops that are fused) could "
            f"not be found out in float64: {reason(why)}; {SKIP}"
        ) from error
    if not is_rounding:
        raise VerificationError(
            f"{error}; stages built anew in float64 agree, and the outputs do not hang on rounding: weights that are "
            f"off by as much change them far less; please report it with the model; {SKIP}"
        ) from error
    note = (
        f"verified in float64, where stages and whole model agree; in the model's own precision {error}: rounding alone"
    )
    return found, note


def _widened(pair: Pair) -> Pair:
    """Give the pair of a copy of the model in float64, cut at the same nodes."""
    if pair.graph.family == "onnx":
        return _widened_onnx(pair)
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


def _widened_onnx(pair: Pair) -> Pair:
    from heterps_compile.frontends.onnx_float64 import (  # noqa: PLC0415 - onnx only for ONNX models
        arrays_in_float64,
        graph_in_float64,
    )

    graph = graph_in_float64(pair.graph)
    inputs = [arrays_in_float64(given) for given in pair.inputs]
    return replace(
        pair,
        compared=replace(pair.compared, graph=graph),
        stages=build_wide(pair.backend)(graph, cut_graph(graph, [cut.nodes for cut in pair.cuts])),
        inputs=inputs,
        oracle=_oracle(pair, graph, inputs[0]),
    )


def _oracle(pair: Pair, graph: Graph, inputs: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Give what runs an ONNX model in float64: ONNX Runtime where it has the kernels, else ONNX's own reference."""
    from heterps_compile.frontends.onnx_float64 import by_definition  # noqa: PLC0415 - onnx only for ONNX models

    whole: Callable[[Mapping[str, Any]], tuple[Any, ...]] = pair.backend.reference(graph)
    try:
        whole(inputs)
    except BackendError:
        return by_definition(graph)
    return whole


def _hangs_on_rounding(pair: Pair, wide: Pair) -> bool:
    """Say whether rounding the weights of the whole model otherwise changes its outputs about as much as was found."""
    from heterps_compile.frontends.onnx_float64 import graph_in_float64  # noqa: PLC0415 - onnx only for ONNX models

    names, inputs = wide.compared.outputs, wide.inputs[0]
    with pair.backend.reproducible(pair.graph, pair.seed):
        found = _apart(names, pair.staged(pair.inputs[0]), pair.whole(pair.inputs[0]))
    if found <= pair.tolerance:
        return False  # gradients differ and outputs do not
    exact = wide.whole(inputs)
    for draw in range(_DRAWS):
        noisy = graph_in_float64(pair.graph, pair.seed + draw)
        other = replace(wide, compared=replace(wide.compared, graph=noisy), oracle=_oracle(pair, noisy, inputs))
        if _MUCH * _apart(names, other.whole(inputs), exact) >= found:
            return True
    return False


def _apart(names: Sequence[str], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Give how far outputs are apart, relative to their scale; infinite where whole numbers differ."""
    try:
        return compare_outputs(names, [ours[n] for n in names], [theirs[n] for n in names], math.inf).max_rel
    except VerificationError:
        return math.inf


def _narrow_ops(graph: Graph) -> str:
    """Name ops of an ONNX model that compute in few bits in a copy in float64 too; "" where there are none."""
    if graph.family != "onnx":
        return ""
    from heterps_compile.frontends.onnx_float64 import ops_that_stay_narrow  # noqa: PLC0415 - onnx for its models

    return ops_that_stay_narrow(graph)


def _cut_alike(pair: Pair, graph: Graph) -> Partition:
    """Cut a graph of the same model where its stages are cut; nodes it has more go with those before them."""
    stage_of = {pair.graph.nodes[index].name: cut.index for cut in pair.cuts for index in cut.nodes}
    groups: list[list[int]] = [[] for _ in pair.cuts]
    stage = 0
    for index, node in enumerate(graph.nodes):
        stage = stage_of.get(node.name, stage)
        groups[stage].append(index)
    return cut_graph(graph, groups)
