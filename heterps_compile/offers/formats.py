"""What the columns of catalogues mean: this package's own, SkyPilot's, and gpuhunt's.

The format is told by the columns of the header alone. Each turns a row into an offer; a row that is no whole machine
which can be rented on demand is left out and counted, a row that says something wrong ends the reading.

Left out: reading the file (``csv_rows.py``), joining rows of one machine (``catalogue.py``).
"""

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from heterps_compile.errors import InputError
from heterps_compile.escape import short

from .as_device import gpu_memory_bytes, sized_gpu
from .csv_rows import Row
from .offer import CURRENCY, Offer
from .priced_apart import GpuRow, HostRow, gpus_of

_GIB = 2.0**30
_MOST_PRICE = 1e6  # USD an hour
_MOST_GIB = 1e6
_GPU = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SIZE_IN_MIB = re.compile(r"SizeInMiB['\"]?:\s*(\d{1,9})\b")
_PRICE = f"a price above zero in {CURRENCY} per hour"
_MEMORY = "the memory of the machine in GiB"


@dataclass(frozen=True, slots=True)
class File:
    """What is known of a file besides its rows.

    Attributes:
        provider: Whose offers it has, where no column says; told by its name and folder.
        date: When it was written, where no column says when prices were read.
        title: Its name, for sources.
    """

    provider: str
    date: dt.date
    title: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a row is no offer, in words that follow a number of rows."""

    reason: str


@dataclass(frozen=True, slots=True)
class SpotRow:
    """A row that has the spot price of a machine alone; another has what it costs on demand.

    Attributes:
        offer: With the spot price in both places.
    """

    offer: Offer


Found = Offer | SpotRow | LeftOut | HostRow | GpuRow
"""What a row may be."""


@dataclass(frozen=True, slots=True)
class Format:
    """How rows of a kind of catalogue are read.

    Attributes:
        title: Of the kind.
        needed: Columns without which it is not this kind.
        read: Makes an offer of a row.
        joins_rows: Whether rows of one machine, of several zones, are one offer; else they contradict each other.
    """

    title: str
    needed: tuple[str, ...]
    read: Callable[[Row, File], Found]
    joins_rows: bool


OWN_COLUMNS: Mapping[str, str] = {
    "provider": "who rents it out",
    "region": "where",
    "instance": "what the provider calls it",
    "gpu": "the kind of GPU; empty for none",
    "gpus": "how many; empty for none",
    "cores": "virtual CPUs",
    "memory_gib": "memory of the machine",
    "gpu_memory_gib": "memory of one GPU; empty where unknown",
    "network_gbit_per_s": "of its network card; empty where unknown",
    "inner_gbyte_per_s": "between two GPUs of it; empty where unknown",
    "price_usd_per_hour": "on demand",
    "spot_usd_per_hour": "as a transient machine; empty where it is not sold as one",
    "price_date": "when the prices were read, as 2026-11-20",
    "source": "where they were read",
}
"""The columns of this package's own format, and what stands in each."""


def format_of(columns: Mapping[str, str], where: str) -> Format:
    """Return the format of a file with such columns.

    Raises:
        InputError: where no format has them; names what is missing or in another currency.
    """
    for known in FORMATS:
        if set(known.needed) <= set(columns):
            return known
    for name in columns:
        money = re.fullmatch(r"(?:price|spot)_([a-z]{3})_per_hour", name)
        if money and money[1].upper() != CURRENCY:
            raise InputError(
                f"{where}: column {short(name)} is in {money[1].upper()}, and offers are priced in {CURRENCY}; convert "
                "the prices and name the column price_usd_per_hour"
            )
    nearest = max(FORMATS, key=lambda known: len(set(known.needed) & set(columns)))
    missing = ", ".join(name for name in nearest.needed if name not in columns)
    raise InputError(f"{where} is no catalogue that is known: as one of {nearest.title} it lacks the columns {missing}")


def _own(row: Row, file: File) -> Found:
    del file
    gpu = _gpu_name(row, "gpu") if row.has("gpu") else ""
    if not gpu and row.has("gpus") and row.cells["gpus"] != "0":
        raise row.wrong(f"there are {short(row.cells['gpus'])} gpus, and no gpu says of which kind")
    return Offer(
        provider=row.name("provider", "a provider"),
        region=row.name("region", "a region"),
        instance=row.name("instance", "the name of an instance"),
        gpu=gpu,
        gpus=row.whole("gpus", "how many GPUs the machine has") if gpu else 0,
        cores=row.whole("cores", "how many virtual CPUs the machine has"),
        memory_bytes=row.number("memory_gib", _MEMORY, most=_MOST_GIB) * _GIB,
        gpu_memory_bytes=_gpu_memory(row, "gpu_memory_gib", gpu, _GIB),
        network_bytes_per_s=_or_unknown(row, "network_gbit_per_s", "the network's Gbit/s") * 1e9 / 8,
        inner_bytes_per_s=_or_unknown(row, "inner_gbyte_per_s", "GB/s between two GPUs") * 1e9,
        price_per_hour=_price(row, "price_usd_per_hour"),
        spot_per_hour=_price(row, "spot_usd_per_hour") if row.has("spot_usd_per_hour") else None,
        price_date=read_date(row, "price_date", "when the price was read"),
        source=row.text("source", "where the price was read"),
    )


