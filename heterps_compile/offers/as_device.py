"""Offers as device types of a pool.

A unit is one GPU of the machine, or one virtual CPU of a machine without GPUs; its price is its share of the machine,
which is rented whole. What a unit computes and moves is its data sheet's: those of the built-in pools, and of
``data_sheets.toml`` for the GPUs that no built-in pool has.

Left out: host cores of machines with GPUs, which no stage is placed on.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cluster.link_kinds import LINK_KINDS
from heterps_compile.cluster.load import load_cluster, make_cluster
from heterps_compile.cluster.pool_file import MAX_UNITS, is_name
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.units import format_count

from .offer import CURRENCY, Offer

CPU = "cpu-core"
"""What pools call a unit of a machine without GPUs."""

_POOLS = ("cloud-mix", "heterps-paper")  # whose data sheets count, the first that has a name
_BUS_BYTES_PER_S = 16e9 * LINK_KINDS["pcie"].efficiency  # PCIe 3.0 x16
_INNER_LATENCY_S = 5e-6
_FABRIC_BYTES_PER_S = 25e9  # sold with machines from here on is not Ethernet over TCP
GUESS_OVER = 3.0
"""A guessed network is at most this many times too fast for nine of ten machines.

Of 48 machines in the built-in catalogue with a known network, the data sheet is at most 2.9 times as fast for 43.
"""
_MEMORY_SUFFIX = re.compile(r"(.+)-(\d{1,4})gb")
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 64  # characters of a device type's name


@dataclass(frozen=True, slots=True)
class Rental:
    """An offer, and how it is bought.

    Attributes:
        offer: What.
        spot: Whether as a transient machine.
    """

    offer: Offer
    spot: bool = False

    def __post_init__(self) -> None:
        """Refuse a transient machine that is not sold as one."""
        self.offer.price(spot=self.spot)

    @property
    def price_per_hour(self) -> float:
        """Return what the machine costs an hour."""
        return self.offer.price(spot=self.spot)

    @property
    def name(self) -> str:
        """Return what a pool of nothing else calls its units: provider, region, instance, and whether spot."""
        parts = (self.offer.provider, self.offer.region, self.offer.instance, *(("spot",) if self.spot else ()))
        return _as_name(".".join(_FOREIGN.sub("-", part).strip("-.") for part in parts))


def _as_name(text: str) -> str:
    return text if is_name(text) else text.lstrip("._-")[-_LONGEST:].lstrip("._-") or "machine"


def names_of(rentals: Sequence[Rental]) -> tuple[str, ...]:
    """Return what a pool calls the units of several offers, each by a name of its own.

    Where two have one name, as machines to which a cloud attaches any GPU, the kind of GPU follows it, and a number
    where that is the same too.
    """
    plain = [each.name for each in rentals]
    names: list[str] = []
    for each, name in zip(rentals, plain, strict=True):
        sized = name if plain.count(name) == 1 else _as_name(f"{name}.{each.offer.gpu or CPU}")
        told = sized
        for number in range(2, len(rentals) + 2):
            if told not in names and (told == name or told not in plain):
                break
            told = _as_name(f"{sized}-{number}")
        names.append(told)
    return tuple(names)


def known_gpus() -> tuple[str, ...]:
    """Return the kinds of GPUs that have a data sheet, ascending."""
    return tuple(sorted(name for name, sheet in _sheets().items() if sheet.kind == "gpu"))


def data_sheet(gpu: str) -> DeviceType:
    """Return what is known of a kind of GPU, or of a virtual CPU for "".

    ``v100-32gb`` is the V100 with another memory, where it has no sheet of its own.

    Raises:
        UnknownNameError: where no data sheet is known; has the nearest.
    """
    name = gpu or CPU
    sheets = _sheets()
    if name in sheets:
        return sheets[name]
    sized = _MEMORY_SUFFIX.fullmatch(name)
    if sized is not None and sized[1] in sheets:
        return replace(sheets[sized[1]], name=name, memory_bytes=float(sized[2]) * 2**30)
    raise UnknownNameError("GPU: no data sheet says what it computes and moves", gpu, known_gpus())


def gpu_memory_bytes(gpu: str) -> float:
    """Return the memory of a kind of GPU as its data sheet has it; 0 where there is none."""
    try:
        return data_sheet(gpu).memory_bytes
    except UnknownNameError:
        return 0.0


def sized_gpu(gpu: str, memory_bytes: float) -> str:
    """Return the name of a GPU with so much memory, where kinds of one name have data sheets by memory."""
    sized = f"{gpu}-{memory_bytes / 2**30:.0f}gb"
    return sized if sized in _sheets() else gpu


def device_of(offer: Offer, *, spot: bool = False, machines: int = 1) -> DeviceType:
    """Return the units of an offer as a device type.

    Args:
        offer: The machine.
        spot: Priced as a transient machine.
        machines: How many may be rented.

    Raises:
        UnknownNameError: where no data sheet of the GPU is known.
        InputError: where it is not sold as spot, or there are too many machines.
    """
    sheet, units = data_sheet(offer.gpu), offer.units
    if not 1 <= machines <= MAX_UNITS // units:
        raise InputError(f"{machines:,} x {offer.title} is no number of machines from 1 to {MAX_UNITS // units:,}")
    sold, kind = _network(offer)
    share = offer.gpu_memory_bytes or sheet.memory_bytes if offer.gpu else offer.memory_bytes / units
    one = replace(
        sheet,
        name=Rental(offer, spot).name,
        price_per_hour=offer.price(spot=spot) / units,
        price_source=offer.source,
        price_date=offer.price_date.isoformat(),
        max_units=machines * units,
        memory_bytes=share,
        network_bytes_per_s=sold * LINK_KINDS[kind].efficiency,
    )
    if units == 1:
        return one
    between = _BUS_BYTES_PER_S if offer.gpu else sheet.memory_bytes_per_s
    if offer.inner_bytes_per_s:
        between = offer.inner_bytes_per_s * (LINK_KINDS["nvlink"].efficiency if offer.gpu else 1.0)
    return replace(
        one, units_per_machine=units, inner_bytes_per_s=between, inner_latency_s=_INNER_LATENCY_S, whole_machines=True
    )


def _network(offer: Offer) -> tuple[float, str]:
    """Find the sold or guessed bandwidth, and the kind of link."""
    sold = offer.network_bytes_per_s or guessed_network_bytes_per_s(offer)
    return sold, "fabric" if sold >= _FABRIC_BYTES_PER_S else "cloud-ethernet"


def guessed_network_bytes_per_s(offer: Offer) -> float:
    """Sum the networks of the data sheets of an offer's units."""
    return data_sheet(offer.gpu).network_bytes_per_s * offer.units


