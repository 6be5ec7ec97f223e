"""Repeat a verification that failed in float64, where rounding is 5e8 times finer than in float32.

What hangs on a near-tie (the k largest of many, a sign, a threshold) differs by rounding alone; it agrees in float64.

An ONNX model is copied with its float32 tensors as float64. ONNX Runtime runs the copy whole where it has kernels for
that, else ONNX's own reference does. A PyTorch model is copied and read again.

Stages are built anew in float64, and may be right where those in float32 are wrong. So a difference counts as rounding
only where the whole model itself differs about as much: in its own precision from float64, or in float64 with its
weights and inputs off by what rounding to float32 does.

Left out: exported programs, whose data types are part of them; ops of ONNX models that know no float64.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from heterps_compile.backends.borders import as_tensor
from heterps_compile.backends.comparable import find_comparable
from heterps_compile.errors import BackendError, InputError, VerificationError
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.noise import Noise
from heterps_compile.ir.graph import ONNX, Graph
from heterps_compile.ir.partition import Partition, cut_graph
from heterps_compile.plan.plan import Verification
from heterps_compile.runtime.verify import compare_value, is_inexact, largest

from .calls import as_now
from .gradients import LESS_EXACT
from .pair import SKIP, Pair, reason

_WIDE = "float64"
_DRAWS = 8
_NAME_SHOWN = 80
_CHOOSE = frozenset(
    "topk sort argsort argmax argmin kthvalue median nanmedian mode msort TopK ArgMax ArgMin".split()  # noqa: SIM905
)
_REPORT = "the stages compute something else; please report it with the model"
_MUCH = 4.0  # times what rounding changed in the draws

Found = tuple[Verification, tuple[str, ...]]
"""What a comparison found, and notes on it."""


def compare_in_float64(pair: Pair, compare: Callable[[Pair], Found], error: VerificationError) -> tuple[Found, str]:
    """Compare a copy of the model in float64; return what was found, and a note on it.

    Args:
        pair: That was compared.
        compare: What compares it.
        error: What was found.

    Raises:
        VerificationError: where it differs in float64 as well, or where that cannot be found out.
    """
    calls = [_call(pair) for _ in range(2)]
    if not _are_alike(pair, *calls):
        raise VerificationError(
            f"{error}; two calls of the model itself, with the same inputs, state and random numbers, differ too: its "
            f"forward reads something that is none of these (a global that it changes, a clock), which stages do not "
            f"have; keep it in a buffer (register_buffer), or make it an input",
            is_explained=True,
        ) from error
    likely = error.likely or _choice(pair.graph) or _REPORT
    try:
        scales = {name: largest({name: calls[0][name]}) for name in pair.compared.outputs if is_inexact(calls[0][name])}
        wide = replace(_widened(pair), least_scales=scales)
        found = compare(wide)
        is_rounding = _is_rounding(pair, wide, compare)
    except VerificationError:
        narrow = _narrow_ops(pair.graph)
        if narrow:
            raise VerificationError(
                f"{error}; it differs in float64 too, but {narrow} may round to fewer bits whatever they are given, so "
                f"that it may be rounding alone; {SKIP}"
            ) from error
        raise VerificationError(
            f"{error}; it differs in float64 too, where rounding is no reason: {likely}; {SKIP}"
        ) from error
    except Exception as why:  # noqa: BLE001 - a model may not run in float64, and raise anything
        raise VerificationError(
            f"{error}; whether that is more than rounding (near-ties that an op decides, or ops that are fused) could "
            f"not be found out in float64: {reason(why)}; if it is, {likely}; {SKIP}"
        ) from error
    if not is_rounding:
        raise VerificationError(
            f"{error}; stages built anew in float64 agree, and this does not hang on rounding: weights and inputs that "
            f"are off by as much change it far less; please report it with the model; {SKIP}"
        ) from error
    note = (
        f"verified in float64, where stages and whole model agree; in the model's own precision {error}: rounding alone"
    )
    return found, note


def _choice(graph: Graph) -> str:
    """Name a node that chooses among equal values, as runtimes do each in its own way; "" where there is none."""
    chooses = [node for node in graph.nodes if not _CHOOSE.isdisjoint(re.split(r"[.:]+", node.op))]
    if not chooses:
        return ""
    name = printable(shorten(chooses[0].name, _NAME_SHOWN))
    return (
        f"the stages compute something else, or node {name!r} ({chooses[0].op}) chooses among equal values, where "
        f"runtimes differ: make them differ, or take the backend of the model's own family; else please report it with "
        f"the model"
    )


def _call(pair: Pair) -> Mapping[str, Any]:
    """Call the whole model once; what it changes is put back."""
    with pair.backend.reproducible(pair.graph, pair.seed):
        return as_now(pair.whole(pair.inputs[0]))


def _are_alike(pair: Pair, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether the whole model gives the same again."""
    try:
        for name in pair.compared.outputs:
            compare_value(name, one[name], other[name], pair.tolerance)
    except VerificationError:
        return False
    return True


