"""Chains of weights that see one block of the data each: what ``local(rule=mc)`` trains beside the one that sees all.

Ding et al., arXiv 2002.07454: every batch is stepped on twice, by the chain of all blocks and by the one of its block::

    step      0     1     2     3     4     5         blocks of 2 steps, 3 blocks
    all       x  -> x  -> x  -> x  -> x  -> x
    alone     y1 -> y1    y2 -> y2    y3 -> y3        y1 goes on where the first block comes again

All chains begin at one model. A chain has the weights, buffers and states of the optimiser that it needs to go on, and
the stages hold them while it steps; learning rates are those of the step, whichever chain it is.

Between two averages a rank's weights of a chain are its own. So every rank writes its chains into a checkpoint, and a
run goes on from it with the same replicas and cuts.

Left out: which of both a predictor takes in (``block_models.py``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.checkpoint.format import Checkpoint
from heterps_compile.runtime.checkpoint.optimizer_state import OptimizerState, put_state, take_state
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.rule import SyncRule

from .block_models import BlockModels
from .sync_of_run import block_rule
from .weight_average import others_in_place

if TYPE_CHECKING:
    from torch.optim import Optimizer

_NAME = "chains-{rank}.safetensors"
_FILES = re.compile(r"chains-\d{1,9}\.safetensors", re.ASCII)
_WEIGHT, _OPTIMIZER, _NUMBER = "weight", "optimizer", "number"
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


class BlockChains:
    """The chains of one rank, one a block."""

    def __init__(self, rule: LocalSteps, held: Mapping[str, Tensor], optimizer: "Optimizer | None") -> None:
        """Begin all at the weights as they are.

        Args:
            rule: Says how blocks lie.
            held: Parameters and buffers of the rank by their names in the model.
            optimizer: Of them; None where it trains none.
        """
        self._rule, self._optimizer = rule, optimizer
        self._held = dict(held)
        self._weights: list[dict[str, Tensor]] = []
        self._states: list[Any] = []
        self.begin()

    def begin(self) -> None:
        """Begin all chains again at the weights as they are now."""
        blocks = range(self._rule.blocks or 0)
        self._weights = [{name: tensor.detach().clone() for name, tensor in self._held.items()} for _ in blocks]
        self._states = [None] * len(blocks)  # of an optimiser that has not stepped yet

    @contextmanager
    def in_place(self, step: int) -> Iterator[None]:
        """Let the stages hold the chain of a step's block while a block of code runs, and keep what it becomes."""
        block = self._rule.block_of(step)
        state = self._swapped(self._states[block])
        with others_in_place(self._held, self._weights[block]):
            try:
                yield
            finally:
                for name, tensor in self._held.items():
                    self._weights[block][name].copy_(tensor.detach())
                self._states[block] = self._swapped(state)

    def _swapped(self, state: Any) -> Any:
        """Give the optimiser a state, an empty one for None, and return the one that it had."""
        if self._optimizer is None:
            return None
        had = self._optimizer.state
        self._optimizer.state = type(had)(dict) if state is None else state
        return had

    @staticmethod
    def file_of(rank: int) -> str:
        """Return the name of the file of a rank's chains in a checkpoint."""
        return _NAME.format(rank=rank)

    def tensors(self) -> dict[str, Tensor]:
        """Return weights and optimiser states of all chains, for a checkpoint.

        Raises:
            RunError: where an optimiser keeps what no checkpoint can hold.
        """
        tensors: dict[str, Tensor] = {}
        for block, weights in enumerate(self._weights):
            tensors |= {f"{block}:{_WEIGHT}:{name}": tensor for name, tensor in weights.items()}
            known = self._state_of(block)
            tensors |= {f"{block}:{_OPTIMIZER}:{key}": tensor for key, tensor in known.tensors.items()}
            for name, numbers in known.numbers.items():
                for kind, number in numbers.items():
                    if number is not None:
                        tensors[f"{block}:{_NUMBER}:{kind}:{name}"] = _as_tensor(kind, number, known.kind)
        return tensors

    def _state_of(self, block: int) -> OptimizerState:
        """Return what the optimiser knows of a chain."""
        if self._optimizer is None or self._states[block] is None:
            return OptimizerState("")
        own = self._swapped(self._states[block])
        try:
            return take_state(self._optimizer, self._held)
        finally:
            self._swapped(own)

    def restore(self, checkpoint: Checkpoint, rank: int, known: OptimizerState) -> None:
        """Take the chains of this rank out of a checkpoint that has some.

        The optimiser has to be given its own state after it.

        Args:
            checkpoint: To read from.
            rank: This one.
            known: Of the optimiser, with the options of its groups.

        Raises:
            RunError: where a file is damaged, or the chains are not of these stages.
        """
        if not any(map(_FILES.fullmatch, checkpoint.state.files or ())):
            return
        name = self.file_of(rank)
        tensors = checkpoint.tensors([name])
        for block, weights in enumerate(self._weights):
            of_optimizer: dict[str, Tensor] = {}
            numbers: dict[str, dict[str, Any]] = {}
            for key, value in tensors.items():
                number, kind, rest = (*key.split(":", 2), "", "")[:3]
                if number != str(block):
                    continue
                if kind == _WEIGHT and rest in weights and weights[rest].shape == value.shape:
                    weights[rest].copy_(value)
                elif kind == _OPTIMIZER:
                    of_optimizer[rest] = value
                elif kind == _NUMBER and value.numel() == 1:
                    what, _, parameter = rest.partition(":")
                    numbers.setdefault(parameter, {})[what] = value.item()
                else:
                    raise RunError(
                        f"{checkpoint.name} has {printable(key)!r} in {name}, which is no tensor of this "
                        f"rank's stages; go on with the folder and the replicas it was written with"
                    )
            if self._optimizer is not None and (of_optimizer or numbers):
                put_state(self._optimizer, self._held, replace(known, tensors=of_optimizer, numbers=numbers))
                self._states[block] = self._optimizer.state


def make_blocks(
    rules: Sequence[SyncRule], held: Mapping[int, Mapping[str, Tensor]], optimizer: "Optimizer | None"
) -> tuple[BlockModels | None, BlockChains | None]:
    """Return the predictors of a rank, and the chains; None where its rules keep none.

    Args:
        rules: Of all stages.
        held: Parameters and buffers of every stage of the rank, by their names in the model.
        optimizer: Of the rank.
    """
    rule = block_rule(rules)
    if rule is None:
        return None, None
    models = BlockModels(rule, held)
    if rule.rule != "mc":
        return models, None
    return models, BlockChains(rule, {name: t for of in held.values() for name, t in of.items()}, optimizer)


def _as_tensor(kind: str, number: Any, optimizer: str) -> Tensor:
    """Return a number of an optimiser as a tensor.

    Raises:
        RunError: where it is something else.
    """
    if type(number) not in _NUMBERS:
        raise RunError(
            f"{optimizer} keeps {printable(kind)!r}, a {type(number).__name__}, for every parameter, which the chains "
            f"of local(rule=mc) cannot be written with; take rule=mm, or another optimiser"
        )
    return torch.tensor(number, dtype=_NUMBERS[type(number)])
