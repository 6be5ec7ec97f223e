"""Classes of workers, out of a pool and of what the user wrote after ``--workers``.

::

    --workers fast=1x2,slow=2x1      one worker "fast" with 2 units, two workers "slow" with 1 unit each

A worker has units of one device type of the pool, and runs one trial at a time on them: a trial is compiled for so many
units and no others, and may be a pipeline over all of them. A class is called as its device type; where the pool has
one type alone, classes may have any names. Without ``--workers`` every unit of the pool is a worker.

Left out: what a trial takes on a class (``trial_plans.py``), where its processes run (the engines).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import printable, short

from .compute_classes import ComputeClass
from .search_record import RecordedClass

_MOST = 10_000
_WORKERS = re.compile(r"([A-Za-z][A-Za-z0-9_.-]{0,63})=([0-9]{1,5})x([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """Workers that are alike.

    Attributes:
        compute: The class, as the assignment sees it.
        device: Of its units.
        units: Of one worker.
        pool: What a trial is compiled for: the units of one worker.
    """

    compute: ComputeClass
    device: DeviceType
    units: int
    pool: Cluster

    @property
    def name(self) -> str:
        """Return the name of the class."""
        return self.compute.name

    @property
    def recorded(self) -> RecordedClass:
        """Return the class as ``search.json`` has it."""
        of = self.compute
        return RecordedClass(of.name, of.workers, self.units, of.memory_bytes, of.price_per_hour, of.flops_per_s)


def worker_classes(pool: Cluster, text: str | None) -> tuple[WorkerClass, ...]:
    """Return the classes of workers.

    Args:
        pool: The machines.
        text: As after ``--workers``; None for a worker a unit.

    Raises:
        InputError: where the text is none, or asks for more units than a type has.
        UnknownNameError: where it names no device type of the pool.
    """
    if text is None:
        return tuple(_class(pool, d.name, d, d.max_units, 1) for d in pool.device_types)
    found: list[WorkerClass] = []
    for part in text.split(","):
        read = _WORKERS.fullmatch(part.strip())
        if read is None:
            raise InputError(
                f"--workers {short(printable(text))}: {short(printable(part))} is no class of workers; write "
                "NAME=WORKERSxUNITS, such as fast=1x2,slow=2x1"
            )
        name, workers, units = read[1], int(read[2]), int(read[3])
        if any(each.name == name for each in found):
            raise InputError(f"--workers names {short(name)} twice; name each class once")
        if not (1 <= workers <= _MOST and 1 <= units <= _MOST):
            raise InputError(f"--workers {short(part)}: both numbers are from 1 to {_MOST:,}")
        found.append(_class(pool, name, _device(pool, name), workers, units))
    _check_units(found)
    return tuple(found)


def recorded_classes(pool: Cluster, recorded: Sequence[RecordedClass]) -> tuple[WorkerClass, ...]:
    """Return the classes that a search began with, out of the pool that it kept.

    Raises:
        UnknownNameError: where the pool is another one.
    """
    return tuple(_class(pool, each.name, _device(pool, each.name), each.workers, each.units) for each in recorded)


def _device(pool: Cluster, name: str) -> DeviceType:
    if len(pool.device_types) == 1:
        return pool.device_types[0]
    known = [device.name for device in pool.device_types]
    if name not in known:
        raise UnknownNameError("class of workers", name, known)
    return pool.device_type(name)


def _class(pool: Cluster, name: str, device: DeviceType, workers: int, units: int) -> WorkerClass:
    one = ComputeClass(
        name,
        workers,
        units * device.memory_bytes,
        units * device.price_per_hour,
        units * device.flops_per_s("float32"),
    )
    own = replace(device, max_units=units, units_per_machine=1, whole_machines=False)
    return WorkerClass(one, device, units, replace(pool, device_types=(own,), links=()))


def _check_units(classes: Sequence[WorkerClass]) -> None:
    for device in {each.device.name: each.device for each in classes}.values():
        of_type = [each for each in classes if each.device.name == device.name]
        taken = sum(each.compute.workers * each.units for each in of_type)
        if taken > device.max_units:
            raise InputError(
                f"--workers takes {taken:,} units of {printable(device.name)!r}, of which the pool has "
                f"{device.max_units:,}; ask for fewer, or name a pool with more"
            )
