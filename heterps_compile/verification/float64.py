"""Repeat a verification that failed in float64, where rounding is 5e8 times finer than in float32.

What hangs on a near-tie (the k largest of many, a sign, a threshold) differs by rounding alone; it agrees in float64.

An ONNX model is copied with its float32 tensors as float64. ONNX Runtime runs the copy whole if it has kernels for
that. Else the copy runs node by node, and our own op table computes only what agrees with ONNX Runtime in float32 on
the same inputs (``backends/onnxruntime/float64_stage.py``). A PyTorch model is copied and read again.

If no float64 run is possible, outputs are compared once more in the model's own precision. The tolerance is then four
times what the whole model's outputs change if its inputs are off by their rounding, at most a tenth of their scale.

Stages are built anew in float64, and may be right where those in float32 are wrong. So a difference counts as rounding
only where the whole model itself differs about as much: in its own precision from float64, or in float64 with its
weights and inputs off by what rounding to float32 does.

Left out: exported programs, whose data types are part of them; gradients without a float64 run.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

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
_MOST_PERTURBED = 0.1  # of an output's scale: beyond it a comparison says nothing

Found = tuple[Verification, tuple[str, ...]]
"""What a comparison found, and notes on it."""

Run = Callable[[Mapping[str, Any]], tuple[Any, ...]]


class Oracle(NamedTuple):
    """The whole ONNX model in float64.

    Attributes:
        run: Takes the graph inputs by name; returns the graph outputs in order.
        by_table: Types of the ops that our own op table has computed.
    """

    run: Run
    by_table: Collection[str]


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
        wide, by_table = _widened(pair)
        wide = replace(wide, least_scales=scales)
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
        try:
            return _compare_perturbed(pair, compare, calls[0], f"{error}; it does not run in float64 ({reason(why)})")
        except VerificationError:
            raise VerificationError(
                f"{error}; whether that is more than rounding (near-ties that an op decides, or ops that are fused) "
                f"could not be found out in float64: {reason(why)}; if it is, {likely}; {SKIP}"
            ) from error
    if not is_rounding:
        raise VerificationError(
            f"{error}; stages built anew in float64 agree, and this does not hang on rounding: weights and inputs that "
            f"are off by as much change it far less; please report it with the model; {SKIP}"
        ) from error
    table = (
        f" ({', '.join(by_table)} by our own op table, which agrees with ONNX Runtime in float32)" if by_table else ""
    )
    note = (
        f"verified in float64{table}, where stages and whole model agree; in the model's own precision {error}: "
        f"rounding alone"
    )
    return found, note


def _compare_perturbed(
    pair: Pair, compare: Callable[[Pair], Found], outputs: Mapping[str, Any], why: str
) -> tuple[Found, str]:
    """Compare with a tolerance from runs on perturbed inputs.

    Raises:
        VerificationError: if outputs differ by more, or gradients are to be compared too.
    """
    most = 0.0
    for draw in range(_DRAWS):
        with pair.backend.reproducible(pair.graph, pair.seed):
            others = as_now(pair.whole(_disturbed(pair.inputs[0], Noise(pair.seed + draw))))
        names = [name for name in pair.compared.outputs if is_inexact(outputs[name])]
        most = max(most, *(compare_value(name, others[name], outputs[name], math.inf).max_rel for name in names), 0.0)
    tolerance = min(_MUCH * most, _MOST_PERTURBED)
    if pair.is_trained or tolerance <= pair.tolerance:
        raise VerificationError(why)
    found = compare(replace(pair, compared=replace(pair.compared, rounding=tolerance)))
    return found, (
        f"verified with a tolerance of {tolerance:.3g}, {_MUCH:g} times what {_DRAWS} runs of the whole model on "
        f"perturbed inputs differ by, since {why}"
    )


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


def _widened(pair: Pair) -> tuple[Pair, Collection[str]]:
    """Make a float64 copy of the model, cut at the same nodes."""
    wide, inputs = whole_in_float64(pair), _inputs_in_float64(pair)
    graph = wide.compared.graph
    by_table: Collection[str] = ()
    if graph.family == ONNX:
        partition = cut_graph(graph, [cut.nodes for cut in pair.cuts])
        oracle = oracle_in_float64(pair, graph, inputs[0])
        wide, by_table = replace(wide, oracle=oracle.run), oracle.by_table
    else:
        partition = _cut_alike(pair, graph)
    stages = pair.backend.build_in_float64(graph, partition)
    return replace(wide, cuts=partition.stages, stages=stages, inputs=inputs), by_table


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


def oracle_in_float64(pair: Pair, graph: Graph, inputs: Mapping[str, Any]) -> Oracle:
    """Choose a float64 evaluator: ONNX Runtime, or node by node."""
    from heterps_compile.backends.onnxruntime.float64_stage import Float64Stage  # noqa: PLC0415 - onnx for its models

    whole: Run = pair.backend.reference(graph)
    try:
        whole(inputs)
    except BackendError:
        names = tuple(dict.fromkeys(graph.outputs))
        stage = Float64Stage(graph.inputs, names, graph.source.model, "the whole model")

        def run(values: Mapping[str, Any]) -> tuple[Any, ...]:
            made = dict(zip(names, stage(*(values[name] for name in graph.inputs)), strict=True))
            return tuple(made[name] for name in graph.outputs)

        return Oracle(run, stage.by_table)
    return Oracle(whole, {})


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
    """Pair float64 stages with a perturbed model."""
    other = whole_in_float64(pair, noise)
    graph = other.compared.graph
    is_onnx = graph.family == ONNX
    run = oracle_in_float64(pair, graph, wide.inputs[0]).run if is_onnx else pair.backend.reference(graph)
    return replace(wide, compared=other.compared, oracle=lambda inputs: run(_disturbed(inputs, noise)))


def _disturbed(inputs: Mapping[str, Any], noise: Noise) -> dict[str, Any]:
    """Perturb every number of the inputs by noise."""
    generator, found = np.random.default_rng(noise.seed), dict(inputs)
    for name, value in inputs.items():
        if hasattr(value, "dtype") and is_inexact(value):
            size = max(noise.size, 2 * _epsilon(value))
            factors = 1 + size * generator.standard_normal(tuple(value.shape))
            found[name] = _cast(
                value * (as_tensor(factors, name) if hasattr(value, "detach") else factors), value.dtype
            )
    return found


def _epsilon(value: Any) -> float:
    if hasattr(value, "detach"):
        import torch  # noqa: PLC0415 - torch only for its tensors

        return float(torch.finfo(value.dtype).eps)
    return float(np.finfo(value.dtype).eps)


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
