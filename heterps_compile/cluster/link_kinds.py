"""Part of a sold or data-sheet bandwidth that collectives reach, by kind of link.

A pool names the kind (``network_efficiency = "cloud-ethernet"``) or gives a number, as it does for kernels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten


@dataclass(frozen=True, slots=True)
class LinkKind:
    """A kind of link.

    Attributes:
        efficiency: Part of its bandwidth in one direction that is reached, in (0, 1].
        spread: One standard deviation of it.
        source: Of both.
    """

    efficiency: float
    spread: float
    source: str


_SAILOR = "bandwidths that Sailor publishes (SOSP 2025)"
LINK_KINDS: Mapping[str, LinkKind] = MappingProxyType(
    {
        "nvlink": LinkKind(0.73, 0.04, "NCCL all-reduces of 1 GiB on 2 to 8 A100 that vTrain publishes (MICRO 2024)"),
        "cloud-ethernet": LinkKind(0.65, 0.22, f"messages of 16 to 25 MB in Google Cloud, {_SAILOR}"),
        "fabric": LinkKind(0.92, 0.01, f"messages above 100 MB on Slingshot cards of 200 Gbit/s, {_SAILOR}"),
    }
)


def read_efficiency(value: object) -> float:
    """Return the part of a bandwidth that is reached, of a kind's name or a number.

    Raises:
        InputError: where it is neither.
    """
    if isinstance(value, str) and value in LINK_KINDS:
        return LINK_KINDS[value].efficiency
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    names = ", ".join(f'"{name}"' for name in LINK_KINDS)
    text = shorten(printable(repr(value)), 60)
    raise InputError(f"the efficiency is {text}; expected a number above 0 and at most 1, or one of {names}")
