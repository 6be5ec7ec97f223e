"""Take out of a graph what only checks it, and put in line what is wrapped.

Left out: any other simplification; the graph stays the one the user's model was traced to.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from heterps_compile.cost.precision import OUT_OF_AUTOCAST
from heterps_compile.errors import InputError
from heterps_compile.units import counted

from .torch_data_sizes import source_line
from .torch_program import module_path

_aten = torch.ops.aten

# By name, since some came with later releases of PyTorch.
_CHECKS = frozenset(
    {
        "aten._assert_tensor_metadata",
        "aten._assert_scalar",
        "aten._assert_async",
        "aten.sym_constrain_range",
        "aten.sym_constrain_range_for_size",
    }
)
_PURE_ON_NUMBERS: frozenset[Any] = frozenset(
    {operator.ge, operator.gt, operator.le, operator.lt, operator.eq, operator.ne, operator.and_, operator.or_}
    | {operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, torch.sym_not}
    | {_aten.sym_size.int, _aten.sym_numel.default}
)


def is_check(node: fx.Node) -> bool:
    """Say whether a node computes nothing and only checks what torch.export assumed."""
    if node.op == "call_module":
        return node.target == "_guards_fn"
    if node.op != "call_function":
        return False
    packet = str(getattr(node.target, "overloadpacket", ""))
    return packet in _CHECKS or node.target in (torch._assert, torch._check)


def erase_checks(graph: fx.Graph) -> None:
    """Erase checks, and unread nodes that compute on sizes and constants alone."""
    for node in list(graph.nodes):
        if is_check(node):
            graph.erase_node(node)
    plain: set[fx.Node] = set()
    for node in graph.nodes:
        if node.target in _PURE_ON_NUMBERS or (_is_pure(node) and plain.issuperset(node.all_input_nodes)):
            plain.add(node)
    for node in reversed(list(graph.nodes)):
        if node in plain and not node.users:
            graph.erase_node(node)


def _is_pure(node: fx.Node) -> bool:
    """Say whether a node is one of PyTorch's operators that changes nothing and draws nothing."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return False
    return not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags


def autocast_notes(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> list[str]:
    """Say that regions which a model keeps out of autocast are to be put in line, where there are any."""
    parts = [part.graph for module in modules.values() for part in module.modules() if isinstance(part, fx.GraphModule)]
    count = sum(_is_autocast_off(node) for part in (graph, *parts) for node in part.nodes)
    said = f"put in line: {counted(count, 'region')} {OUT_OF_AUTOCAST}, so that stages are for fp32 alone"
    return [said] if count else []


def inline_regions(graph: fx.Graph, modules: dict[str, nn.Module], name: str) -> None:
    """Put in line the regions that torch.export wraps into sub-graphs: ``no_grad``, and ``autocast`` where it is off.

    What enters a ``no_grad`` region is detached, so that nothing in it asks for a gradient, as in the model itself.
    Where ``autocast`` is on, what it converts is known only as it runs: such a region stays wrapped.

    Raises:
        InputError: where a region has a sub-graph in it that stays wrapped.
    """
    for node in [node for node in graph.nodes if _is_grad_mode(node) or _is_autocast_off(node)]:
        _inline(graph, node, modules, name)
    used = {str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")}
    for target in set(modules) - used:
        del modules[target]


def _is_grad_mode(node: fx.Node) -> bool:
    return node.target is getattr(torch.ops.higher_order, "wrap_with_set_grad_enabled", None)


def _is_autocast(node: fx.Node) -> bool:
    return node.target is getattr(torch.ops.higher_order, "wrap_with_autocast", None)


def _is_autocast_off(node: fx.Node) -> bool:
    """Say whether a node is a whole region without autocast.

    torch.export parts one where the grad mode changes inside, and loses that mode: parts stay wrapped.
    """
    if not _is_autocast(node) or node.args[2] is not False:
        return False
    before, after = node.prev, node.next
    while before.op == "get_attr":
        before = before.prev
    while before.target is operator.getitem:
        before = before.prev
    while after.op == "get_attr" or after.target is operator.getitem:
        after = after.next
    return not _is_autocast(before) and not _is_autocast(after)


def _inline(graph: fx.Graph, call: fx.Node, modules: Mapping[str, nn.Module], name: str) -> None:
    with graph.inserting_before(call):
        results = _copied(graph, call, call.args, modules, name)
    for user in list(call.users):
        index = user.args[1]
        assert user.target is operator.getitem and isinstance(index, int)  # noqa: S101, PT018
        made = results[index]
        if not isinstance(made, fx.Node):
            raise InputError(f"{name} returns {made!r} from a torch.no_grad region; return it from outside")
        user.replace_all_uses_with(made)
        graph.erase_node(user)
    _, region, _ = _parts(call, call.args)
    graph.erase_node(call)
    if not region.users:
        graph.erase_node(region)


def _parts(call: fx.Node, args: Sequence[Any]) -> tuple[bool, fx.Node, Sequence[Any]]:
    """Return whether a region switches gradients off, its sub-graph, and its operands."""
    if _is_grad_mode(call):
        enabled, region, *operands = args
        return not enabled, region, operands
    _device, _dtype, _enabled, _cached, region, *operands = args
    return False, region, operands


def _copied(
    graph: fx.Graph, call: fx.Node, args: Sequence[Any], modules: Mapping[str, nn.Module], name: str
) -> Sequence[Any]:
    """Copy the nodes of a region, and of an autocast in it, to where the graph inserts; return what it gives."""
    is_detached, region, operands = _parts(call, args)
    body = modules[str(region.target)]
    assert isinstance(body, fx.GraphModule)  # noqa: S101 - the wrapper's form; this tells the type checker
    inner = dict(body.named_modules())
    env: dict[fx.Node, Any] = {}
    entering = iter(operands)
    *nodes, output = body.graph.nodes
    for node in nodes:
        given = fx.map_arg(node.args, lambda n: env.get(n, n))
        if node.op == "placeholder":
            operand = next(entering)
            env[node] = _detached(graph, operand) if is_detached else operand
        elif _is_autocast_off(node):
            env[node] = _copied(graph, node, given, inner, name)
        elif node.target is operator.getitem and not isinstance(given[0], fx.Node):
            env[node] = given[0][given[1]]
        elif node.op == "call_function":
            if not all(read in env for read in node.all_input_nodes):
                raise InputError(
                    f"{name} has a sub-graph inside a region of torch.no_grad or torch.autocast (node {node.name!r}, "
                    f"{node.target}); move one out of the other"
                )
            made = graph.node_copy(node, lambda n: env[n])
            made.meta = {
                "val": node.meta.get("val"),
                "path": module_path(node) or call.meta.get("path", ""),
                "line": source_line(node) or call.meta.get("line", ""),
                "nn_module_stack": node.meta.get("nn_module_stack"),
            }
            env[node] = made
    results: Sequence[Any] = fx.map_arg(output.args[0], lambda n: env[n])
    return results


def _detached(graph: fx.Graph, operand: Any) -> Any:
    value = operand.meta.get("val") if isinstance(operand, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return operand
    assert isinstance(operand, fx.Node)  # noqa: S101
    if operand.op == "get_attr" and not value.requires_grad:
        return operand
    made = graph.call_function(_aten.detach.default, (operand,))
    made.meta = {"val": value.detach(), "path": operand.meta.get("path", "")}
    return made
