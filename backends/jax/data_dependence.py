"""What of a model jax cannot run though the table has its ops: shapes that depend on elements, masks of dropout.

jax must know shapes before it runs. A shape or axis is known where it is made of constants and of shapes of inputs.

Left out: inputs of the model that shapes depend on; the stage takes those as known ones.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.escape import printable, shorten

from .table import MAKES_KNOWN, domain_of, find_op, opset_of

_NAME_SHOWN = 80
_TRAINING = 2  # the place of training_mode among the inputs of Dropout


def find_dependent(
    nodes: Sequence[ir.Node], opsets: Mapping[str, int], constants: Collection[str]
) -> list[UnsupportedNode]:
    """Give the nodes that take a shape or axis from what others compute, and those that drop at random.

    Args:
        nodes: In topological order, each with a row in the table.
        opsets: By domain.
        constants: Names of what no node in the list makes, inputs excepted.
    """
    return [*_drops(nodes, opsets), *_shapes(nodes, opsets, constants)]


def _drops(nodes: Sequence[ir.Node], opsets: Mapping[str, int]) -> Iterator[UnsupportedNode]:
    for node in nodes:
        value = node.inputs[_TRAINING] if len(node.inputs) > _TRAINING else None
        if (domain_of(node), node.op_type) == ("", "Dropout") and value is not None:
            flag = ir.convenience.get_const_tensor(value)
            if flag is not None and bool(flag.numpy()):
                yield _unsupported(node, opsets, "it drops at random, and an ONNX model has no key for that")


def _shapes(
    nodes: Sequence[ir.Node], opsets: Mapping[str, int], constants: Collection[str]
) -> Iterator[UnsupportedNode]:
    wanted: dict[str, ir.Node] = {}
    for node in reversed(nodes):
        row = find_op(domain_of(node), node.op_type, opset_of(opsets, domain_of(node)))
        by = next((wanted[value.name or ""] for value in node.outputs if value.name in wanted), None)
        if row is None or (by is not None and row.name in MAKES_KNOWN):
            continue
        if by is not None and not row.keeps:
            maker = f"node '{printable(shorten(node.name or '', _NAME_SHOWN))}' ({row.name})"
            reason = f"it takes a shape or axis from what {maker} computes, and jax must know shapes before it runs"
            yield _unsupported(by, opsets, reason)
            continue
        for place, value in enumerate(node.inputs):
            if value is None or value.is_initializer() or value.name in constants:
                continue
            if by is not None or place in row.known:
                wanted.setdefault(value.name or "", by or node)


def _unsupported(node: ir.Node, opsets: Mapping[str, int], reason: str) -> UnsupportedNode:
    domain = domain_of(node)
    return UnsupportedNode(node.name or "", node.op_type, domain or "ai.onnx", opset_of(opsets, domain), reason)
