"""Units that a plan pays and nothing uses: the rest of machines that are rented whole, replicas without a sample.

Left out: what the search makes of them (``cost/whole_machines.py``).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.units import counted

from .plan_notes import RUN_REFUSES
from .request import ALONE


@dataclass(frozen=True, slots=True)
class IdleUnits:
    """Idle units of a device type.

    Attributes:
        device: Its name.
        count: How many.
        price_per_hour: Of all of them.
        units_per_machine: That are rented together.
    """

    device: str
    count: int
    price_per_hour: float
    units_per_machine: int


class _Stage(Protocol):
    @property
    def units(self) -> Iterable[tuple[str, int]]: ...


def units_of(stages: Iterable[_Stage]) -> Counter[str]:
    """Return the units of every device type that stages use, by its name."""
    used = Counter[str]()
    for stage in stages:
        for device, count in stage.units:
            used[device] += count
    return used


def idle_of(used: Mapping[str, int], devices: Iterable[Any]) -> tuple[IdleUnits, ...]:
    """Return the idle units of every device type that has any.

    Args:
        used: Units of every device type that are used, by its name; of others none.
        devices: Of the pool; one that does not tell how its units are rented rents each by itself.
    """
    found = []
    for device in devices:
        count = device.idle_units(used.get(device.name, 0)) if isinstance(device, DeviceType) else 0
        if count:
            found.append(IdleUnits(device.name, count, count * device.price_per_hour, device.rented_together))
    return tuple(found)


def sampleless_notes(widths: Sequence[int], batch: int, micro_batches: int) -> Iterator[str]:
    """Say which stage has the most replicas, where a step has too few samples or micro-batches for them.

    The steady state divides a batch among any number of replicas, as the paper's formula does; a run in training
    refuses a replica that would have nothing to learn from.
    """
    widest = max(range(len(widths)), key=widths.__getitem__)
    if widths[widest] > batch:
        yield (
            f"stage {widest} has {widths[widest]} replicas and a batch {counted(batch, 'sample')}: {RUN_REFUSES}; take "
            f"a larger batch or fewer replicas, or plan one batch alone (--reading {ALONE})"
        )
    elif widths[widest] > micro_batches:
        yield (
            f"stage {widest} has {widths[widest]} replicas and a step of {counted(batch, 'sample')} "
            f"{counted(micro_batches, 'micro-batch')}: {RUN_REFUSES}; take a batch that "
            f"{widths[widest]} divides, or fewer replicas"
        )
