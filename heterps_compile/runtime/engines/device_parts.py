"""The ranks of a run by device type, and the values of an option that are given by device type."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.runtime.launch.prepare import planned_devices

from .job import Job


@dataclass(frozen=True, slots=True)
class Part:
    """The ranks of one device type.

    Attributes:
        device: Its name in the pool, or ``"parameter-server"``.
        kind: ``"cpu"``, ``"gpu"`` or ``"npu"``.
        ranks: Ascending.
    """

    device: str
    kind: str
    ranks: tuple[int, ...]


def parts_of(job: Job) -> tuple[Part, ...]:
    """Return the ranks by device type, types in the order of their first ranks.

    Raises:
        RunError: if a rank has stages of several types.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    for place, device in zip(job.prepared.places, planned_devices(job.prepared), strict=True):
        ranks.setdefault(device, []).append(place.rank)
    return tuple(Part(device, kind, tuple(of)) for (device, kind), of in ranks.items())


def by_type(
    option: str,
    pairs: Sequence[tuple[str, str]],
    parts: Sequence[Part],
    allowed: str = r"[^\x00-\x1f\x7f]+",
    example: str = "NAME",
) -> Mapping[str, tuple[str, ...]]:
    """Collect the values of an option by device type.

    Args:
        option: Its word.
        pairs: Device types, each with a value.
        parts: Of the run.
        allowed: A regular expression that every value must match.
        example: Of a value.

    Raises:
        InputError: for a type that the run does not have, or a value that does not match.
    """
    found: dict[str, tuple[str, ...]] = {part.device: () for part in parts}
    for device, text in pairs:
        if device not in found:
            known = ", ".join(printable(name) for name in found)
            raise InputError(f"{option} names {printable(device)!r}; expected a device type of this run ({known})")
        if not re.fullmatch(allowed, text):
            raise InputError(f"{option} of {printable(device)} is {printable(text)!r}; expected text such as {example}")
        found[device] += (text,)
    return found
