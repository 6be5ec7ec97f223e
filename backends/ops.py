"""Which ONNX ops the backends run, at which opsets, which nodes of a model they do not, and which precision.

Left out: ops of PyTorch graphs, which the torch backend runs as PyTorch does, and the others by way of ONNX.
"""

from collections.abc import Sequence

from heterps_compile.cost.memory import ALWAYS
from heterps_compile.cost.precision import FULL, OUT_OF_AUTOCAST
from heterps_compile.errors import BackendError, GraphError, InputError, MissingPackageError, UnsupportedOpError
from heterps_compile.ir.graph import Graph
from heterps_compile.plan.plan_notes import NOT_SAVED

from .contract import Backend, OpName
from .find import BACKENDS, find_backend


def why_unwritable(backend: Backend, graph: Graph) -> str:
    """Say in one sentence why a backend, though it runs a model, cannot write its stages; "" where it can."""
    reason = backend.unwritable(graph)
    return f"the backend {backend.name!r} runs {graph.name!r} and {NOT_SAVED}: {reason}" if reason else ""


def refuse_unsupported(backend: Backend, graph: Graph) -> None:
    """Stop before the long work where a backend cannot run a node.

    Raises:
        UnsupportedOpError: naming op, domain, opset and node, and the built-in backends that run all of the model.
    """
    nodes = backend.unsupported(graph)
    if not nodes:
        return
    others = len(nodes) - 1
    more = f" (and {others} more node{'s' if others > 1 else ''})" if others else ""
    described = nodes[0].describe(backends_that_run(graph, without=backend.name))
    raise UnsupportedOpError(f"the backend {backend.name!r} cannot run {graph.name!r}: {described}{more}")


def refuse_options(backend: Backend, graph: Graph, precision: str, recompute: str) -> None:
    """Stop before the long work where stages of a backend, or of a model, cannot do what is asked of them.

    Raises:
        InputError: saying why.
    """
    refuse_precision(backend, graph, precision)
    refuse_recomputation(backend, recompute)


def refuse_precision(backend: Backend, graph: Graph, precision: str) -> None:
    """Stop before the long work where stages of a backend, or of a model, do not compute in a precision.

    Raises:
        InputError: saying why.
    """
    if precision == FULL:
        return
    if not backend.capabilities.is_module:
        raise InputError(
            f"stages of the backend {backend.name!r} compute in the dtypes of the model; precision {precision!r} is "
            f"for those of PyTorch's own ops: take the backend 'torch' (--backend torch), or leave it out"
        )
    kept_out = next((note for note in getattr(graph.source, "notes", ()) if OUT_OF_AUTOCAST in note), None)
    if kept_out is not None:
        raise InputError(f"precision {precision!r} would reach what the model does not let it reach ({kept_out})")


def refuse_recomputation(backend: Backend, recompute: str) -> None:
    """Stop before the long work where stages are to compute activations again, and those of the backend do not.

    Raises:
        InputError: naming the backends that do.
    """
    if recompute == ALWAYS and not backend.capabilities.recomputes:
        ways = " or ".join(name for name, known in BACKENDS.items() if known.capabilities.recomputes)
        raise InputError(
            f"stages of the backend {backend.name!r} keep their activations from forward to backward; take --backend "
            f"{ways}, or leave --recompute always out"
        )


def refuse_constant_outputs(graph: Graph) -> None:
    """Stop before the long work where an output is a constant.

    Raises:
        GraphError: naming it.
    """
    for name in graph.outputs:
        if name in graph.parameters:
            raise GraphError(
                f"output {name!r} of {graph.name!r} is a constant, not computed by any node; no stage could "
                f"give it: leave it out of the model's outputs"
            )


def backends_that_run(graph: Graph, without: str) -> list[str]:
    """Return the built-in backends that are installed and run every node of a graph; their runtimes are asked."""
    found = []
    for name in BACKENDS:
        try:
            backend = find_backend(name)
            missing = backend.unsupported(graph)
        except (BackendError, MissingPackageError):
            continue  # not installed
        if name == without or graph.family not in backend.families or missing:
            continue
        if not backend.cannot_open(graph):
            found.append(name)
    return found


def backends_that_list_ops() -> tuple[tuple[str, ...], tuple[MissingPackageError, ...]]:
    """Return the built-in backends that can list their ops with what is installed, and what the others lack."""
    found, missing = [], []
    for name in BACKENDS:
        try:
            find_backend(name).declared_ops()
        except MissingPackageError as error:
            missing.append(error)
        else:
            found.append(name)
    return tuple(found), tuple(missing)


def ops_by_backend(names: Sequence[str]) -> dict[OpName, dict[str, tuple[int, ...]]]:
    """Return for every op the backends that run it, with the opsets of its versions there; sorted by op.

    Raises:
        UnknownNameError: for an unknown backend.
        BackendError: where a backend cannot say which ops it runs.
    """
    found: dict[OpName, dict[str, tuple[int, ...]]] = {}
    for name in names:
        declared = find_backend(name).declared_ops()
        if declared is None:
            raise BackendError(f"the backend {name!r} does not say which ops it runs")
        for op, opsets in declared.items():
            found.setdefault(op, {})[name] = tuple(sorted(opsets))
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1].lower())))
