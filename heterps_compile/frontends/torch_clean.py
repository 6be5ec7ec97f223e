"""Take out of a graph what only checks it, and put in line what is wrapped.

Left out: any other simplification; the graph stays the one the user's model was traced to.
"""

import operator
from typing import Any

import torch
from torch import fx, nn

from heterps_compile.errors import InputError

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
    """Erase checks, and the arithmetic on numbers that served them alone."""
    loose = []
    for node in reversed(list(graph.nodes)):
        if is_check(node):
            loose += node.all_input_nodes
            graph.erase_node(node)
    while loose:
        node = loose.pop()
        if node._erased or node.users or node.target not in _PURE_ON_NUMBERS:
            continue
        loose += node.all_input_nodes
        graph.erase_node(node)


def inline_grad_modes(graph: fx.Graph, modules: dict[str, nn.Module], name: str) -> None:
    """Put ``torch.no_grad`` regions in line, which torch.export wraps into sub-graphs.

    What enters such a region is detached, so that nothing in it asks for a gradient, as in the model itself.

    Raises:
        InputError: where a region that asks for gradients lies inside one that does not.
    """
    wrapper = getattr(torch.ops.higher_order, "wrap_with_set_grad_enabled", None)
    for node in list(graph.nodes):
        if wrapper is not None and node.op == "call_function" and node.target is wrapper:
            _inline(graph, node, modules, wrapper, name)
    used = {str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")}
    for target in set(modules) - used:
        del modules[target]


def _inline(graph: fx.Graph, call: fx.Node, modules: dict[str, nn.Module], wrapper: object, name: str) -> None:
    enabled, region, *operands = call.args
    assert isinstance(region, fx.Node)  # noqa: S101 - the wrapper's form; this tells the type checker
    body = modules[str(region.target)]
    assert isinstance(body, fx.GraphModule)  # noqa: S101
    path = call.meta.get("path", "")
    env: dict[fx.Node, Any] = {}
    entering = iter(operands)
    results: Any = ()
    with graph.inserting_before(call):
        for node in body.graph.nodes:
            if node.op == "placeholder":
                operand = next(entering)
                env[node] = operand if enabled else _detached(graph, operand)
            elif node.op == "output":
                results = node.args[0]
            elif node.target is wrapper or node.op != "call_function":
                raise InputError(
                    f"{name} switches gradients on inside a region that switches them off "
                    f"(node {call.name!r}); leave out the inner torch.enable_grad"
                )
            else:
                made = graph.node_copy(node, lambda n: env[n])
                made.meta = {"val": node.meta.get("val"), "path": module_path(node) or path}
                env[node] = made
    assert isinstance(results, (tuple, list))  # noqa: S101
    for user in list(call.users):
        index = user.args[1]
        assert user.target is operator.getitem and isinstance(index, int)  # noqa: S101, PT018
        result = results[index]
        made = env[result] if isinstance(result, fx.Node) else result
        if not isinstance(made, fx.Node):
            raise InputError(f"{name} returns {made!r} from a torch.no_grad region; return it from outside")
        user.replace_all_uses_with(made)
        graph.erase_node(user)
    graph.erase_node(call)
    if not region.users:
        graph.erase_node(region)


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
