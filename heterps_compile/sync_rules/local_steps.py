"""The rule ``local``: replicas step on their own gradients, and average their weights every so many steps.

The exchange is a ring all-reduce of the weights, once in ``steps`` steps. ``average`` keeps the last mean. Where data
come in a cycle of blocks, such as the parts of a day, ``mm`` and ``mc`` keep a predictor for every block besides (Ding
et al.). With ``blocks=3, block_steps=4, steps=2``, a mean at every bar::

    block     1         2         3         1         2     ...
    steps     . . | . . | . . | . . | . . | . . | . . | ...
    mm        p1  p1    p2    p2    p3    p3    p1          p_m: the mean of the means in block m, of all cycles
    mc        the same, and a chain of weights for every block that sees that block alone: both chains step on every
              batch, and p_m takes in whichever had the lower loss since the last bar

``mc`` computes and sends twice. Left out: which samples are in a block, which follows from their order.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from heterps_compile.errors import InputError

from .all_reduce_rule import ring_exchange
from .amounts import Amounts
from .handling import Handling, Work, flat_gradients, summed
from .rule import ANY, BOUNDED, OWN, Exactness, Exchange, SyncGroup, SyncRule

_FEWEST_BLOCKS = 2
_MOST_BLOCKS = 10_000


@dataclass(frozen=True, slots=True)
class LocalSteps(SyncRule):
    """Average weights now and then.

    Attributes:
        steps: Between two averages, 1 or more.
        rule: What is kept of the averages.
        blocks: Of a cycle of the data, for ``mm`` and ``mc``.
        block_steps: Steps of one block, a multiple of ``steps``.
        skip: First cycles whose averages no predictor takes in.
    """

    steps: int
    rule: Literal["average", "mm", "mc"] = "average"
    blocks: int | None = None
    block_steps: int | None = None
    skip: int = 0

    name: ClassVar[str] = "local"
    example: ClassVar[str] = "local(steps=4)"
    source: ClassVar[str] = "MM- and MC-PSGD, arXiv 2002.07454"

    def __post_init__(self) -> None:
        """Refuse numbers that make no cycle.

        Raises:
            InputError: where a number is too small, or is missing or idle, or means do not fall on the ends of blocks.
        """
        if self.steps < 1:
            raise InputError(f"steps of local is {self.steps}; it must be 1 or more, such as {self.example}")
        of_blocks = {"blocks": self.blocks, "block_steps": self.block_steps, "skip": self.skip or None}
        example = f"local(steps={self.steps}, rule={self.rule}, blocks=5, block_steps={8 * self.steps})"
        if not self.has_blocks:
            idle = next((name for name, number in of_blocks.items() if number is not None), None)
            if idle is not None:
                raise InputError(
                    f"{idle} of local is {of_blocks[idle]}, and rule={self.rule} knows no blocks; leave it out, or "
                    f"take rule=mm or rule=mc, which keep a predictor for each"
                )
            return
        if self.blocks is None or self.block_steps is None:
            raise InputError(
                f"local with rule={self.rule} keeps a predictor for every block of the data, and needs to know how "
                f"many there are in a cycle and how many steps each takes; write {example}"
            )
        if not _FEWEST_BLOCKS <= self.blocks <= _MOST_BLOCKS:
            raise InputError(f"blocks of local is {self.blocks}; it must be {_FEWEST_BLOCKS} to {_MOST_BLOCKS:,}")
        if self.block_steps < 1 or self.block_steps % self.steps:
            raise InputError(
                f"block_steps of local is {self.block_steps}, and the weights are averaged every {self.steps} steps; "
                f"it must be a multiple of that, so that a block ends with an average, such as {example}"
            )
        if self.skip < 0:
            raise InputError(f"skip of local is {self.skip}; it must be 0 cycles or more")

    @property
    def has_blocks(self) -> bool:
        """Return whether it keeps a predictor for every block of the data."""
        return self.rule != "average"

    @property
    def cycle_steps(self) -> int:
        """Return the steps of a cycle of blocks; 0 where there are none."""
        return (self.blocks or 0) * (self.block_steps or 0)

    def block_of(self, step: int) -> int:
        """Return the block of a step, both from 0."""
        return step % self.cycle_steps // (self.block_steps or 1)

    @property
    def exactness(self) -> Exactness:
        """Return that replicas are apart for so many steps at the most; predictors of blocks are another model."""
        return ANY if self.has_blocks else BOUNDED

    @property
    def of_sparse(self) -> str:
        """Return that each replica steps on its own."""
        return OWN

    @property
    def period_steps(self) -> int:
        """Return the steps from one exchange to the next."""
        return self.steps

    @property
    def _chains(self) -> int:
        """Return how many chains of weights step on every batch."""
        return 2 if self.rule == "mc" else 1

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return a ring all-reduce of the weights, of both chains one after the other with ``mc``."""
        one = ring_exchange(group.parameter_bytes, group.replicas, group.network)
        chains = self._chains
        return Exchange(one.sent_bytes * chains, one.card_bytes * chains, one.bytes_s * chains, one.hops_s * chains)

    def extra_bytes(self, group: SyncGroup) -> int:
        """Return the bytes of the copy of the weights that becomes the mean, and of the predictors and the chains.

        What an optimizer knows of a chain is not counted.
        """
        return group.parameter_bytes * self._copies if group.agrees else 0

    @property
    def _copies(self) -> int:
        """Return how many times the weights are held besides."""
        return 1 + self._chains * (self.blocks or 0)

    def amounts(self, group: SyncGroup) -> Amounts:
        """Return the part of the weights that a step sums, and their copies."""
        return Amounts(
            ring_bytes=self._chains * group.parameter_bytes / self.steps,
            held_bytes=self._copies * group.parameter_bytes,
        )

    def handling(self, group: SyncGroup) -> Handling:
        """Return buffers that become means, and of a mean of weights its part: copied, scaled, put back; added up.

        What predictors take is left out.
        """
        means = Work(moved=2 * group.gradient_bytes)
        weights_bytes = self._chains * group.parameter_bytes / self.steps
        once = flat_gradients(group.gradient_bytes) + means + Work(moved=6 * weights_bytes)
        return Handling(once, shared=summed(weights_bytes))

    @property
    def is_of_whole_models(self) -> bool:
        """Return whether it keeps predictors, which are models."""
        return self.has_blocks

    @property
    def never_planned(self) -> str:
        """Refuse ``mc``, which computes every batch twice."""
        if self.rule != "mc":
            return ""
        return (
            "it computes every batch twice, for its chain and for that of the batch's block, which no plan counts; "
            "plan rule=average or rule=mm, and give rule=mc to the run (run --sync)"
        )
