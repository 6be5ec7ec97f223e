"""Steps on data that come in a cycle of blocks: what ``local(rule=mm)`` and ``mc`` do besides a plain step.

::

    step on the chain of the batch's block      mc alone; its weights are put in place for it
    step on the weights that see all blocks
    predictor of the block takes a mean in      where replicas have averaged their weights

Left out: the chains (``block_chains.py``) and predictors (``block_models.py``) themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from heterps_compile.runtime.pipeline.recorder import StepResult

from .block_chains import BlockChains
from .block_models import BlockModels

if TYPE_CHECKING:
    from torch import Tensor

    from heterps_compile.runtime.pipeline.rank_parts import ReadMicroBatch as Reading


class TakeStep(Protocol):
    """Runs forwards and backwards, and steps the optimiser."""

    def __call__(self, step: int, read: "Reading", *, is_told: bool = True) -> StepResult:
        """Take a step; ``is_told`` says if those who follow the run hear of it."""
        ...


@dataclass(frozen=True, slots=True)
class BlockSteps:
    """The steps of one rank on blocks.

    Attributes:
        models: Predictors of the blocks.
        chains: That see one block each; None for ``mm``.
        agreed: Makes a block of code in which replicas that step alone hold what they agree on.
    """

    models: BlockModels
    chains: BlockChains | None
    agreed: Callable[[], AbstractContextManager[None]]

    def take(
        self, take: TakeStep, updating: Callable[[], AbstractContextManager[None]], step: int, read: "Reading"
    ) -> StepResult:
        """Take a step, on the chain of its block too, and have the predictor take a mean in where that is due.

        Args:
            take: Takes a plain step.
            updating: Makes a block of code that counts as the optimiser's time.
            step: Its number.
            read: Reads micro-batches.
        """
        in_place: AbstractContextManager[None] = nullcontext()
        if self.chains is None:
            result = take(step, read)
        else:
            read = _kept(read)
            with self.chains.in_place(step):
                alone = take(step, read, is_told=False)
            result = take(step, read)
            self.models.add_losses(_known(result), _known(alone))
            in_place = self.chains.in_place(step) if self.models.prefers_alone else in_place
        if self.models.is_due(step + 1):
            with updating(), self.agreed(), in_place:
                self.models.take(step + 1)
        return result


def _kept(read: "Reading") -> "Reading":
    """Return what reads the micro-batches of a step as often as is asked, each with tensors of its own."""
    known: dict[tuple[int, tuple[str, ...]], Mapping[str, Tensor]] = {}

    def call(micro_batch: int, names: Sequence[str]) -> "Mapping[str, Tensor]":
        key = micro_batch, tuple(names)
        if key not in known:
            known[key] = read(micro_batch, names)
        return {name: tensor.clone() for name, tensor in known[key].items()}

    return call


def _known(result: StepResult) -> float:
    """Return the loss of a step, which every rank has been told."""
    assert result.loss is not None  # noqa: S101 - by SharedLoss
    return result.loss
