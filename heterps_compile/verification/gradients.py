"""Compare gradients of every parameter and every floating input: the stages' with those of the model as it is written.

Hooks and custom backwards of the model's owner are active in it; stages that lack them have other gradients.

Left out: stages that do not train; what tracing is known to drop (``frontends/torch_backwards.py`` refuses that).
"""

from collections.abc import Callable, Mapping
from typing import Any

from heterps_compile.backends.borders import as_tensor
from heterps_compile.backends.find import differentiating_backend
from heterps_compile.backends.trained import trained_modules
from heterps_compile.errors import BackendError, HeterpsError, VerificationError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import TORCH, Graph
from heterps_compile.ir.partition import cut_graph
from heterps_compile.runtime.in_process import run_stages
from heterps_compile.runtime.kept_state import written_by_nodes
from heterps_compile.runtime.verify import Difference, compare_gradients, compare_value, largest

from .pair import SKIP, Pair, reason

LESS_EXACT = 10.0
"""How much further apart than outputs gradients may be: each is a sum over outputs, samples and places."""

_TRACED = (
    "gradients are held against the traced model that was handed in; what tracing dropped of the module before (custom "
    "backwards, hooks) cannot be seen: hand in the module itself to have that compared"
)
_TRANSLATED = (
    "gradients are held against those of the whole model as the backend torch runs it, since ONNX Runtime has none"
)

_LOOK_FOR = "look for a hook or a custom backward that the model has only where a gradient is asked for"

_Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def compare_training(pair: Pair) -> tuple[Difference, tuple[str, ...]]:
    """Compare the gradients of one step; return notes on what they are held against, or why they are not compared.

    Raises:
        VerificationError: naming the parameter or input whose gradient differs, and by how much.
        BackendError: where the whole model cannot be differentiated.
    """
    from heterps_compile.runtime.gradients import (  # noqa: PLC0415 - torch only for training
        Directions,
        Parameters,
        differentiate,
    )

    graph = pair.graph
    modules = trained_modules(pair.backend, pair.stages)
    if modules is None:
        return Difference(), ()  # the plan has a note on stages that do not train
    try:
        run, owner, notes = _whole(pair)
    except HeterpsError as error:
        return Difference(), (f"gradients are not compared: {reason(error)}",)
    names = {parameter.name: parameter.storage for parameter in graph.parameters.values()}
    directions = Directions(pair.compared.outputs, pair.seed)
    inputs = {name: _as_tensor(name, value) for name, value in pair.inputs[0].items()}
    with pair.backend.reproducible(graph, pair.seed):
        try:
            theirs = differentiate(run, inputs, Parameters.of_modules([owner], names), directions)
        except BackendError as error:
            raise BackendError(
                f"{graph.name!r} {reason(error)}; a model that has no gradients is planned with --mode inference "
                f"(mode='inference'), and {SKIP}"
            ) from error
    with pair.backend.reproducible(graph, pair.seed):
        own = Parameters.of_modules(modules, names)
        try:
            ours = differentiate(lambda given: pair.staged(given, modules), inputs, own, directions)
        except BackendError as error:
            raise VerificationError(f"the staged model {reason(error)}, and the whole model can be") from error
    for name in pair.compared.outputs:
        what, least = f"output {name!r} in training", pair.least_scales.get(name, 0.0)
        compare_value(what, ours.outputs[name], theirs.outputs[name], pair.tolerance, least_scale=least)
    tolerance, scale = LESS_EXACT * pair.tolerance, largest({**theirs.parameters, **theirs.inputs})
    try:
        found = compare_gradients("parameter", ours.parameters, theirs.parameters, tolerance, scale)
        found = found.joined(compare_gradients("input", ours.inputs, theirs.inputs, tolerance, scale))
    except VerificationError as error:
        raise VerificationError(f"{error}; the outputs agree", likely=_likely_cause(graph)) from error
    return found, notes


def _likely_cause(graph: Graph) -> str:
    """Say what gives a model other gradients than its stages where the outputs agree."""
    changed = sorted(name for name in written_by_nodes(graph) if graph.parameters[name].kind == "weight")
    if not changed:
        return _LOOK_FOR
    return (
        f"its forward changes the parameter {printable(changed[0])!r} in place, and tracing may make other gradients "
        f"of that: change it outside of the forward, after a step of the optimiser; or {_LOOK_FOR}"
    )


def _whole(pair: Pair) -> tuple[_Run, Any, tuple[str, ...]]:
    """Return the whole model to differentiate, the module that has its parameters, and a note on what it is.

    Raises:
        HeterpsError: where there is none that PyTorch can differentiate.
    """
    graph = pair.graph
    if graph.family == TORCH:
        from torch.fx import GraphModule  # noqa: PLC0415 - torch only for torch models

        owner = graph.source.whole()
        return pair.whole, owner, (_TRACED,) if isinstance(owner, GraphModule) else ()
    one = cut_graph(graph, [range(len(graph.nodes))])
    (stage,) = modules = differentiating_backend().build(graph, one)

    return lambda inputs: run_stages(one.stages, modules, inputs, graph.outputs), stage, (_TRANSLATED,)


def _as_tensor(name: str, value: Any) -> Any:
    return as_tensor(value, name) if hasattr(value, "dtype") else value