def _widened(pair: Pair) -> Pair:
    """Return the pair of a copy of the model in float64, cut at the same nodes."""
    wide, inputs = whole_in_float64(pair), _inputs_in_float64(pair)
    graph = wide.compared.graph
    if graph.family == ONNX:
        partition = cut_graph(graph, [cut.nodes for cut in pair.cuts])
        wide = replace(wide, oracle=oracle_in_float64(pair, graph, inputs[0]))
    else:
        partition = _cut_alike(pair, graph)
    return replace(wide, cuts=partition.stages, stages=pair.backend.build_in_float64(graph, partition), inputs=inputs)


def whole_in_float64(pair: Pair, noise: Noise | None = None) -> Pair:
    """Return the pair with a copy of the whole model in float64; its stages and inputs are still the narrow ones."""
    if pair.graph.family == ONNX:
        from heterps_compile.frontends.onnx_float64 import graph_in_float64  # noqa: PLC0415 - onnx for its models

        return replace(pair, compared=replace(pair.compared, graph=graph_in_float64(pair.graph, noise)))
    widen = getattr(pair.graph.source, "in_float64", None)
    if widen is None:
        raise InputError(f"the data types of {pair.graph.name!r} are part of it")
    compared = find_comparable(widen(noise), pair.backend.capabilities)
    return replace(pair, compared=replace(compared, rounding=pair.compared.rounding))


def _inputs_in_float64(pair: Pair) -> list[Mapping[str, Any]]:
    if pair.graph.family == ONNX:
        from heterps_compile.frontends.onnx_float64 import arrays_in_float64  # noqa: PLC0415 - onnx for its models

        return [arrays_in_float64(given) for given in pair.inputs]
    from heterps_compile.frontends.torch_float64 import widen_values  # noqa: PLC0415 - torch only for torch models

    return [widen_values(inputs) for inputs in pair.inputs]


def oracle_in_float64(
    pair: Pair, graph: Graph, inputs: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return what runs an ONNX model in float64: ONNX Runtime where it has the kernels, else ONNX's own reference."""
    from heterps_compile.frontends.onnx_float64 import by_definition  # noqa: PLC0415 - onnx only for ONNX models

    whole: Callable[[Mapping[str, Any]], tuple[Any, ...]] = pair.backend.reference(graph)
    try:
        whole(inputs)
    except BackendError:
        return by_definition(graph)
    return whole


def _is_rounding(pair: Pair, wide: Pair, compare: Callable[[Pair], Found]) -> bool:
    """Tell whether the whole model, rounded otherwise, differs from itself about as much as its stages do from it."""
    found = _distances(pair, compare)
    allowed = (pair.tolerance, LESS_EXACT * pair.tolerance)
    noise = (0.0, 0.0)
    for draw in range(1 + _DRAWS):
        other = _noisy(pair, wide, Noise(pair.seed + draw)) if draw else _in_own_precision(pair, wide)
        drawn = _distances(other, compare)
        noise = (max(noise[0], drawn[0]), max(noise[1], drawn[1]))
        if all(far <= max(limit, _MUCH * most) for far, limit, most in zip(found, allowed, noise, strict=True)):
            return True
    return False


def _in_own_precision(pair: Pair, wide: Pair) -> Pair:
    """Return the float64 stages beside the whole model in its own precision: what it rounds, cancelling sums too."""
    dtypes = {name: value.dtype for name, value in pair.inputs[0].items() if hasattr(value, "dtype")}

    def run(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        outputs = pair.whole({name: _cast(value, dtypes.get(name)) for name, value in inputs.items()})
        return tuple(outputs[name] for name in pair.graph.outputs)

    return replace(wide, compared=pair.compared, oracle=run)


def _cast(value: Any, dtype: Any) -> Any:
    if dtype is None or value.dtype == dtype:
        return value
    return value.to(dtype) if hasattr(value, "detach") else value.astype(dtype)


def _noisy(pair: Pair, wide: Pair, noise: Noise) -> Pair:
    """Return the float64 stages beside a whole model whose weights and inputs are off by noise."""
    other = whole_in_float64(pair, noise)
    graph = other.compared.graph
    run = oracle_in_float64(pair, graph, wide.inputs[0]) if graph.family == ONNX else pair.backend.reference(graph)
    return replace(wide, compared=other.compared, oracle=lambda inputs: run(_disturbed(inputs, noise)))


def _disturbed(inputs: Mapping[str, Any], noise: Noise) -> dict[str, Any]:
    """Return inputs of which every number of float64 is off by some noise."""
    generator, found = np.random.default_rng(noise.seed), dict(inputs)
    for name, value in inputs.items():
        if str(getattr(value, "dtype", "")).endswith(_WIDE):
            factors = 1 + noise.size * generator.standard_normal(tuple(value.shape))
            found[name] = value * (as_tensor(factors, name) if hasattr(value, "detach") else factors)
    return found


def _distances(pair: Pair, compare: Callable[[Pair], Found]) -> tuple[float, float]:
    """Return how far outputs and gradients are apart, relative to their scale; infinite where whole numbers differ."""
    loose = replace(pair, compared=replace(pair.compared, rounding=math.inf))
    try:
        found, _ = compare(loose)
    except VerificationError:
        return math.inf, math.inf
    return found.max_rel, found.gradients_max_rel


def _narrow_ops(graph: Graph) -> str:
    """Name ops of an ONNX model that compute in few bits in a copy in float64 too; "" where there are none."""
    if graph.family != ONNX:
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
