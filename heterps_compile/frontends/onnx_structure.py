"""Bring an ONNX model into the one form the rest works on, and tell which of its nodes matter.

After :func:`normalize`: no local functions, every op known, nodes in a topological order with names of their own,
no initialiser among the inputs, no large constant among the nodes, every value defined, no size negative, tensors that
an exporter merged apart.

Left out: folding constants (ONNX Runtime does it when a stage is opened), rewriting ops to newer opsets.
"""

import difflib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from heterps_compile.errors import GraphError, UnsupportedOpError
from heterps_compile.escape import one_line
from heterps_compile.progress import check
from heterps_compile.units import counted

from .onnx_bodies import every_node, lift_initializers, subgraphs
from .onnx_budget import refuse_long_splits
from .onnx_inline import inline_functions
from .onnx_merged import separate_merged
from .onnx_names import describe, name_nodes, op_name, quote, quote_some

RANDOM_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Sampling"}
)
"""Ops whose outputs differ from run to run, in whatever domain."""

_LARGE_ELEMENTS = 257  # 1 KiB of float32 stays in its node
_DEFAULT_DOMAINS = ("", "ai.onnx")
_UNKNOWN = ("", "?", "-1", "None")  # names that paddle2onnx and others write for a dimension without one


def normalize(model: ir.Model) -> list[str]:
    """Normalise a model in place; return notes on what a user should know.

    Raises:
        GraphError: a cycle, an undefined value, a local function that cannot be inlined, a number over the budget.
        UnsupportedOpError: an op or domain that nobody knows.
    """
    notes = inline_functions(model)
    graph = model.graph
    if any(value.is_initializer() for value in graph.inputs):
        inputs = [value for value in graph.inputs if not value.is_initializer()]
        graph.inputs.clear()
        graph.inputs.extend(inputs)
    _check_values_defined(graph)
    _check_ops_known(graph)
    _forget_unknown_sizes(graph)
    refuse_long_splits(graph)
    _sort(graph)
    held = set(graph.initializers)
    # some exporters write every weight as a Constant node; as initialisers they need not be copied with the nodes
    try:
        LiftConstantsToInitializersPass(size_limit=_LARGE_ELEMENTS)(model)
    except TypeError as e:
        raise GraphError(f"a Constant node holds no tensor ({one_line(str(e))}); export the model again") from e
    literals = frozenset(graph.initializers.keys() - held)
    lift_initializers(graph)
    name_nodes(graph)
    return [*notes, *separate_merged(model, literals)]


def _forget_unknown_sizes(graph: ir.Graph) -> None:
    """Take the number or name from dimensions that exporters mark as unknown with -1 or ``?``."""
    made = (value for node in every_node(graph) for value in node.outputs)
    held = (value for inner in (graph, *graph.subgraphs()) for value in inner.inputs)
    for value in (*held, *made):
        if value.shape is not None and any(map(_is_unknown, value.shape)):
            value.shape = ir.Shape([None if _is_unknown(dim) else dim for dim in value.shape])


def _is_unknown(dim: "int | ir.SymbolicDim") -> bool:
    return dim < 0 if isinstance(dim, int) else dim.value in _UNKNOWN


def release_constants(graph: ir.Graph, names: frozenset[str]) -> None:
    """Make initialisers of the tensors in ``Constant`` nodes that bear some names, in place."""
    for node in list(graph):
        made = node.outputs[0]
        if node.op_type == "Constant" and node.domain == "" and made.name in names and "value" in node.attributes:
            tensor = node.attributes["value"].as_tensor()
            value = ir.Value(name=made.name, shape=made.shape, type=made.type, const_value=tensor)
            made.name = None
            graph.register_initializer(value)
            made.replace_all_uses_with(value)
            graph.remove(node, safe=True)


def _check_values_defined(graph: ir.Graph) -> None:
    for node in every_node(graph):
        for value in node.inputs:
            if value is not None and not _is_defined(value):
                raise GraphError(
                    f"{describe(node)} reads {quote(value.name)}, which no node, input or initializer makes; "
                    f"export the model again"
                )
    for held in (graph, *graph.subgraphs()):
        for value in held.outputs:
            if not _is_defined(value):
                raise GraphError(f"output {quote(value.name)} is made by no node; export the model again")


