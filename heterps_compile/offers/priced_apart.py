"""Machines whose GPUs SkyPilot prices in rows of their own: Google's machines that come with GPUs.

The machine's row has the host's price alone, and nothing says that it cannot be rented so; the GPUs' rows name no
machine. Both are of one zone, and the sum is what the machine costs::

    a2-highgpu-1g,12,85,,,,us-central1,us-central1-a,0.73948,0.44371
    ,,,A100,1,,us-central1,us-central1-a,2.93391,0.85000              ->  a2-highgpu-1g with an A100, 3.67339

Left out: GPUs that are attached to machines of any family (T4, V100, P100), where the user chooses the machine.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .offer import Offer

_FAMILIES = {
    "a2-highgpu": "a100",
    "a2-megagpu": "a100",
    "a2-ultragpu": "a100-80gb",
    "a3-edgegpu": "h100",
    "a3-highgpu": "h100",
    "a3-megagpu": "h100-mega",
    "a3-ultragpu": "h200",
    "a4-highgpu": "b200",
    "g2-standard": "l4",
}
_SEVERAL = {"24": 2, "48": 4, "96": 8}  # GPUs of a g2-standard by its cores; the others have one
_NAME = re.compile(r"([a-z]\d-[a-z]+)-(\d{1,3})(g?)")


@dataclass(frozen=True, slots=True)
class HostRow:
    """A machine that has GPUs, with the price of all but these.

    Attributes:
        offer: With its GPUs.
        zone: Where both are.
    """

    offer: Offer
    zone: str


@dataclass(frozen=True, slots=True)
class GpuRow:
    """GPUs without a machine."""

    region: str
    zone: str
    gpu: str
    gpus: int
    gpu_memory_bytes: float
    price_per_hour: float
    spot_per_hour: float | None


def gpus_of(instance: str) -> tuple[str, int] | None:
    """Return the GPUs that a machine of such a name comes with; None where it comes with none that is known."""
    name = _NAME.fullmatch(instance)
    if name is None or name[1] not in _FAMILIES:
        return None
    return _FAMILIES[name[1]], int(name[2]) if name[3] else _SEVERAL.get(name[2], 1)


def join(hosts: Sequence[HostRow], gpus: Sequence[GpuRow]) -> tuple[Iterator[Offer], int, int]:
    """Return the machines with what their GPUs cost, how many hosts found none, and how many GPUs no host.

    Spot prices are added where both have one.
    """
    priced = {(each.region, each.zone, each.gpu, each.gpus): each for each in gpus}
    keys = [(each.offer.region, each.zone, each.offer.gpu, each.offer.gpus) for each in hosts]
    joined = (_sum(host, priced[key]) for host, key in zip(hosts, keys, strict=True) if key in priced)
    return joined, sum(key not in priced for key in keys), len(priced.keys() - set(keys))


def _sum(host: HostRow, gpu: GpuRow) -> Offer:
    offer, spot = host.offer, None
    if offer.spot_per_hour is not None and gpu.spot_per_hour is not None:
        spot = offer.spot_per_hour + gpu.spot_per_hour
    return replace(
        offer,
        gpu_memory_bytes=gpu.gpu_memory_bytes,
        price_per_hour=offer.price_per_hour + gpu.price_per_hour,
        spot_per_hour=spot,
    )
