"""Classes of workers, out of a pool and of what the user wrote after ``--workers``.

::

    --workers fast=1x2,slow=2x1              one worker "fast" with 2 units, two workers "slow" with 1 unit each
    --workers pair=2x1:v100+4:cpu-core       two workers "pair", each with 1 unit of v100 and 4 of cpu-core

A worker runs one trial at a time on its units: a trial is compiled for them and no others, and may be a pipeline over
all of them, be they of one device type of the pool or of several. Where no type is named, it is the one that the class
is called as, or the pool's only one. Without ``--workers`` every unit of the pool is a worker.

Left out: what a trial takes on a class (``trial_plans.py``), where its processes run (the engines).
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import printable, short

from .compute_classes import ComputeClass

_MOST = 10_000
_WORKERS = re.compile(r"([A-Za-z][A-Za-z0-9_.-]{0,63})=([0-9]{1,5})x(.+)")
_UNITS = re.compile(r"([0-9]{1,5})(?::([^:]+))?")


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """Workers that are alike.

    Attributes:
        compute: The class, as the assignment sees it.
        devices: What one worker has: device types, and how many units of each.
        pool: What a trial is compiled for: the units of one worker.
    """

    compute: ComputeClass
    devices: tuple[tuple[DeviceType, int], ...]
    pool: Cluster

    @property
    def name(self) -> str:
        """Return the name of the class."""
        return self.compute.name

    @property
    def gpus(self) -> int:
        """Return how many of them are GPUs."""
        return sum(units for device, units in self.devices if device.kind == "gpu")

    @property
    def units_words(self) -> str:
        """Return what one worker has, as it is read: "1 of 'v100' and 4 of 'cpu-core'"."""
        return " and ".join(f"{units:,} of {printable(device.name)!r}" for device, units in self.devices)


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
        return tuple(_class(pool, d.name, d.max_units, ((d, 1),)) for d in pool.device_types)
    found: list[WorkerClass] = []
    for part in text.split(","):
        read = _WORKERS.fullmatch(part.strip())
        if read is None:
            raise _no_class(text, part)
        name, workers = read[1], int(read[2])
        if any(each.name == name for each in found):
            raise InputError(f"--workers names {short(name)} twice; name each class once")
        devices = tuple(_units(pool, name, text, part, one) for one in read[3].split("+"))
        if not (1 <= workers <= _MOST and all(1 <= units <= _MOST for _, units in devices)):
            raise InputError(f"--workers {short(printable(part))}: the numbers are from 1 to {_MOST:,}")
        if len({device.name for device, _ in devices}) < len(devices):
            raise InputError(f"--workers {short(printable(part))} names a device type twice; name each once")
        found.append(_class(pool, name, workers, devices))
    _check_units(found)
    return tuple(found)


def _units(pool: Cluster, name: str, text: str, part: str, one: str) -> tuple[DeviceType, int]:
    """Return a device type of a worker and how many units: of ``4:cpu-core``, or of ``4``."""
    read = _UNITS.fullmatch(one.strip())
    if read is None or (read[2] is None and "+" in part):
        raise _no_class(text, part)
    return (_device(pool, name) if read[2] is None else _named(pool, read[2], "device type")), int(read[1])


def _no_class(text: str, part: str) -> InputError:
    return InputError(
        f"--workers {short(printable(text))}: {short(printable(part))} is no class of workers; write "
        "NAME=WORKERSxUNITS, such as fast=1x2,slow=2x1, or with several types NAME=WORKERSxUNITS:TYPE+UNITS:TYPE, such "
        "as pair=1x1:v100+4:cpu-core"
    )


def recorded_classes(pool: Cluster, recorded: Sequence[ComputeClass]) -> tuple[WorkerClass, ...]:
    """Return the classes that a search began with, out of the pool that it kept.

    Raises:
        UnknownNameError: where the pool is another one.
    """
    return tuple(_class(pool, each.name, each.workers, _recorded_devices(pool, each)) for each in recorded)


def _recorded_devices(pool: Cluster, recorded: ComputeClass) -> tuple[tuple[DeviceType, int], ...]:
    if not recorded.types:  # written before a worker could have several
        return ((_device(pool, recorded.name), recorded.units),)
    return tuple((_named(pool, name, "device type"), units) for name, units in recorded.types)


def _device(pool: Cluster, name: str) -> DeviceType:
    return pool.device_types[0] if len(pool.device_types) == 1 else _named(pool, name, "class of workers")


def _named(pool: Cluster, name: str, what: str) -> DeviceType:
    known = [device.name for device in pool.device_types]
    if name not in known:
        raise UnknownNameError(what, name, known)
    return pool.device_type(name)


def _class(pool: Cluster, name: str, workers: int, devices: tuple[tuple[DeviceType, int], ...]) -> WorkerClass:
    one = ComputeClass(
        name,
        workers,
        sum(units * device.memory_bytes for device, units in devices),
        sum(units * device.price_per_hour for device, units in devices),
        sum(units * device.flops_per_s("float32") for device, units in devices),
        sum(units for _, units in devices),
        tuple((device.name, units) for device, units in devices),
    )
    own = tuple(
        replace(device, max_units=units, units_per_machine=1, whole_machines=False) for device, units in devices
    )
    names = {device.name for device in own}
    links = tuple(link for link in pool.links if len(names) > 1 and set(link.between) <= names)
    return WorkerClass(one, devices, replace(pool, device_types=own, links=links))


def _check_units(classes: Sequence[WorkerClass]) -> None:
    taken: Counter[str] = Counter()
    most = {}
    for each in classes:
        for device, units in each.devices:
            taken[device.name] += each.compute.workers * units
            most[device.name] = device.max_units
    for name, count in taken.items():
        if count > most[name]:
            raise InputError(
                f"--workers takes {count:,} units of {printable(name)!r}, of which the pool has {most[name]:,}; ask "
                "for fewer, or name a pool with more"
            )
