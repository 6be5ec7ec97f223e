"""What of a model jax cannot run though the table has its ops: shapes that depend on elements, masks of dropout.

jax must know shapes before it runs. A shape or axis is known where it is made of constants and of shapes of inputs.

Left out: inputs of the model that shapes depend on; the stage takes those as known ones.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from heterps_compile.backends.onnx_stage.nodes import domain_of, opset_of
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.onnx_bodies import shown_name, subgraphs

from .table import MAKES_KNOWN, find_op

_NAME_SHOWN = 80
_TRAINING = 2  # the place of training_mode among the inputs of Dropout


def find_dependent(
    nodes: Sequence[ir.Node], opsets: Mapping[str, int], constants: Collection[str]
) -> list[UnsupportedNode]:
    """Return the nodes that take a shape or axis from what others compute, and those that drop at random.

    Args:
        nodes: In topological order, each with a row in the table.
        opsets: By domain.
        constants: Names of what no node in the list makes, inputs excepted.
    """
    shapes = _Shapes(opsets, constants)
    shapes.search(nodes)
    return [*_drops(nodes, opsets), *shapes.faults.values()]


def _drops(nodes: Sequence[ir.Node], opsets: Mapping[str, int]) -> Iterator[UnsupportedNode]:
    for node in nodes:
        value = node.inputs[_TRAINING] if len(node.inputs) > _TRAINING else None
        if (domain_of(node), node.op_type) == ("", "Dropout") and value is not None:
            flag = ir.convenience.get_const_tensor(value)
            if flag is not None and bool(flag.numpy()):
                yield _unsupported(node, opsets, "it drops at random, and an ONNX model has no key for that")
        for body in subgraphs(node):
            yield from _drops(list(body), opsets)


class _Shapes:
    """Walks from the last node to the first, with what is wanted known before the stage runs."""

    def __init__(self, opsets: Mapping[str, int], constants: Collection[str]) -> None:
        self.opsets, self.constants = opsets, constants
        self.faults: dict[int, UnsupportedNode] = {}
        self._wanted: dict[str, ir.Node] = {}

    def search(self, nodes: Iterable[ir.Node]) -> None:
        """Note the nodes, those of subgraphs too, that take a shape from what others compute."""
        for node in reversed(list(nodes)):
            row = find_op(domain_of(node), node.op_type, opset_of(self.opsets, domain_of(node)))
            by = next((self._wanted[value.name or ""] for value in node.outputs if value.name in self._wanted), None)
            if row is None or (by is not None and row.name in MAKES_KNOWN):
                continue
            bodies = list(subgraphs(node))
            if by is not None and not row.keeps and row.name != "If":
                self._refuse(by, node)
                continue
            if bodies:
                self._search_bodies(node, bodies, by)
                continue
            for place, value in enumerate(node.inputs):
                if by is not None or place in row.known:
                    self._want(value, by or node)

    def _search_bodies(self, node: ir.Node, bodies: Sequence[ir.Graph], by: ir.Node | None) -> None:
        if by is not None:  # a branch hands on what is wanted of it
            self._want(node.inputs[0], by)
            for place, made in enumerate(node.outputs):
                if made.name in self._wanted:
                    for body in bodies:
                        self._want(body.outputs[place], by)
        is_loop = node.op_type == "Loop"
        if is_loop and len(bodies[0].outputs) - 1 > len(node.inputs[2:]):  # it collects
            for value in (*node.inputs[:2], bodies[0].outputs[0]):
                self._want(value, node)
        for body in bodies:
            before = -1
            while len(self._wanted) > before:
                before = len(self._wanted)
                self.search(body)
                for place, formal in enumerate(body.inputs):
                    if formal.name in self._wanted:
                        self._want_formal(node, body, place, self._wanted[formal.name or ""])

    def _want_formal(self, node: ir.Node, body: ir.Graph, place: int, by: ir.Node) -> None:
        """Want what an input of a loop's body comes from: outside, and the trip before."""
        if node.op_type != "Loop":
            self._refuse(by, node)
            return
        if place < len(node.inputs):
            self._want(node.inputs[place], by)
        if place:
            self._want(body.outputs[place - 1], by)

    def _want(self, value: ir.Value | None, by: ir.Node) -> None:
        if value is None or value.is_initializer() or value.name in self.constants:
            return
        self._wanted.setdefault(value.name or "", by)

    def _refuse(self, by: ir.Node, maker: ir.Node) -> None:
        shown = f"node '{printable(shorten(shown_name(maker), _NAME_SHOWN))}' ({maker.op_type})"
        if by.op_type == "Loop":
            reason = f"it collects a value of every trip, and how often it runs is told by what {shown} computes"
        else:
            reason = f"it takes a shape or axis from what {shown} computes"
        self.faults.setdefault(
            id(by), _unsupported(by, self.opsets, f"{reason}, and jax must know shapes before it runs")
        )


def _unsupported(node: ir.Node, opsets: Mapping[str, int], reason: str) -> UnsupportedNode:
    domain = domain_of(node)
    return UnsupportedNode(node.name or "", node.op_type, domain or "ai.onnx", opset_of(opsets, domain), reason)
