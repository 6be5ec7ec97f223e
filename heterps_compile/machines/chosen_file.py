"""``machines.json`` of a folder that ``machines -o`` wrote: the set that was chosen, and its request.

It is the JSON document of the answer, which has of every offer all that a plan on it depends on. So a run can be
decided about after its offers have left the catalogue. The file is hostile input: the models here are what is read of
it, strictly; keys beside these are not read.

Left out: the plan itself (``plan/source.py``).
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from heterps_compile.escape import printable
from heterps_compile.offers import Offer, Rental
from heterps_compile.offers.as_device import CPU
from heterps_compile.runtime.engines.job import RentedAs
from heterps_compile.strict_json import checked, read_record
from heterps_compile.transient.lifetime import Weibull

from .goal import Goal, KindLifetime, Transience
from .learned import Correction, Learned
from .machine_set import MachineSet

CHOSEN_NAME = "machines.json"
"""The file beside a plan that has the answer it was made from."""

FORMAT = "heterps-compile machines"
VERSION = 3

_MOST = 1e30


def _is_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable text")
    return text


_Text = Annotated[str, Field(max_length=200), AfterValidator(_is_printable)]
_Name = Annotated[_Text, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1, le=10**9)]
_Index = Annotated[int, Field(ge=0, le=10**9)]
_Above = Annotated[float, Field(gt=0, le=_MOST)]
_Amount = Annotated[float, Field(ge=0, le=_MOST)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class RentedRecord(_Record):
    """Machines of one offer, with how many and how they are bought."""

    provider: _Name
    region: _Name
    instance: _Name
    gpu: _Text
    gpus: _Index
    cores: _Count
    memory_bytes: _Above
    gpu_memory_bytes: _Amount
    network_bytes_per_s: _Amount
    inner_bytes_per_s: _Amount
    on_demand_usd_per_hour: _Above
    spot_usd_per_hour: _Above | None
    price_date: dt.date
    source: _Name
    spot: bool
    count: _Count

    @model_validator(mode="after")
    def _agrees(self) -> "RentedRecord":
        if bool(self.gpu) != bool(self.gpus):
            raise ValueError(f"{self.gpus} GPUs of the kind {self.gpu!r}")
        if self.spot and self.spot_usd_per_hour is None:
            raise ValueError("a transient machine has no spot price")
        return self

    @property
    def rental(self) -> Rental:
        """Build the rental of a record."""
        values = self.model_dump(exclude={"spot", "count"})
        price, spot = values.pop("on_demand_usd_per_hour"), values.pop("spot_usd_per_hour")
        return Rental(Offer(**values, price_per_hour=price, spot_per_hour=spot), self.spot)


class _Stage(_Record):
    units: _Count
    machines: _Index


class _Chosen(_Record):
    machines: Annotated[tuple[RentedRecord, ...], Field(min_length=1, max_length=10_000)]
    batch: _Count
    step_s: _Above
    stages: Annotated[tuple[_Stage, ...], Field(min_length=1, max_length=10_000)]


class _Correction(_Record):
    gpu: _Text
    rows: _Count
    factor: _Above
    error: _Above
    late: _Above
    sending: _Above | None = None
    sending_error: _Above | None = None


class _Learned(_Record):
    source: _Text
    corrections: tuple[_Correction, ...]


class _Seen(_Record):
    gpu: _Text
    lifetime: Weibull | None  # an earlier version wrote none of laws that are no Weibull


class _Transience(_Record):
    start_up_s: _Amount
    lifetime: Weibull | None
    seen: Annotated[tuple[_Seen, ...], Field(max_length=1000)]


class _Asked(_Record):
    samples: _Above
    deadline_s: _Above | None
    budget_usd: _Above | None
    max_machines: _Count
    spot: bool
    transience: _Transience
    counts_start: bool = False


class _Answer(_Record):
    asked: _Asked
    chosen: _Chosen
    learned: _Learned

    @model_validator(mode="after")
    def _agrees(self) -> "_Answer":
        if max(stage.machines for stage in self.chosen.stages) >= len(self.chosen.machines):
            raise ValueError(f"a stage is on none of the {len(self.chosen.machines)} kinds of machines")
        return self


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


def machine_records(machines: MachineSet) -> list[dict[str, Any]]:
    """Return the machines of a set as documents have them."""
    found = []
    for rental, count in machines.parts:
        values = asdict(rental.offer)
        price, spot = values.pop("price_per_hour"), values.pop("spot_per_hour")
        values |= {"price_date": rental.offer.price_date.isoformat(), "units": rental.offer.units}
        values |= {"on_demand_usd_per_hour": price, "spot_usd_per_hour": spot, "spot": rental.spot}
        found.append(values | {"count": count, "usd_per_hour": rental.price_per_hour})
    return found


def transience_record(transience: Transience) -> dict[str, Any]:
    """Return how transient machines come and go as the document has it."""
    return {
        "start_up_s": transience.start_up_s,
        "lifetime": asdict(transience.lifetime),
        "seen": [{"gpu": each.gpu, "lifetime": asdict(each.law)} for each in transience.seen],
    }


def read_chosen(folder: str | Path) -> Chosen:
    """Read what was chosen for the plan in a folder.

    Raises:
        InputError: in one sentence, where there is no such file or something in it is not what it must be.
    """
    answer = _read(folder)
    chosen = answer.chosen
    corrections = tuple(Correction(**dict(each)) for each in answer.learned.corrections)
    parts = tuple((each.rental, each.count) for each in chosen.machines)
    stages = tuple((stage.units, stage.machines) for stage in chosen.stages)
    return Chosen(MachineSet(parts, Learned(corrections, answer.learned.source)), chosen.batch, chosen.step_s, stages)


def read_goal(folder: str | Path) -> Goal:
    """Read what the machines in a folder were chosen for, with the batch that was chosen.

    Lifetimes and start-up are those that the machines were chosen by.

    Raises:
        InputError: as :func:`read_chosen` does.
    """
    answer, usual = _read(folder), Transience()
    asked, known = answer.asked, answer.asked.transience
    seen = (
        KindLifetime(each.gpu, each.lifetime, f"{each.gpu or CPU} lives as the machines of the plan were chosen by")
        for each in known.seen
        if each.lifetime is not None
    )
    return Goal(
        samples=asked.samples,
        batches=(answer.chosen.batch,),
        deadline_s=asked.deadline_s,
        budget=asked.budget_usd,
        most_machines=asked.max_machines,
        spot=asked.spot,
        transience=Transience(known.lifetime or usual.lifetime, known.start_up_s, tuple(seen)),
        counts_start=asked.counts_start,
    )


def rented_for(folder: str | Path) -> Mapping[str, RentedAs]:
    """Return the machine of every device type of a folder, by the type's name; none where no machines were chosen.

    Raises:
        InputError: as :func:`read_chosen` does.
    """
    if not (Path(folder) / CHOSEN_NAME).exists():
        return {}
    machines = read_chosen(folder).machines
    rented = ((rental.offer, rental.spot) for rental, _ in machines.parts)
    return {
        name: RentedAs(offer.provider, offer.region, offer.instance, spot, offer.units)
        for name, (offer, spot) in zip(machines.names, rented, strict=True)
    }


def _read(folder: str | Path) -> _Answer:
    path = Path(folder) / CHOSEN_NAME
    where = f"the answer that heterps-compile machines -o writes, {printable(str(path))!r}"
    return checked(_Answer, read_record(path, where, FORMAT, (VERSION,)), where)
