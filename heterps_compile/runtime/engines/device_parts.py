"""The ranks of a run by the device type that they are planned for, and what an engine has for each type.

Left out: which options of an engine say what it has (``launch_options.py``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable

from .contract import Job

SERVERS = "parameter-server"
"""What the parameter servers of a run are called where a device type is meant."""


@dataclass(frozen=True, slots=True)
class Part:
    """The ranks of one device type.

    Attributes:
        device: Its name in the pool, or :data:`SERVERS`.
        kind: ``"cpu"``, ``"gpu"`` or ``"npu"``.
        ranks: Ascending.
    """

    device: str
    kind: str
    ranks: tuple[int, ...]


def parts_of(job: Job) -> tuple[Part, ...]:
    """Return the ranks by device type, types in the order of their first ranks: rank 0 is the first of the first.

    Raises:
        RunError: where a rank has stages of several types.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    for place in job.prepared.places:
        stages = [job.prepared.plan.stages[stage] for stage in place.stages]
        types = {stage.of_replica(place.replica) for stage in stages} or {(SERVERS, "cpu")}
        if len(types) > 1:
            names = " and ".join(sorted(repr(printable(device)) for device, _ in types))
            raise RunError(
                f"rank {place.rank} runs stages of {names}, and no machine is both; take a schedule with one stage a "
                f"rank (--schedule 1f1b)"
            )
        ranks.setdefault(next(iter(types)), []).append(place.rank)
    return tuple(Part(device, kind, tuple(of)) for (device, kind), of in ranks.items())


def by_type(
    option: str,
    pairs: Sequence[tuple[str, str]],
    parts: Sequence[Part],
    allowed: str = r"[^\x00-\x1f\x7f]+",
    otherwise: Mapping[str, Sequence[str]] | None = None,
) -> Mapping[str, tuple[str, ...]]:
    """Return what an option of an engine says of every device type, by its name.

    Args:
        option: Its word.
        pairs: Of a type and what is said of it.
        parts: Of the run.
        allowed: A regular expression for what may be said.
        otherwise: What is said of a type of which the option says nothing.

    Raises:
        InputError: for a type that the run does not have, or words that the engine cannot take.
    """
    found: dict[str, tuple[str, ...]] = {part.device: () for part in parts}
    named = {device for device, _ in pairs}
    left = [(name, text) for name in found if name not in named for text in (otherwise or {}).get(name, ())]
    for device, text in (*pairs, *left):
        if device not in found:
            known = ", ".join(printable(name) for name in found)
            raise InputError(f"{option} names {printable(device)!r}, which is no device type of this run ({known})")
        if not re.fullmatch(allowed, text):
            raise InputError(f"{option} {printable(device)}={printable(text)!r} has characters that cannot stand there")
        found[device] += (text,)
    return found


def need_mapping(parts: Sequence[Part], known: Sequence[Mapping[str, Sequence[str]]], way_out: str) -> None:
    """Check that an engine has been told of every device type.

    Args:
        parts: Of the run.
        known: What each option that counts says, by type.
        way_out: The options that say it, with ``{type}`` for the type.

    Raises:
        InputError: for the first type of which nothing is said.
    """
    for part in parts:
        if not any(said.get(part.device) for said in known):
            name = printable(part.device)
            raise InputError(
                f"nothing says which machines have the device type {name!r} of ranks "
                f"{', '.join(map(str, part.ranks[:8]))}; give {way_out.format(type=name)}"
            )
