"""Replace an If by its branch, if sizes that the model fixes decide which.

::

    s = Shape(x)  c = Less(s, 8)                x is [4, T]: c is true at every T
    y = If(c) {p = Neg(x)} {q = Abs(x)}    ->   p = Neg(x)  y = p

The batch of the model can then be opened (``open_batch/``): another batch takes the branch of the batch that it fixes.
Sizes that the model only states of values inside decide nothing, since they may be wrong.

Not covered: an If that free dimensions decide. It stays, so that its stage holds at every size.
"""

from collections import deque

import onnx_ir as ir

from heterps_compile.units import counted

from .onnx_bodies import every_body, shown_name, subgraphs
from .onnx_names import name_nodes, quote_some
from .onnx_shapes import infer
from .onnx_structure import find_roles
from .open_batch.known_values import KnownValues

_BRANCHES = ("then_branch", "else_branch")


def fold_branches(model: ir.Model) -> list[str]:
    """Fold the decided Ifs of a normalised model in place; return a note that names them; O(nodes)."""
    graph, folded = model.graph, list[str]()
    pending = deque(node for node in graph if _is_if(node))
    if not pending:
        return []
    known = KnownValues(model, find_roles(graph), infer(model, {}).values, trusts_model=False)
    while pending:
        node = pending.popleft()
        is_true = _decide(node, known)
        if is_true is None:
            continue
        taken = _BRANCHES[not is_true]
        pending.extendleft(filter(_is_if, _fold(graph, node, taken)))
        folded.append(f"{shown_name(node)}: {taken}")
    name_nodes(graph)
    return [f"decided by sizes that the model fixes: {counted(len(folded), 'If')} ({quote_some(folded)})"] * bool(
        folded
    )


def _is_if(node: ir.Node) -> bool:
    """Check whether a node is an If whose branches return as much as it does."""
    bodies = list(subgraphs(node)) if node.op_type == "If" and not node.domain else []
    return len(bodies) == len(_BRANCHES) and all(len(body.outputs) == len(node.outputs) for body in bodies)


def _decide(node: ir.Node, known: KnownValues) -> bool | None:
    """Compute a condition that shapes and constants decide; None for another."""
    condition = node.inputs[0] if node.inputs else None
    try:
        array = None if condition is None else known.constant(condition)
    except RecursionError:  # a chain of very many constants
        return None
    return None if array is None or array.size != 1 else bool(array.reshape(-1)[0])


def _fold(graph: ir.Graph, node: ir.Node, taken: str) -> list[ir.Node]:
    """Put the nodes of a branch in the place of its If; return them."""
    branch = node.attributes[taken].as_graph()
    results, nodes = list(branch.outputs), list(branch)
    branch.outputs.clear()
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    for body in subgraphs(node):
        _empty(body)
    for made, inner in zip(node.outputs, results, strict=True):
        if made.is_graph_output():  # which keeps its name
            named = ir.node("Identity", [inner])
            named.outputs[0].name, made.name = made.name, None
            named.outputs[0].type, named.outputs[0].shape = made.type, made.shape
            graph.insert_before(node, named)
            inner = named.outputs[0]  # noqa: PLW2901 - the same value under the name of the output
        made.replace_all_uses_with(inner, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return nodes


def _empty(body: ir.Graph) -> None:
    """Remove all nodes of a body, so that values around it are not read there any more."""
    bodies = [body, *every_body(body)]
    for each in bodies:
        each.outputs.clear()
    for each in reversed(bodies):  # readers before what they read
        each.remove(list(each), safe=True)
