"""Find the tables of a written stage that parameter servers can hold.

The stage is traced symbolically: a weight is a table where every use of it is a look-up. Weights that go by several
names, or that other stages hold as well, stay where they are: a server knows only look-ups.

Left out: which of them are worth serving.
"""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import torch
from torch import fx, nn

from heterps_compile.errors import RunError
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.pipeline.stages import read_stage, read_tied

from .ahead import arguments, trace
from .spec import TableSpec


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
        if plan.stages[index].backend != "torch":
            continue
        weights = next((folder / one.file for one in files if one.file.endswith(".safetensors")), None)
        stage = read_stage(folder, plan, index, torch.device("cpu"))
        if weights is not None and isinstance(stage, nn.Module):
            tables += find_tables(stage, weights, keep=tied)
    holders = Counter(table.name for table in tables)
    return tuple(table for table in tables if holders[table.name] == 1)
