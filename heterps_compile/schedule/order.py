"""What one stage does, in order: the actions of a schedule, and how replicas share them.

Left out: when an action runs (``simulate.py``).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

MOST_ACTIONS = 2_000_000
"""The most micro-batches times stages, and the most replicas of a stage, of a step that is simulated."""


class Phase(StrEnum):
    """The direction of an action.

    Where a schedule has ``WEIGHT`` actions, ``BACKWARD`` makes the gradients of the inputs alone, which the stage
    before waits for, and ``WEIGHT`` those of the weights, which nobody waits for; elsewhere ``BACKWARD`` makes both.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class Action:
    """One stage works on one micro-batch in one direction; printed as ``F3``, ``B3`` or ``W3``.

    A stage whose layers are cut into chunks does each chunk in an action of its own; those of a later chunk are printed
    in lower case.
    """

    stage: int
    micro_batch: int
    phase: Phase
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.phase[0] if self.chunk else self.phase[0].upper()}{self.micro_batch}"


Order = Callable[[int, Sequence[int], int, bool], Iterator[Action]]
"""A schedule: ``order(stage, replicas, micro_batches, training)`` gives the actions of one stage.

``replicas`` holds the replica count of every stage, so its length is the number of stages. An order is a pure
function of these four, so that every worker can work out its own without talking to anybody.
"""


def deal(order: Iterable[Action], replica: int, replicas: int) -> Iterator[Action]:
    """Return the actions of one replica of a stage: micro-batches ``replica``, ``replica + replicas``, and so on.

    ::

        a stage of 2 replicas    F0 F1 F2 B0 F3 B1 B2 B3
        replica 0                F0    F2 B0       B2
        replica 1                   F1       F3 B1    B3

    Dealing never makes a deadlock: it takes waits away and adds none.
    """
    return (action for action in order if action.micro_batch % replicas == replica)
