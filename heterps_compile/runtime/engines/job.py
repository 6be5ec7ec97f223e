"""A run to start on other machines: its options, what is derived from them, and the machines that were chosen for it.

Left out: starting it (``ray_cluster.py``), printing what starts it (``launch_lines.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TextIO

from heterps_compile.runtime.launch.prepare import Prepared
from heterps_compile.runtime.launch.run_options import RunOptions, option_words

from .advice import Advisor


@dataclass(frozen=True, slots=True)
class RentedAs:
    """The cloud instance that was chosen for a device type.

    Attributes:
        provider: Its cloud, such as ``"aws"``.
        region: The region of its offer.
        instance: The provider's name of the instance type.
        is_spot: Whether the instance is transient.
        units: Devices in one instance.
    """

    provider: str
    region: str
    instance: str
    is_spot: bool
    units: int


@dataclass(frozen=True, slots=True)
class Job:
    """A run to start on other machines.

    Attributes:
        options: As the user gave them.
        prepared: The plan, the layout and the ranks of the run.
        rented: The instance that was chosen for each device type, by the type's name.
        advisor: Decides what an elastic run does about a lost host; None to continue on the hosts that are left.
        environment: Variables that Ray adds to the environment of every rank.
    """

    options: RunOptions
    prepared: Prepared
    rented: Mapping[str, RentedAs] = field(default_factory=lambda: MappingProxyType({}))
    advisor: Advisor | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def run_words(self, *more: str) -> list[str]:
        """Return the words after ``heterps-compile`` that start this run, then further options."""
        return ["run", self.options.directory, *option_words(self.options), *more]


@dataclass(frozen=True, slots=True)
class Streams:
    """The destinations of what the processes of a run print."""

    out: TextIO
    err: TextIO