def assumed(offer: Offer) -> tuple[str, ...]:
    """Return what an offer does not say and :func:`device_of` therefore takes, in sentences."""
    told = []
    if not offer.network_bytes_per_s:
        guess = f"{format_count(guessed_network_bytes_per_s(offer))}B/s"
        told.append(f"the catalogue does not say what network {offer.title} has; {guess} is taken")
    if offer.gpus > 1 and not offer.inner_bytes_per_s:
        bus = f"PCIe with {format_count(_BUS_BYTES_PER_S)}B/s is taken, {LINK_KINDS['pcie'].source}"
        told.append(f"the catalogue does not say what connects the {offer.gpus} GPUs of {offer.title}; {bus}")
    link = LINK_KINDS[kind := _network(offer)[1]]
    reached = f"{kind} is taken to reach {link.efficiency:g} (± {link.spread:g}) of the bandwidth that is sold"
    return *told, f"{reached}, {link.source}"


def pool_of(chosen: Mapping[Rental, int], name: str = "offers") -> Cluster:
    """Return the pool of so many machines of each offer; ``heterps_compile.cluster.pool_toml`` writes its file.

    Raises:
        InputError: where nothing is chosen.
        UnknownNameError: where no data sheet of a GPU is known.
    """
    types = [
        replace(device_of(of.offer, spot=of.spot, machines=machines), name=name)
        for (of, machines), name in zip(chosen.items(), names_of(list(chosen)), strict=True)
    ]
    dates = sorted({of.offer.price_date for of in chosen})
    described = f", priced {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "") if dates else ""
    return Cluster(
        name=name,
        description=f"Machines chosen from a catalogue{described}",
        currency=CURRENCY,
        device_types=tuple(types),
        source=name,
    )


@cache
def _sheets() -> Mapping[str, DeviceType]:
    text = resources.files("heterps_compile.offers").joinpath("data_sheets.toml").read_text("utf-8")
    own = make_cluster(tomllib.loads(text), "data-sheets", "data_sheets.toml")
    found: dict[str, DeviceType] = {}
    for pool in (*map(load_cluster, _POOLS), own):
        for device in pool.device_types:
            found.setdefault(device.name, device)
    return found
