"""What a trace of a stage tells of its look-ups: which weights are tables, and which ids will be looked up.

A weight is a table where every use of it is a look-up; one that goes by several names, or that other stages hold as
well, stays where it is: a server knows only look-ups.

A stage that sums the rows of one field before it looks up the next would pull field by field. Most ids are columns of
the inputs, picked and reshaped: that part of the stage is cut out and run first, so that all look-ups are one pull that
can begin early. Ids that depend on rows, or on ops that are not in the list below (random ones above all, which must
not run twice), are not among them and are pulled when the stage comes to them.

Left out: the rows themselves (``client.py``), which tables are worth serving, what becomes of a call
(``served_table.py``).
"""

import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows it by

from heterps_compile.backends.find import find_backend
from heterps_compile.errors import RunError
from heterps_compile.escape import one_line
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.pipeline.read_stage import read_stage, read_tied

from .spec import TableSpec

EMBEDDING = ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")
BAG = (
    "weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
    "include_last_offset", "padding_idx",
)  # fmt: skip
_F_EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_F_BAG = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
    "per_sample_weights", "include_last_offset", "padding_idx",
)  # fmt: skip

# Function: names of its arguments, in order.
LOOK_UPS: Mapping[Callable[..., Any], tuple[str, ...]] = {
    torch.embedding: EMBEDDING,
    torch.ops.aten.embedding: EMBEDDING,
    torch.ops.aten.embedding.default: EMBEDDING,
    torch.embedding_bag: BAG,
    torch.ops.aten.embedding_bag: BAG,
    torch.ops.aten.embedding_bag.default: BAG,
    torch.ops.aten.embedding_bag.padding_idx: BAG,
    F.embedding: _F_EMBEDDING,
    F.embedding_bag: _F_BAG,
}

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
class LookupIds:
    """The part of a stage that makes ids.

    Attributes:
        tables: Names of the tables looked up, in the order of the look-ups.
        compute: Gives their ids, in the same order, from the inputs of the stage.
    """

    tables: tuple[str, ...]
    compute: nn.Module


def find_lookup_ids(stage: nn.Module, tables: Collection[str]) -> LookupIds | None:
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
    return LookupIds(tuple(name for name, _ in found), fx.GraphModule(stage, made))


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


def find_tables(stage: nn.Module, weights: Path, *, keep: Collection[str] = ()) -> tuple[TableSpec, ...]:
    """Return the tables of a stage, in the order of its parameters.

    Args:
        stage: As ``read_stage`` gave it, before any table was replaced.
        weights: The stage's safetensors file.
        keep: Names that must stay: what the plan says is replicated.

    Raises:
        RunError: where the stage cannot be traced.
    """
    try:
        graph = trace(stage)
    except RunError as error:
        raise RunError(
            f"{weights.stem}: {error}, so its tables are not known; train without parameter servers"
        ) from error
    otherwise: set[str] = set()
    looked_up: set[str] = set()
    for node in graph.nodes:
        if node.op != "get_attr":
            continue
        is_table = bool(node.users) and all(_looks_up(user, node) for user in node.users)
        (looked_up if is_table else otherwise).add(str(node.target))
    tied = set(getattr(stage, "tied_as", ())) | set(keep)
    return tuple(
        TableSpec(name, weight.shape[0], weight.shape[1], weights, weight.requires_grad)
        for name, weight in stage.named_parameters()
        if name in looked_up - otherwise - tied and weight.dim() == 2 and weight.dtype is torch.float32
    )


def _looks_up(user: fx.Node, weight: fx.Node) -> bool:
    """Say whether a node reads rows of a weight and does nothing else with it."""
    given = arguments(user)
    reads = [name for name, value in given.items() if value is weight]
    return reads == ["weight"] and given.get("max_norm") is None


def find_plan_tables(folder: Path, plan: Plan) -> tuple[TableSpec, ...]:
    """Return the tables of all stages of a written folder; every rank finds the same.

    Stages that PyTorch does not run have none. What several stages hold, trained or frozen, stays in them.

    Args:
        folder: The folder, its hashes checked.
        plan: Its plan.

    Raises:
        BackendError: where a stage cannot be read.
        RunError: where one cannot be traced.
    """
    tied = {name for held in read_tied(folder, plan).values() for _, name in held}
    tables: list[TableSpec] = []
    for index, files in enumerate(plan.artifacts):
        if not find_backend(plan.stages[index].backend).capabilities.is_module:
            continue
        weights = next((folder / one.file for one in files if one.file.endswith(".safetensors")), None)
        stage = read_stage(folder, plan, index, torch.device("cpu"))
        if weights is not None and isinstance(stage, nn.Module):
            tables += find_tables(stage, weights, keep=tied)
    holders = Counter(table.name for table in tables)
    return tuple(table for table in tables if holders[table.name] == 1)
