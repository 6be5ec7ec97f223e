"""A model for every block of data that come in a cycle of blocks: what ``local(rule=mm)`` keeps beside its weights.

Ding et al., "Distributed Optimization over Block-Cyclic Data", arXiv 2002.07454. Whenever replicas have averaged their
weights, the predictor of the block they are in takes the mean in::

    p_m  <-  p_m + (x - p_m) / (r + 1)            r: the means that p_m has taken in, of all cycles but the first ones

Training goes on from x, whatever predictors are. With ``mc`` a predictor takes in x or the weights of a chain that sees
this block alone (``block_chains.py``): of the two those whose losses were lower in the steps since the last mean, each
loss being of a batch before it was stepped on. The paper compares the losses of the two means, for which every mean
would cost two more forwards.

Buffers, such as running statistics, are those of the last mean taken in. Replicas hold the same means, and so the same
predictors: nothing is sent.

Left out: which rule this is (``sync_rules/local_steps.py``), the files (``checkpoint/format.py``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.state import BlockState
from heterps_compile.runtime.sync.local_steps import mean_with
from heterps_compile.sync_rules.local_steps import LocalSteps

from .weight_average import is_averaged, others_in_place, own_copy


class BlockModels:
    """The predictors of one rank's stages.

    Attributes:
        rule: Says how blocks lie.
        rounds: For every block how many means its predictor is the mean of.
        losses: Of the steps since the last mean: of the chain that sees all blocks, and of the one of the block alone.
    """

    def __init__(self, rule: LocalSteps, stages: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Begin without any.

        Args:
            rule: One that knows blocks.
            stages: Parameters and buffers of every stage of the rank by their names in the model.
        """
        self.rule = rule
        self.rounds = [0] * (rule.blocks or 0)
        self.losses = (0.0, 0.0)
        self._stages = {index: dict(tensors) for index, tensors in stages.items()}
        self._held = {id(tensor): tensor for tensors in self._stages.values() for tensor in tensors.values()}
        self._models: list[dict[int, Tensor]] = [{} for _ in self.rounds]

    @property
    def count(self) -> int:
        """Return how many blocks there are."""
        return len(self.rounds)

    def add_losses(self, together: float, alone: float) -> None:
        """Take in the losses of a step, of the chain that sees all blocks and of the one of its block."""
        self.losses = self.losses[0] + together, self.losses[1] + alone

    def is_due(self, done: int) -> bool:
        """Tell whether the block of the last of so many steps takes a mean in now."""
        return done % self.rule.steps == 0

    @property
    def prefers_alone(self) -> bool:
        """Return whether the chain of the block alone had the lower losses; on a tie the other one is taken."""
        return self.losses[1] < self.losses[0]

    @torch.no_grad()
    def take(self, done: int) -> None:
        """Take in the weights that the stages hold, which replicas agree on.

        Args:
            done: Steps done.
        """
        self.losses = (0.0, 0.0)
        block = self.rule.block_of(done - 1)
        if (done - 1) // self.rule.cycle_steps < self.rule.skip:
            return
        seen, models = self.rounds[block], self._models[block]
        for key, tensor in self._held.items():
            if not seen:
                models[key] = own_copy(tensor)
            elif is_averaged(tensor):
                models[key].copy_(mean_with(models[key], seen, tensor.detach().to(models[key].dtype)))
            else:
                models[key].copy_(tensor)
        self.rounds[block] = seen + 1

    @contextmanager
    def in_place(self, block: int) -> Iterator[None]:
        """Let the stages hold a block's predictor while a block of code runs, where there is one already.

        Args:
            block: From 0.
        """
        if not self.rounds[block]:
            yield
            return
        with others_in_place(self._held, self._models[block]):
            yield

    def of_stage(self, block: int, stage: int) -> dict[str, Tensor]:
        """Return what a block's predictor has of a stage, by name; it is the predictor's own.

        Raises:
            RunError: where there is none yet.
        """
        if not self.rounds[block]:
            raise RunError(f"block {block + 1} has no predictor yet: no average has been taken in it")
        return {name: self._models[block][id(tensor)] for name, tensor in self._stages[stage].items()}

    @property
    def state(self) -> BlockState:
        """Return what a checkpoint knows of them beside tensors."""
        return BlockState(tuple(self.rounds), self.losses)

    def restore(self, state: BlockState) -> None:
        """Take the state of a checkpoint, with room for tensors of every predictor that it has."""
        self.rounds, self.losses = list(state.rounds), state.losses
        for seen, models in zip(self.rounds, self._models, strict=True):
            if seen:
                models.update({key: own_copy(tensor) for key, tensor in self._held.items()})
