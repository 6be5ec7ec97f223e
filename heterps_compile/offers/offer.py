"""A machine that a cloud rents, with what it has and what it costs.

Prices are in US dollars an hour, of the whole machine. Left out: disks, traffic, prices for commitments, and whether a
machine can be had just now.
"""

import datetime as dt
from dataclasses import dataclass

from heterps_compile.errors import InputError

CURRENCY = "USD"


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of machine in one region.

    Attributes:
        provider: Who rents it out, such as ``"aws"``.
        region: Where.
        instance: What the provider calls it.
        gpu: The kind of its GPUs, as pools spell device types (``"v100"``); "" for a machine without any.
        gpus: How many it has.
        cores: Virtual CPUs.
        memory_bytes: Of the host.
        gpu_memory_bytes: Of one GPU; 0 where the catalogue does not say, or there is none.
        network_bytes_per_s: Of the machine's network card; 0 where the catalogue does not say.
        inner_bytes_per_s: Between two GPUs of it; 0 where the catalogue does not say.
        price_per_hour: On demand.
        spot_per_hour: As a transient machine; None where it is not sold as one.
        price_date: When the prices were read.
        source: Where.
    """

    provider: str
    region: str
    instance: str
    gpu: str
    gpus: int
    cores: int
    memory_bytes: float
    gpu_memory_bytes: float
    network_bytes_per_s: float
    inner_bytes_per_s: float
    price_per_hour: float
    spot_per_hour: float | None
    price_date: dt.date
    source: str

    @property
    def units(self) -> int:
        """Return how many units a plan may use of it: its GPUs, else its cores."""
        return self.gpus or self.cores

    @property
    def title(self) -> str:
        """Return what messages call it."""
        return f"{self.provider} {self.instance} in {self.region}"

    def price(self, *, spot: bool = False) -> float:
        """Return what the machine costs an hour.

        Raises:
            InputError: where it is asked for as spot and not sold so.
        """
        if not spot:
            return self.price_per_hour
        if self.spot_per_hour is None:
            raise InputError(
                f"{self.title} has no spot price; take it on demand for {self.price_per_hour:g} {CURRENCY}/h"
            )
        return self.spot_per_hour
