"""``machines.json`` of a folder that ``machines -o`` wrote: what was chosen, read again.

It is the JSON document of the answer, which has of every offer all that a plan on it depends on. So a run can be
decided about after its offers have left the catalogue. The file is hostile input: numbers are checked, nothing is run.

Left out: the plan itself (``plan/source.py``).
"""

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short
from heterps_compile.offers import Offer, Rental
from heterps_compile.offers.as_device import CPU
from heterps_compile.plain_file import read_plain
from heterps_compile.transient.lifetime import Exponential, Lifetime, Weibull

from .goal import Goal, KindLifetime, Transience
from .learned import Correction, Learned
from .machine_set import MachineSet

CHOSEN_NAME = "machines.json"
"""The file beside a plan that has the answer it was made from."""

FORMAT = "heterps-compile machines"
VERSION = 3

_Read = TypeVar("_Read")

_LARGEST_BYTES = 16 << 20
_TEXT = 200  # characters
_MOST = 1e30


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen.

    Attributes:
        machines: The set, with what was learned of its kinds.
        batch: Samples in a step.
        step_s: As predicted, learned corrections included.
        stages: Units of every stage, and which part of the set they belong to.
    """

    machines: MachineSet
    batch: int
    step_s: float
    stages: tuple[tuple[int, int], ...]


def offer_record(offer: Offer) -> dict[str, Any]:
    """Return an offer as the document has it."""
    return {
        "provider": offer.provider,
        "region": offer.region,
        "instance": offer.instance,
        "gpu": offer.gpu,
        "gpus": offer.gpus,
        "cores": offer.cores,
        "units": offer.units,
        "memory_bytes": offer.memory_bytes,
        "gpu_memory_bytes": offer.gpu_memory_bytes,
        "network_bytes_per_s": offer.network_bytes_per_s,
        "inner_bytes_per_s": offer.inner_bytes_per_s,
        "on_demand_usd_per_hour": offer.price_per_hour,
        "spot_usd_per_hour": offer.spot_per_hour,
        "price_date": offer.price_date.isoformat(),
        "source": offer.source,
    }


def read_chosen(folder: str | Path) -> Chosen:
    """Read what was chosen for the plan in a folder.

    Raises:
        InputError: in one sentence, where there is no such file or something in it is not what it must be.
    """
    return _read(folder, _chosen)


def _read(folder: str | Path, parse: Callable[[Any], _Read]) -> _Read:
    path = Path(folder) / CHOSEN_NAME
    shown = printable(repr(str(path)))
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"{shown} has {path.stat().st_size >> 20:,} MiB, and an answer some KiB; write it anew")
        document = json.loads(read_plain(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON document in UTF-8"
        raise InputError(
            f"cannot read {shown}: {reason}; name a folder that heterps-compile machines -o wrote"
        ) from error
    try:
        return parse(document)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        missing = isinstance(error, KeyError)
        fault = f"{short(str(error.args[0]))} is missing" if missing else printable(str(error))
        raise InputError(f"{shown} is no answer of heterps-compile machines: {fault}; write the folder anew") from error


def _chosen(document: Any) -> Chosen:
    document = _mapping(document, "the document")
    if document["format"] != FORMAT or document["version"] != VERSION:
        raise ValueError(
            f"its format is {short(document['format'])} {short(document['version'])}, expected {FORMAT!r} {VERSION}"
        )
    chosen = _mapping(document["chosen"], "chosen")
    parts = [_part(_mapping(each, "a machine")) for each in _listed(chosen["machines"], "machines")]
    stages = [
        (_whole(each["units"], "units"), _whole(each["machines"], "machines", least=0))
        for each in _listed(chosen["stages"], "stages")
    ]
    if any(not 0 <= part < len(parts) for _, part in stages):
        raise ValueError(f"a stage is on part {max(part for _, part in stages)} of {len(parts)}")
    learned = _mapping(document["learned"], "learned")
    corrections = tuple(_correction(_mapping(each, "a correction")) for each in learned["corrections"])
    machines = MachineSet(tuple(parts), Learned(corrections, _text(learned["source"], "source", empty=True)))
    return Chosen(machines, _whole(chosen["batch"], "batch"), _above(chosen["step_s"], "step_s"), tuple(stages))


def read_goal(folder: str | Path) -> Goal:
    """Read what the machines in a folder were chosen for, with the batch that was chosen.

    Lifetimes and start-up are those that the machines were chosen by.

    Raises:
        InputError: as :func:`read_chosen` does.
    """
    return _read(folder, _goal)


def _goal(document: Any) -> Goal:
    chosen, asked = _chosen(document), _mapping(_mapping(document, "the document")["asked"], "asked")
    if not isinstance(asked["spot"], bool):
        raise ValueError(f"spot is {short(asked['spot'])}")
    return Goal(
        samples=_above(asked["samples"], "samples"),
        batches=(chosen.batch,),
        deadline_s=None if asked["deadline_s"] is None else _above(asked["deadline_s"], "deadline_s"),
        budget=None if asked["budget_usd"] is None else _above(asked["budget_usd"], "budget_usd"),
        most_machines=_whole(asked["max_machines"], "max_machines"),
        spot=asked["spot"],
        transience=_transience(asked["transience"]),
        counts_start=asked.get("counts_start") is True,
    )


def transience_record(transience: Transience) -> dict[str, Any]:
    """Return how transient machines come and go as the document has it; a law that is no Weibull is left out."""
    return {
        "start_up_s": transience.start_up_s,
        "lifetime": _law_record(transience.lifetime),
        "seen": [{"gpu": each.gpu, "lifetime": _law_record(each.law)} for each in transience.seen],
    }


def _law_record(law: Lifetime) -> dict[str, float] | None:
    match law:
        case Weibull():
            return {"shape": law.shape, "scale_hours": law.scale_hours}
        case Exponential():
            return {"shape": 1.0, "scale_hours": law.mean_hours}
        case _:
            return None


def _transience(value: Any) -> Transience:
    record = _mapping(value, "transience")
    seen = record["seen"]
    if not isinstance(seen, list) or len(seen) > 1000:
        raise TypeError("seen is no list")
    usual = Transience()
    kinds = []
    for each in seen:
        kind = _mapping(each, "a kind that was seen")
        gpu, law = _text(kind["gpu"], "gpu", empty=True), _law(kind["lifetime"])
        if law is not None:
            kinds.append(KindLifetime(gpu, law, f"{gpu or CPU} lives as the machines of the plan were chosen by"))
    return Transience(
        lifetime=_law(record["lifetime"]) or usual.lifetime,
        start_up_s=_above(record["start_up_s"], "start_up_s", zero=True),
        seen=tuple(kinds),
    )


def _law(value: Any) -> Weibull | None:
    if value is None:
        return None
    record = _mapping(value, "lifetime")
    try:
        return Weibull(_above(record["shape"], "shape"), _above(record["scale_hours"], "scale_hours"))
    except InputError as error:
        raise ValueError(str(error)) from error


def _part(record: Mapping[str, Any]) -> tuple[Rental, int]:
    spot = record["spot_usd_per_hour"]
    offer = Offer(
        provider=_text(record["provider"], "provider"),
        region=_text(record["region"], "region"),
        instance=_text(record["instance"], "instance"),
        gpu=_text(record["gpu"], "gpu", empty=True),
        gpus=_whole(record["gpus"], "gpus", least=0),
        cores=_whole(record["cores"], "cores"),
        memory_bytes=_above(record["memory_bytes"], "memory_bytes"),
        gpu_memory_bytes=_above(record["gpu_memory_bytes"], "gpu_memory_bytes", zero=True),
        network_bytes_per_s=_above(record["network_bytes_per_s"], "network_bytes_per_s", zero=True),
        inner_bytes_per_s=_above(record["inner_bytes_per_s"], "inner_bytes_per_s", zero=True),
        price_per_hour=_above(record["on_demand_usd_per_hour"], "on_demand_usd_per_hour"),
        spot_per_hour=None if spot is None else _above(spot, "spot_usd_per_hour"),
        price_date=dt.date.fromisoformat(_text(record["price_date"], "price_date")),
        source=_text(record["source"], "source"),
    )
    if bool(offer.gpu) != bool(offer.gpus):
        raise ValueError(f"{offer.gpus} GPUs of the kind {short(offer.gpu)}")
    if not isinstance(record["spot"], bool) or (record["spot"] and spot is None):
        raise ValueError(f"spot is {short(record['spot'])}, and the spot price {short(spot)}")
    return Rental(offer, record["spot"]), _whole(record["count"], "count")


def _correction(record: Mapping[str, Any]) -> Correction:
    return Correction(
        _text(record["gpu"], "gpu", empty=True),
        _whole(record["rows"], "rows"),
        *(_above(record[name], name) for name in ("factor", "error", "late")),
        *(None if record.get(name) is None else _above(record[name], name) for name in ("sending", "sending_error")),
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{what} is no object")
    return value


def _listed(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list) or not 0 < len(value) <= 10_000:
        raise TypeError(f"{what} is no list of at least one")
    return value


def _text(value: Any, what: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > _TEXT or not value.isprintable() or not (value or empty):
        raise ValueError(f"{what} is {short(value)}, expected printable text of at most {_TEXT} characters")
    return value


def _whole(value: Any, what: str, *, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= 10**9:
        raise ValueError(f"{what} is {short(value)}, expected a whole number from {least} on")
    return value


def _above(value: Any, what: str, *, zero: bool = False) -> float:
    number = float(value) if type(value) in (int, float) else math.nan
    if not number <= _MOST or number < 0 or (number == 0 and not zero):
        raise ValueError(f"{what} is {short(value)}, expected a number {'of 0 or more' if zero else 'above 0'}")
    return number