def _skypilot(row: Row, file: File) -> Found:
    accelerator = row.cells["AcceleratorName"]
    if accelerator.lower().startswith("tpu"):
        return LeftOut("of TPUs")
    count = row.number("AcceleratorCount", "how many accelerators", most=1e5) if accelerator else 0.0
    if count != int(count):
        return LeftOut("with a part of a GPU")
    spot = _price(row, "SpotPrice") if row.has("SpotPrice") else None
    if not row.has("Price") and spot is None:
        return LeftOut("without a price")
    gpu = _gpu_name(row, "AcceleratorName") if accelerator else ""
    region, zone = row.name("Region", "a region"), row.cells.get("AvailabilityZone", "")
    size = _SIZE_IN_MIB.search(row.cells.get("GpuInfo", ""))
    memory_bytes = 0.0 if not gpu else float(size[1]) * 2**20 if size else gpu_memory_bytes(gpu)
    if not row.has("InstanceType"):
        if not gpu or not row.has("Price"):
            return LeftOut("of no machine")
        return GpuRow(region, zone, gpu, int(count), memory_bytes, _price(row, "Price"), spot)
    offer = Offer(
        provider=file.provider,
        region=region,
        instance=row.name("InstanceType", "the name of an instance"),
        gpu=gpu,
        gpus=int(count),
        cores=_cores(row, "vCPUs"),
        memory_bytes=row.number("MemoryGiB", _MEMORY, most=_MOST_GIB) * _GIB,
        gpu_memory_bytes=memory_bytes,
        network_bytes_per_s=0.0,
        inner_bytes_per_s=0.0,
        price_per_hour=_price(row, "Price") if row.has("Price") else spot or math.nan,
        spot_per_hour=spot,
        price_date=file.date,
        source=f"SkyPilot catalogue {file.title}",
    )
    if not row.has("Price"):
        return SpotRow(offer)
    apart = None if gpu else gpus_of(offer.instance)
    return offer if apart is None else HostRow(replace(offer, gpu=apart[0], gpus=apart[1]), zone)


def _gpuhunt(row: Row, file: File) -> Found:
    spot = row.cells["spot"].lower()
    if spot not in ("true", "false"):
        raise row.wrong(f"spot {short(row.cells['spot'])} is neither True nor False")
    if row.cells.get("gpu_vendor") == "google" or row.cells["gpu_name"].lower().startswith("tpu-"):
        return LeftOut("of TPUs")
    gpu = _gpu_name(row, "gpu_name") if row.has("gpu_name") else ""
    memory_bytes = _gpu_memory(row, "gpu_memory", gpu, _GIB)
    price = _price(row, "price")
    offer = Offer(
        provider=file.provider,
        region=row.name("location", "a region"),
        instance=row.name("instance_name", "the name of an instance"),
        gpu=sized_gpu(gpu, memory_bytes),
        gpus=row.whole("gpu_count", "how many GPUs the machine has") if gpu else 0,
        cores=_cores(row, "cpu"),
        memory_bytes=row.number("memory", _MEMORY, most=_MOST_GIB) * _GIB,
        gpu_memory_bytes=memory_bytes,
        network_bytes_per_s=0.0,
        inner_bytes_per_s=0.0,
        price_per_hour=price,
        spot_per_hour=price if spot == "true" else None,
        price_date=file.date,
        source=f"gpuhunt catalogue {file.title}",
    )
    return SpotRow(offer) if spot == "true" else offer


FORMATS = (
    Format("heterps-compile", tuple(OWN_COLUMNS), _own, joins_rows=False),
    Format(
        "SkyPilot",
        ("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "Price", "SpotPrice", "Region"),
        _skypilot,
        joins_rows=True,
    ),
    Format(
        "gpuhunt",
        ("instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory", "spot"),
        _gpuhunt,
        joins_rows=True,
    ),
)
"""In the order in which they are tried; no two have the same columns."""


def _gpu_name(row: Row, column: str) -> str:
    """Return a kind of GPU as pools spell it."""
    name = row.name(column, "a kind of GPU").lower().replace(" ", "-")
    if not _GPU.fullmatch(name):
        raise row.wrong(
            f"{column} {short(row.cells[column])} is no kind of GPU; expected letters, digits, dots, dashes, "
            "underscores"
        )
    return name


def _gpu_memory(row: Row, column: str, gpu: str, unit_bytes: float) -> float:
    if not gpu:
        return 0.0
    if not row.has(column):
        return gpu_memory_bytes(gpu)
    return row.number(column, "the memory of one GPU in GiB", most=_MOST_GIB) * unit_bytes


def _cores(row: Row, column: str) -> int:
    """Return virtual CPUs; a half counts as none, and 0.5 of one as 1."""
    return max(1, int(row.number(column, "how many virtual CPUs the machine has", most=1e5)))


def _or_unknown(row: Row, column: str, what: str) -> float:
    return row.number(column, what, most=1e6) if row.has(column) else 0.0


def _price(row: Row, column: str) -> float:
    return row.number(column, _PRICE, most=_MOST_PRICE)


def read_date(row: Row, column: str, what: str) -> dt.date:
    """Return the date of a column, which says ``what``.

    Raises:
        InputError: with the row.
    """
    text = row.cells[column]
    try:
        if len(text) != len("2026-11-20"):
            raise ValueError
        return dt.date.fromisoformat(text)
    except ValueError as error:
        raise row.wrong(f"{column} {short(text)} is no date; expected {what}, as 2026-11-20") from error