def _is_defined(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _check_ops_known(graph: ir.Graph) -> None:
    checked: set[tuple[str, str]] = set()
    for node in every_node(graph):
        key = (node.domain, node.op_type)
        if key not in checked:
            check()
            _check_op_known(node, graph.opset_imports)
            checked.add(key)


def _check_op_known(node: ir.Node, imports: Mapping[str, int]) -> None:
    where = describe(node)
    if node.domain in _DEFAULT_DOMAINS:
        domain, opset = "", next((imports[d] for d in _DEFAULT_DOMAINS if d in imports), None)
    else:
        domain, opset = node.domain, imports.get(node.domain)
    shown = quote(domain or "ai.onnx")
    known = _known_ops()
    if domain not in known:
        raise UnsupportedOpError(
            f"{where} is of the domain {shown}, opset {opset}, which neither ONNX nor ONNX Runtime knows (known: "
            f"{', '.join(d or 'ai.onnx' for d in sorted(known))}); export the model without custom ops"
        )
    if opset is None:
        raise GraphError(f"{where} is of the domain {shown}, for which the model imports no opset; export it again")
    newest = onnx.defs.onnx_opset_version()
    if domain == "" and opset > newest:
        raise UnsupportedOpError(
            f"{where}: the model imports opset {opset}, and the installed onnx {onnx.__version__} knows {newest} at "
            f"most; install a newer onnx or export at opset {newest}"
        )
    versions = known[domain].get(node.op_type, ())
    if min(versions, default=opset + 1) > opset:
        near = difflib.get_close_matches(node.op_type, known[domain], n=1, cutoff=0.5)
        hint = f"; the nearest is {near[0]!r}" if near and near[0] != node.op_type else ""
        since = f"; it came with opset {min(versions)}" if versions else ""
        raise UnsupportedOpError(
            f"{where}: the domain {shown} has no such op at opset {opset}{since}{hint}; export the model again"
        )
    if domain == "" and onnx.defs.has(node.op_type, domain):
        schema = onnx.defs.get_schema(node.op_type, opset, domain)
        if schema.deprecated:
            raise UnsupportedOpError(
                f"{where}: {op_name(node)} is withdrawn since opset {schema.since_version}, and the model imports "
                f"{opset}; export it at opset {schema.since_version - 1}"
            )


@cache
def _known_ops() -> dict[str, dict[str, tuple[int, ...]]]:
    """Return domain -> op -> the opsets that brought it: ONNX's own, and those ONNX Runtime registers beside them."""
    registered = import_module("onnxruntime.capi.onnxruntime_pybind11_state").get_all_operator_schema()
    found: dict[str, dict[str, list[int]]] = {}
    for schema in (*onnx.defs.get_all_schemas_with_history(), *registered):
        if schema.domain != "com.ms.internal.nhwc":  # ONNX Runtime's own layouts, never in a file
            found.setdefault(schema.domain, {}).setdefault(schema.name, []).append(schema.since_version)
    return {domain: {op: tuple(v) for op, v in ops.items()} for domain, ops in found.items()}


def _sort(graph: ir.Graph) -> None:
    try:
        graph.sort()
    except ValueError as e:
        cycle = _find_cycle(graph)
        path = " -> ".join(describe(node) for node in (*cycle[:3], *cycle[3:][-1:]))
        raise GraphError(
            f"the graph has a cycle of {counted(len(cycle), 'node')}: {path}; export the model again"
        ) from e


def _find_cycle(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes of one cycle, in the order of their edges; walks without recursion."""
    done: set[ir.Node] = set()
    for start in graph:
        trail: list[ir.Node] = []
        on_trail: dict[ir.Node, int] = {}
        stack: list[tuple[ir.Node, bool]] = [(start, False)]
        while stack:
            node, leaving = stack.pop()
            if leaving:
                done.add(node)
                del on_trail[trail.pop()]
            elif node in on_trail:
                return trail[on_trail[node] :][::-1]
            elif node not in done:
                on_trail[node] = len(trail)
                trail.append(node)
                stack.append((node, True))
                producers = (value.producer() for value in reads(node, graph))
                stack.extend((p, False) for p in producers if p is not None and p not in done)
    return []


@contextmanager
def quiet() -> Iterator[None]:
    """Silence onnx_ir's warnings about values it does not find: our own checks name the fault, if it is one."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def reads(node: ir.Node, graph: ir.Graph) -> list[ir.Value]:
    """Return the values of ``graph`` that a node reads: its inputs in order, then what its subgraphs capture."""
    values = [value for value in node.inputs if value is not None]
    captured = {
        value: None
        for body in subgraphs(node)
        for inner in every_node(body)
        for value in inner.inputs
        if value is not None and value.graph is graph
    }
    values += [value for value in captured if value not in values]
    return values


@dataclass(frozen=True, slots=True)
class Roles:
    """What every node of a normalised graph is for.

    Attributes:
        computed: The nodes whose results depend on the inputs (or on chance) and reach an output, as pairs of
            index and node, in order.
        reads: What each of them reads.
        constants: Values that are the same in every run: initialisers, and what deterministic nodes make of them.
        dead: The nodes whose results reach no output.
        random: The computed nodes whose results depend on chance.
    """

    computed: tuple[tuple[int, ir.Node], ...]
    reads: Mapping[ir.Node, list[ir.Value]]
    constants: frozenset[ir.Value]
    dead: tuple[ir.Node, ...]
    random: tuple[ir.Node, ...]


def find_roles(graph: ir.Graph) -> Roles:
    """Tell computed, constant and dead nodes apart; O(nodes + edges).

    Raises:
        GraphError: where no node's result depends on the inputs, so that there is nothing to place.
    """
    nodes = list(graph)
    read = {node: reads(node, graph) for node in nodes}
    constants = set(graph.initializers.values())
    random = {node for node in nodes if is_random(node)}
    for node in nodes:
        if node not in random and all(value in constants for value in read[node]):
            constants.update(node.outputs)
    wanted = set(graph.outputs)
    live: set[ir.Node] = set()
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            live.add(node)
            wanted.update(read[node])
    computed = tuple(
        (i, node) for i, node in enumerate(nodes) if node in live and not constants.issuperset(node.outputs)
    )
    if not computed:
        outputs = quote_some(value.name or "" for value in graph.outputs)
        raise GraphError(f"no node computes the outputs ({outputs}) from the inputs; there is nothing to place")
    return Roles(
        computed,
        {node: read[node] for _, node in computed},
        frozenset(constants),
        tuple(node for node in nodes if node not in live),
        tuple(node for _, node in computed if node in random),
    )


def is_random(node: ir.Node) -> bool:
    """Say whether a node, or one in its subgraphs, draws random numbers."""
    inner = (n for body in subgraphs(node) for n in every_node(body))
    return any(drops(n) or n.op_type in RANDOM_OPS for n in (node, *inner))


def drops(node: ir.Node) -> bool:
    """Say whether a node is a Dropout in training mode, or one whose mode is not known."""
    if node.op_type != "Dropout" or len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    flag = ir.convenience.get_const_tensor(node.inputs[2])
    return flag is None or bool(flag.numpy().any())
