"""The schedules by the names that plans use."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from heterps_compile.errors import UnknownNameError

from .gpipe import gpipe
from .interleaved import interleaved
from .one_f_one_b import one_f_one_b
from .order import Action, Order
from .zero_bubble import ZERO_BUBBLE, zero_bubble

SCHEDULES: Mapping[str, Order] = MappingProxyType(
    {"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved-1f1b": interleaved, ZERO_BUBBLE: zero_bubble}
)


def orders(name: str, replicas: Sequence[int], micro_batches: int, *, training: bool) -> tuple[tuple[Action, ...], ...]:
    """Return every stage's actions under a schedule.

    Args:
        name: A key of :data:`SCHEDULES`.
        replicas: Of every stage.
        micro_batches: In one step.
        training: Whether there are backwards.

    Raises:
        UnknownNameError: with the known names and the nearest.
    """
    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, SCHEDULES)
    order = SCHEDULES[name]
    return tuple(tuple(order(stage, replicas, micro_batches, training)) for stage in range(len(replicas)))
