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
        spread: One standard deviation of it over clusters.
        source: Of the efficiency; begins with "measured" or "assumed".
    """

    efficiency: float
    spread: float
    source: str


# the spread over the six kinds of machines of cloud-ethernet: no other kind of link was measured on two clusters
_SPREAD = 0.22
LINK_KINDS: Mapping[str, LinkKind] = MappingProxyType(
    {
        "nvlink": LinkKind(0.73, _SPREAD, "measured on A100 alone: all-reduces that vTrain publishes (MICRO 2024)"),
        "cloud-ethernet": LinkKind(0.65, _SPREAD, "measured in one cloud: 16 to 25 MB, by Sailor (SOSP 2025)"),
        "fabric": LinkKind(0.92, _SPREAD, "measured on one Slingshot cluster: above 100 MB, by Sailor (SOSP 2025)"),
        "infiniband": LinkKind(0.92, _SPREAD, "assumed to be as fabric: nothing was measured"),
        "ethernet": LinkKind(0.65, _SPREAD, "assumed to be as in a cloud: nothing was measured"),
        "pcie": LinkKind(0.75, _SPREAD, "assumed, 12 of the 16 GB/s of PCIe 3.0 x16: nothing was measured"),
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
    text, names = shorten(printable(repr(value)), 60), ", ".join(f'"{name}"' for name in LINK_KINDS)
    raise InputError(f"the efficiency is {text}; expected a number above 0 and at most 1, or one of {names}")
