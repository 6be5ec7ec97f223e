"""Give the bodies of control flow a form that can be laid out like the graph around them.

Afterwards every value of a model has a name of its own, whichever body it is in, and initialisers of bodies are
initialisers of the model: they count as its parameters, and every part of the model that needs them finds them.

Left out: what the bodies compute.
"""

from collections.abc import Iterator

import onnx_ir as ir

from .onnx_names import free_name


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs a node holds: the branches of an If, the body of a Loop."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def every_node(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph and, each behind its holder, those of its subgraphs."""
    for node in graph:
        yield node
        for body in subgraphs(node):
            yield from every_node(body)


def every_body(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield the subgraphs of a graph, each before those inside it."""
    for node in graph:
        for body in subgraphs(node):
            yield body
            yield from every_body(body)


def shown_name(node: ir.Node) -> str:
    """Return a node's name for a message, or, where it has none, as in many subgraphs, that of what it makes."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def lift_initializers(graph: ir.Graph) -> None:
    """Name every value of the bodies by a name of its own, and make their initialisers those of the graph; in place."""
    bodies = list(every_body(graph))
    if not bodies:
        return
    taken = {value.name for value in (*graph.inputs, *graph.initializers.values()) if value.name}
    taken |= {value.name for node in graph for value in node.outputs if value.name}
    for body in bodies:
        held = list(body.initializers.values())
        body.initializers.clear()
        for value in (*body.inputs, *(out for node in body for out in node.outputs)):
            if value.name:
                value.name = free_name(value.name, taken)
        for each in held:
            # a body's outputs are its own, so a node hands out what is both
            value = (
                _handed_out(body, each, free_name(each.name or "constant", taken)) if each.is_graph_output() else each
            )
            value.name = free_name(value.name or "constant", taken)
            graph.register_initializer(value)


def _handed_out(body: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """Return what a body's output was as an initialiser; the output is an Identity of it, by this name."""
    held = ir.Value(name=value.name, const_value=value.const_value, type=value.type, shape=value.shape)
    node = ir.node("Identity", [held])
    (out,) = node.outputs
    out.name, out.type, out.shape = name, value.type, value.shape
    body.append(node)
    for place, each in enumerate(body.outputs):
        if each is value:
            body.outputs[place] = out
    value.replace_all_uses_with(held)
    return held
