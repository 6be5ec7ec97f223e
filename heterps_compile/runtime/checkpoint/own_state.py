"""State of each rank alone in a checkpoint: gradients not sent yet; weights and optimiser of ranks that step alone.

::

    own-0.safetensors     residual:fc.weight          of topk, powersgd: what rank 0 has not sent
                          factor:fc.weight            of powersgd: what all ranks have alike
    own-1.safetensors     weight:fc.weight            of local: the weights of rank 1, between two means
                          optimizer:exp_avg:fc.weight and what its optimiser knows
    own-2.safetensors     table:fc.weight             of adsaga: the gradients that rank 2 remembers
                          mean:fc.weight              and their mean and, pending, what is on its way: all have these

Where a parameter has as many replicas as before, each goes on with its own. Else residuals, and tables, of all are
added up and divided evenly, so that nothing is lost, and replicas that stepped alone begin at the mean of their
weights, which is what the checkpoint has as weights, with the first one's optimiser.

Left out: what rules make of it (``runtime/sync/``).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from heterps_compile.runtime.launch.prepare import Prepared
from heterps_compile.runtime.sync.find import capabilities_of
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.adsaga import Adsaga
from heterps_compile.sync_rules.powersgd import PowerSGD
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL
from heterps_compile.sync_rules.through_servers import Servers
from heterps_compile.sync_rules.topk import TopK

from .format import Checkpoint
from .optimizer_state import OptimizerState, take_state
from .state import RunState

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from heterps_compile.runtime.pipeline.replica_state import SharedState

_FILES = re.compile(r"own-(\d{1,9})\.safetensors", re.ASCII)
_OPTIMIZER = "optimizer"
_ADDED_UP, _ALIKE = ("residual", "table"), ("factor", "mean", "pending")
_KEEP_GRADIENTS = {TopK.name, PowerSGD.name}


def keeps_own_state(prepared: Prepared, start: Checkpoint | None) -> bool:
    """Tell whether ranks of a run write files of their own into checkpoints: all of them, or none.

    Args:
        prepared: The run.
        start: What it goes on from; what that has is kept until it is used.
    """
    layout, rules = prepared.layout, prepared.sync
    now = any(len(layout.ranks_of(i)) > 1 and capabilities_of(rule).keeps_state for i, rule in enumerate(rules))
    return now or (start is not None and bool(_files_of(start.state)))


def _files_of(state: RunState) -> list[str]:
    """Return the files of ranks in a checkpoint, rank by rank."""
    found = [(int(match[1]), name) for name in state.files or () if (match := _FILES.fullmatch(name))]
    return [name for _, name in sorted(found)]


def take_own_state(shared: "SharedState", optimizer: "Optimizer | None") -> "dict[str, Tensor]":
    """Return what this rank has of its own, by kind and name."""
    found = shared.rule_state()
    alone = shared.parameters_alone
    if optimizer is not None and alone:
        known = take_state(optimizer, alone)
        found |= {f"{_OPTIMIZER}:{key}": tensor for key, tensor in known.tensors.items()}
    return found


def restore_own_state(checkpoint: Checkpoint, shared: "SharedState") -> "dict[str, Tensor]":
    """Give the rules of this rank their state, and return that of an optimiser of its own, by kind and name.

    Raises:
        RunError: where a file is damaged, or something would be lost.
    """
    held = shared.places()
    by_rank = [
        checkpoint.tensors([name], lambda key: _parameter_of(key) in held) for name in _files_of(checkpoint.state)
    ]
    of_rules: dict[str, Tensor] = {}
    for key in dict.fromkeys(key for tensors in by_rank for key in tensors):
        place, count = held[_parameter_of(key)]
        found = [tensors[key] for tensors in by_rank if key in tensors]
        if len(found) == count:
            of_rules[key] = found[place]
        elif key.partition(":")[0] in _ADDED_UP:
            total = found[0].clone()
            for other in found[1:]:
                total += other
            of_rules[key] = total / count
        elif key.partition(":")[0] in _ALIKE:
            of_rules[key] = found[0]
    shared.load_rule_state(of_rules)
    alone = shared.parameters_alone
    own = {key.partition(":")[2]: tensor for key, tensor in of_rules.items() if key.startswith(f"{_OPTIMIZER}:")}
    return {key: tensor for key, tensor in own.items() if key.partition(":")[2] in alone}


def _parameter_of(key: str) -> str:
    kind, _, name = key.partition(":")
    return name.partition(":")[2] if kind == _OPTIMIZER else name


def with_own(known: OptimizerState, own: "Mapping[str, Tensor]") -> OptimizerState:
    """Return the state of an optimiser with what a rank had of its own in place of the first replica's."""
    return replace(known, tensors={**known.tensors, **own})


def rules_to_keep(prepared: Prepared) -> tuple[tuple[str, int], ...]:
    """Return rule and replicas of every stage, as a checkpoint keeps them."""
    layout = prepared.layout
    return tuple((rule_text(rule), len(layout.ranks_of(index))) for index, rule in enumerate(prepared.sync))


def own_state_notes(checkpoint: Checkpoint, prepared: Prepared, *, resumes: bool) -> list[str]:
    """Say what becomes of what ranks had of their own, where it does not just go on."""
    name, now, then = checkpoint.name, rules_to_keep(prepared), checkpoint.state.sync
    notes = []
    texts = [list(dict.fromkeys(text for text, replicas in rules if replicas > 1)) for rules in (then, now)]
    if resumes and then and texts[0] and texts[0] != texts[1]:
        goes_on = ", ".join(texts[1]) or "one replica in every stage"
        notes.append(f"replicas agreed by {', '.join(texts[0])} in {name}, and the run goes on with {goes_on}")
    if not _files_of(checkpoint.state):
        return notes
    if not resumes:
        return [f"{name} has a state of each rank (gradients not sent yet, or weights of its own), which is left"]
    widths = [", ".join(str(replicas) for _, replicas in rules) for rules in (then, now)]
    becomes = _becomes({text.partition("(")[0] for text, replicas in then if replicas > 1 and text != Adasum.name})
    if widths[0] != widths[1] and becomes:
        notes.append(f"{name} is of {widths[0]} replicas, the run has {widths[1]}: {becomes}")
    return notes


def _becomes(rules: set[str]) -> str:
    """Say what becomes of what ranks had of their own by the rules of these names; "" for nothing."""
    found = ["gradients that were not sent yet are added up and divided evenly"] if rules & _KEEP_GRADIENTS else []
    found += ["gradients that are remembered are added up and divided evenly"] if Adsaga.name in rules else []
    if rules - _KEEP_GRADIENTS - {USUAL.name, Servers.name, Adsaga.name}:
        found.append("replicas that stepped alone begin at their mean, with the first one's optimiser")
    return "; ".join(found)
