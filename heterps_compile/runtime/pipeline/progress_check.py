"""Whether the orders of all ranks come to an end, or leave ranks waiting for each other in a circle.

Every rank's order is run against the others', an action as soon as what it needs is done: a forward the forward of the
stage before, a backward its own forward and the backward of the stage after. A schedule's orders end, and dealing keeps
that; a circle is found here all the same, before it is a run that hangs.

Left out: times, and values that skip stages, which come no later than those that do not.
"""

from typing import Protocol

from heterps_compile.schedule.order import Action, Phase


class Orders(Protocol):
    """What is asked of a layout."""

    @property
    def world_size(self) -> int: ...  # noqa: D102 - the layout's own

    @property
    def stage_count(self) -> int: ...  # noqa: D102

    def actions(self, rank: int) -> tuple[Action, ...]: ...  # noqa: D102

    def stage_of(self, action: Action) -> int: ...  # noqa: D102


def waiting_at_the_end(layout: Orders) -> dict[int, str]:
    """Return the ranks that never get further, and the action each waits to run, as in ``F3``; empty if all is well."""
    orders = {rank: layout.actions(rank) for rank in range(layout.world_size)}
    reached = dict.fromkeys(orders, 0)
    done: set[tuple[int, int, Phase]] = set()
    last = layout.stage_count - 1
    moved = True
    while moved:
        moved = False
        for rank, order in orders.items():
            while reached[rank] < len(order):
                action = order[reached[rank]]
                stage, i = layout.stage_of(action), action.micro_batch
                if action.phase is Phase.FORWARD:
                    needed = [(stage - 1, i, Phase.FORWARD)] if stage > 0 else []
                else:
                    needed = [(stage, i, Phase.FORWARD), *([(stage + 1, i, Phase.BACKWARD)] if stage < last else [])]
                if not done.issuperset(needed):
                    break
                done.add((stage, i, action.phase))
                reached[rank] += 1
                moved = True
    return {rank: str(order[reached[rank]]) for rank, order in orders.items() if reached[rank] < len(order)}
