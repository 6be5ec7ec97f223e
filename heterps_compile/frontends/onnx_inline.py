"""Replace the calls of a model's local functions by the nodes of the functions.

Each call of a function makes its nodes once more, so that calls multiply where functions call each other. They are
counted before anything is made:

    calls(f) = sum over callers g of calls(g) * (calls of f inside g),  calls(main graph) = 1
    nodes    = sum over f of calls(f) * (nodes of f)

onnx_ir's inliner tries one suffix after the other where a name is taken, so that k nodes of one name cost k^2 / 2.

Not covered: functions that take graphs as attributes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import InvariantError, PassError
from onnx_ir.passes.common import InlinePass

from heterps_compile.errors import GraphError
from heterps_compile.escape import one_line
from heterps_compile.units import counted, format_bytes

from .onnx_bodies import every_body, every_node
from .onnx_budget import BUDGET, Budget, over_budget
from .onnx_names import name_nodes, quote
from .onnx_rewrite import every_graph

_NUMBER_BYTES = 4
_FEWER_NODES = "export it with larger ops, or in parts"


def inline_functions(model: ir.Model, budget: Budget = BUDGET) -> list[str]:
    """Inline the local functions of a model in place, and drop those without a call; return notes.

    Args:
        model: The model.
        budget: Of the nodes that inlining makes.

    Raises:
        GraphError: a function cannot be inlined, functions call each other in a cycle, a number is over the budget.
    """
    calls = _calls_inside(model)
    for key in [key for key in model.functions if key not in calls]:
        del model.functions[key]
    if not calls:
        return []
    for function in model.functions.values():
        for part in (function.graph, *every_body(function.graph)):
            name_nodes(part)  # nodes without a name would all get one
    _refuse_growth(model, _times_called(model, calls), budget)
    try:
        InlinePass()(model)
    except (InvariantError, PassError, ValueError, KeyError, RuntimeError) as e:
        reason = one_line(str(e))
        raise GraphError(f"the model's local functions cannot be inlined ({reason}); export it without them") from e
    return [f"inlined: {counted(len(calls), 'local function')}"]


def refuse_many_nodes(proto: Any, budget: Budget = BUDGET) -> None:
    """Refuse a file with more nodes, or calls of more functions, than the budget allows, before it is deserialised.

    Raises:
        GraphError: naming the number.
    """
    nodes = 0
    for graph in every_graph(proto.graph):
        nodes += len(graph.node)
        if nodes > budget.nodes:
            raise over_budget("the number of nodes in the model", f"{nodes:,}", f"{budget.nodes:,}", _FEWER_NODES)
    if len(proto.functions) <= budget.functions:
        return
    functions = {(each.domain, each.name, each.overload): each for each in proto.functions}
    called, pending = set[tuple[str, str, str]](), [proto.graph]
    while pending:
        for graph in every_graph(pending.pop()):
            keys = {(node.domain, node.op_type, node.overload) for node in graph.node}
            fresh = {key for key in keys if key in functions and key not in called}
            called |= fresh
            pending += [functions[key] for key in fresh]
    if len(called) > budget.functions:
        name, fix = "the number of local functions that the model calls", "export it without local functions"
        raise over_budget(name, f"{len(called):,}", f"{budget.functions:,}", fix)


def _calls_inside(model: ir.Model) -> dict[ir.OperatorIdentifier, Counter[ir.OperatorIdentifier]]:
    """Find the functions that the model reaches, each with the calls inside it."""
    found: dict[ir.OperatorIdentifier, Counter[ir.OperatorIdentifier]] = {}
    pending = list(_called(model.graph, model))
    while pending:
        key = pending.pop()
        if key not in found:
            found[key] = Counter(_called(model.functions[key].graph, model))
            pending += found[key]
    return found


def _called(graph: ir.Graph, model: ir.Model) -> Iterator[ir.OperatorIdentifier]:
    return (key for node in every_node(graph) if (key := node.op_identifier()) in model.functions)


def _times_called(
    model: ir.Model, calls: Mapping[ir.OperatorIdentifier, Counter[ir.OperatorIdentifier]]
) -> dict[ir.OperatorIdentifier, int]:
    """Count the calls of each function, callers first."""
    try:
        order = tuple(TopologicalSorter(calls).static_order())
    except CycleError as e:
        path = " -> ".join(quote(name) for _, name, _ in e.args[1])
        raise GraphError(f"the model's local functions call each other in a cycle: {path}; export it again") from e
    times = dict.fromkeys(reversed(order), 0) | Counter(_called(model.graph, model))
    for key in reversed(order):
        for callee, count in calls[key].items():
            times[callee] += times[key] * count
    return times


def _refuse_growth(model: ir.Model, times: Mapping[ir.OperatorIdentifier, int], budget: Budget) -> None:
    nodes = size_bytes = 0
    names = Counter[str]()
    for key, count in times.items():
        for node in every_node(model.functions[key].graph):
            nodes += count
            size_bytes += count * _node_bytes(node)
            for name in (f"node {node.name}", *(value.name or "" for value in node.outputs)):
                names[name] += count
    clashes = sum(count * count for count in names.values()) // 2
    most = max(times, key=times.__getitem__)
    what = f"inlining {counted(len(times), 'local function')} makes"
    fix = f"export the model without local functions ({quote(most[1])} is called {times[most]:,} times)"
    for name, value, limit, form in (
        ("number of nodes", nodes, budget.nodes, "{:,}".format),
        ("size of the nodes", size_bytes, budget.inlined_bytes, format_bytes),
        ("number of pairs of equal names", clashes, budget.inlined_clashes, "{:,}".format),
    ):
        if value > limit:
            raise over_budget(f"the {name} that {what}", form(value), form(limit), fix)


def _node_bytes(node: ir.Node) -> int:
    """Compute the bytes of a node without its subgraphs: names, and the values of attributes."""
    names = (node.name, *(value.name for value in (*node.inputs, *node.outputs) if value is not None))
    return sum(len(name or "") for name in names) + sum(_attribute_bytes(a) for a in node.attributes.values())


def _attribute_bytes(attribute: ir.Attr) -> int:
    value = None if attribute.is_ref() else attribute.value
    if attribute.type == ir.AttributeType.TENSOR and value is not None:
        return 0 if isinstance(value, ir.ExternalTensor) else int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    return _NUMBER_BYTES * len(value) if isinstance(value, Sequence) else 0
