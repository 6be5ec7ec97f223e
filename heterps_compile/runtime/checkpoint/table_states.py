"""Tables that move between stages and parameter servers when a run goes on, with the state of their optimiser.

The state fits where both sides have the same rule, which the table below has::

    servers    torch        its state                   with these options of its group
    sgd        SGD          none                        momentum 0
    adagrad    Adagrad      sum                         lr_decay 0, eps 1e-10
    adam       SparseAdam   exp_avg, exp_avg_sq         betas (0.9, 0.999), eps 1e-8

Weight decay is another rule: servers decay a row when it is touched, torch decays all of them in every step. So is
``torch.optim.Adam``, in which rows move that no step touches. What does not fit is refused by name.

Left out: servers of another number (``servers/saved_tables.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

from .format import SERVERS_NAME, WEIGHTS, Checkpoint
from .optimizer_state import OptimizerState, read_optimizer, take_state

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from heterps_compile.runtime.servers.optimizers import SparseOptimizer
    from heterps_compile.runtime.servers.spec import TableSpec


@dataclass(frozen=True, slots=True)
class _Rule:
    """An optimiser of torch that does what one of servers does.

    Attributes:
        kind: Its class's name.
        states: Names of its tensors, in the order in which servers keep them.
        options: What its group must say.
    """

    kind: str
    states: tuple[str, ...]
    options: Mapping[str, Any]


_COMMON = {"weight_decay": 0, "maximize": False}
_RULES = {
    "sgd": _Rule("SGD", (), _COMMON | {"momentum": 0}),
    "adagrad": _Rule("Adagrad", ("sum",), _COMMON | {"lr_decay": 0, "eps": 1e-10}),
    "adam": _Rule("SparseAdam", ("exp_avg", "exp_avg_sq"), _COMMON | {"betas": [0.9, 0.999], "eps": 1e-8}),
}


def tables_of_stages(
    checkpoint: Checkpoint, tables: Sequence["TableSpec"], optimizer: "SparseOptimizer", *, with_state: bool
) -> tuple["TableSpec", ...]:
    """Return tables with where a checkpoint without servers has their rows.

    Args:
        checkpoint: To read from.
        tables: Of the servers.
        optimizer: Of the servers.
        with_state: Whether the state of their optimiser is to be taken too.

    Raises:
        RunError: where a table is not in it, or its optimiser has another rule, rate or weight decay.
    """
    known = read_optimizer(checkpoint, [table.name for table in tables], with_tensors=False) if with_state else None
    found = []
    for table in tables:
        stage = checkpoint.find_tensor(WEIGHTS, table.name)
        if stage is None:
            raise RunError(f"{str(checkpoint.path)!r} has no {table.name!r}; it is of another model than the plan's")
        moved = replace(table, weights=stage)
        if with_state:
            if known is None or table.name not in known.options:
                raise RunError(f"{checkpoint.name} knows no optimiser state of {table.shown}; it is of another model")
            rule = _fitting_rule(optimizer.name, optimizer.weight_decay, known.kind, known.options[table.name])
            if rule is None:
                raise _another_rule(checkpoint, table.name, known.kind, optimizer.name)
            _refuse_other_rate(checkpoint, table.name, known.options[table.name], optimizer)
            names = tuple(f"{name}:{table.name}" for name in rule.states)
            there = [checkpoint.find_tensor("optimizer", name) for name in names]
            step, of_step = known.numbers.get(table.name, {}).get("step", 0), f"step:{table.name}"
            path = checkpoint.find_tensor("optimizer", of_step)
            if path is not None:
                step = checkpoint.tensors([path.name], {of_step}.__contains__)[of_step].item()
            if all(path is not None for path in there):  # none where no step has touched the table
                states = tuple(zip([p for p in there if p], names, strict=True))
                moved = replace(moved, states=states, updates=int(step))
        found.append(moved)
    return tuple(found)


def with_tables_of_servers(
    checkpoint: Checkpoint, known: OptimizerState | None, optimizer: "Optimizer", named: "Mapping[str, Tensor]"
) -> OptimizerState | None:
    """Return the state of parameters, with that of tables that were on servers as torch has it.

    Args:
        checkpoint: To read from.
        known: What ``read_optimizer`` found of all of them.
        optimizer: That is to resume, with no state yet.
        named: Its parameters.

    Raises:
        RunError: where a table's optimiser has another rule.
    """
    if not checkpoint.state.servers:
        return known
    from heterps_compile.runtime.servers.saved_tables import (  # noqa: PLC0415 - only for such checkpoints
        read_saved,
        read_table_state,
        refuse_grown,
    )

    saved = read_saved(checkpoint.path / SERVERS_NAME)
    fresh = take_state(optimizer, named)
    moved = [table for table in saved.tables if table.name in fresh.options]
    if not moved:
        return known
    before = known or OptimizerState("")
    tensors, numbers, options = dict(before.tensors), dict(before.numbers), dict(before.options)
    for table in moved:
        of_servers = options.pop(table.name, {})
        refuse_grown(table, checkpoint.path)
        rule = _fitting_rule(saved.optimizer, of_servers.get("weight_decay", 0), fresh.kind, fresh.options[table.name])
        if rule is None or saved.states != len(rule.states):
            raise _another_rule(checkpoint, table.name, saved.optimizer, fresh.kind)
        rates = {name: value for name, value in of_servers.items() if name in ("lr", "initial_lr")}
        options[table.name] = {**fresh.options[table.name], **rates}
        if rule.states:
            arrays = read_table_state(saved, table)
            tensors |= {f"{name}:{table.name}": one for name, one in zip(rule.states, arrays, strict=True)}
            _put_step(table.name, table.updates, fresh, tensors, numbers)
    return OptimizerState(fresh.kind, tensors, numbers, options, before.schedule)


def refuse_other_growth(checkpoint: Checkpoint, patterns: Sequence[str], *, with_state: bool) -> None:
    """Refuse tables that have grown in a checkpoint and grow no more, or the other way round, before anything starts.

    Args:
        checkpoint: To read from.
        patterns: Of the names of tables that are to grow (``--grow-tables``).
        with_state: Whether the run goes on with all that the checkpoint has, or takes its weights alone.

    Raises:
        RunError: naming such a table.
    """
    if not checkpoint.state.servers:
        return
    from heterps_compile.runtime.servers.saved_tables import (  # noqa: PLC0415 - only for such checkpoints
        read_saved,
        refuse_grown,
        refuse_not_grown,
    )

    for table in read_saved(checkpoint.path / SERVERS_NAME).tables:
        grows = any(fnmatchcase(table.name, pattern) for pattern in patterns)
        if not grows:
            refuse_grown(table, checkpoint.path)
        elif table.grown is None or not with_state:
            refuse_not_grown(table.name)


def _put_step(
    name: str, updates: int, fresh: OptimizerState, tensors: "dict[str, Tensor]", numbers: dict[str, Mapping[str, Any]]
) -> None:
    """Say how many steps there were, as a tensor where this kind of optimiser counts in one."""
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    if fresh.kind == _RULES["adam"].kind:
        numbers[name] = {**numbers.get(name, {}), "step": updates}
    else:
        tensors[f"step:{name}"] = torch.tensor(float(updates))


def _fitting_rule(servers: str, weight_decay: float, kind: str, options: Mapping[str, Any]) -> _Rule | None:
    """Return how torch names what both sides do; None where they differ."""
    rule = _RULES.get(servers)
    if rule is None or weight_decay or kind != rule.kind:
        return None
    return rule if all(options.get(name, value) == value for name, value in rule.options.items()) else None


def _another_rule(checkpoint: Checkpoint, name: str, there: str, here: str) -> RunError:
    fits = ", ".join(f"{servers} of servers with {rule.kind}" for servers, rule in _RULES.items())
    return RunError(
        f"{checkpoint.name} has the state of {printable(there)} for the table {printable(name)!r}, which {here} cannot "
        f"go on with: both must have the same rule ({fits}, all else by default and without weight decay); start anew "
        f"from its weights (--weights {printable(str(checkpoint.path))}) in another folder (--checkpoint DIR)"
    )


def _refuse_other_rate(
    checkpoint: Checkpoint, name: str, options: Mapping[str, Any], optimizer: "SparseOptimizer"
) -> None:
    rate = float(options.get("initial_lr", options["lr"]))
    if rate != optimizer.lr:
        raise RunError(
            f"{checkpoint.name} has trained the table {printable(name)!r} with a learning rate of {rate:g}, and "
            f"--server-learning-rate is {optimizer.lr:g}; go on with --server-learning-rate {rate:g}"
        )
