"""Compute the ids of a stage's look-ups before the stage runs, so that all of them are one pull that can begin early.

A stage that sums the rows of one field before it looks up the next would pull field by field. Most ids are columns of
the inputs, picked and reshaped: that part of the stage is cut out, and run first. Ids that depend on rows, or on ops
that are not in the list below (random ones above all, which must not run twice), are not among them and are pulled
when the stage comes to them.

Left out: the rows themselves (``client.py``).
"""

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line

from .look_ups import LOOK_UPS

# What may run twice without anybody noticing.
_METHODS = frozenset(
    {
        "clamp", "contiguous", "expand", "flatten", "int", "long", "narrow", "permute", "repeat", "reshape", "select",
        "split", "squeeze", "t", "to", "transpose", "unbind", "unflatten", "unsqueeze", "view",
    }
)  # fmt: skip
_FUNCTIONS: frozenset[Any] = frozenset(
    {
        getattr, operator.add, operator.floordiv, operator.getitem, operator.lt, operator.mod, operator.mul,
        operator.sub,
        torch.add, torch.cat, torch.clamp, torch.clip, torch.flatten, torch.mul, torch.permute, torch.remainder,
        torch.reshape, torch.select, torch.split, torch.squeeze, torch.stack, torch.sub, torch.transpose, torch.unbind,
        torch.unsqueeze, torch.where,
        torch.ops.aten.add.Tensor, torch.ops.aten.cat.default, torch.ops.aten.remainder.Scalar,
        torch.ops.aten.select.int, torch.ops.aten.slice.Tensor, torch.ops.aten.split.Tensor,
        torch.ops.aten.unbind.int, torch.ops.aten.view.default,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IdsAhead:
    """The part of a stage that makes ids.

    Attributes:
        tables: Names of the tables looked up, in the order of the look-ups.
        compute: Gives their ids, in the same order, from the inputs of the stage.
    """

    tables: tuple[str, ...]
    compute: nn.Module


def ids_ahead(stage: nn.Module, tables: Collection[str]) -> IdsAhead | None:
    """Cut the making of ids out of a stage; None where there is nothing to gain or it cannot be traced.

    Args:
        stage: Before any table was replaced.
        tables: Names of its weights that will be served.
    """
    try:
        graph = trace(stage)
    except RunError:
        return None
    names = dict(stage.named_parameters(remove_duplicate=False))
    same = {id(weight): name for name, weight in names.items() if name in tables}
    found: list[tuple[str, fx.Node]] = []
    for node in graph.nodes:
        given = arguments(node)
        weight, ids = given.get("weight"), given.get("indices", given.get("input"))
        if not isinstance(weight, fx.Node) or weight.op != "get_attr" or not isinstance(ids, fx.Node):
            continue
        name = same.get(id(names.get(str(weight.target))))
        if name is not None and _may_run_twice(ids):
            found.append((name, ids))
    if not found:
        return None
    wanted = _ancestors([ids for _, ids in found])
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "placeholder" or node in wanted:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(tuple(copies[ids] for _, ids in found))
    return IdsAhead(tuple(name for name, _ in found), fx.GraphModule(stage, made))


def trace(stage: nn.Module) -> fx.Graph:
    """Trace a stage symbolically; random numbers of this process stay as they are.

    Raises:
        RunError: where it cannot be traced; why is its cause.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            return fx.Tracer().trace(stage)
    except Exception as error:  # tracing runs the stage's code, which may raise anything
        raise RunError(f"the stage cannot be traced ({one_line(str(error))[:200]})") from error


def arguments(node: fx.Node) -> Mapping[str, Any]:
    """Return the arguments of a look-up by their names; of any other node, nothing."""
    names = LOOK_UPS.get(node.target) if node.op == "call_function" and callable(node.target) else None
    return {} if names is None else dict(zip(names, node.args, strict=False)) | node.kwargs


def _may_run_twice(ids: fx.Node) -> bool:
    return all(
        node.op == "placeholder"
        or (node.op == "call_method" and node.target in _METHODS)
        or (node.op == "call_function" and node.target in _FUNCTIONS)
        for node in _ancestors([ids])
    )


def _ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    """Return the nodes and all that they are made from."""
    found: set[fx.Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found
