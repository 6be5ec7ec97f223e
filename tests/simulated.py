"""Steps of stages with equal replicas, simulated."""

from collections.abc import Sequence

from heterps_compile.schedule.mixed_stage import EQUAL, mixed_stage
from heterps_compile.schedule.order import Action
from heterps_compile.schedule.simulate import Timeline, simulate_mixed


def simulate(
    orders: Sequence[Sequence[Action]],
    forward_s: Sequence[float],
    backward_s: Sequence[float] | None = None,
    *,
    replicas: Sequence[int] | None = None,
    transfer_s: Sequence[float] | None = None,
    sync_s: Sequence[float] | None = None,
) -> Timeline:
    """Run the orders of all stages, each with replicas [S] of one speed: times of a micro-batch [S] on one of them."""
    counts = replicas or (1,) * len(orders)
    micro_batches = 1 + max((action.micro_batch for order in orders for action in order), default=0)
    alike = [
        mixed_stage((forward,) * count, (backward,) * count, micro_batches, EQUAL)
        for forward, backward, count in zip(forward_s, backward_s or (0.0,) * len(orders), counts, strict=True)
    ]
    return simulate_mixed(orders, alike, transfer_s=transfer_s, sync_s=sync_s)
