"""No engine: the line that is typed on every machine of a file of hosts.

Left out: typing it (``ssh.py``).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .contract import Capabilities, Engine, Job, Written
from .hosts_of_job import hosts_of


@dataclass(frozen=True, slots=True)
class ByHand(Engine):
    """Prints lines; fields are its options (``launch_options.py``)."""

    name: ClassVar[str] = "hand"
    capabilities: ClassVar[Capabilities] = Capabilities(starts=False)

    no_check: bool = False

    def check(self, job: Job) -> None:
        """Check that the hosts fit the run."""
        hosts_of(job).check(looks_up=not self.no_check)

    def write(self, job: Job) -> Sequence[Written]:
        """Return the line of every host that is meant."""
        hosts = hosts_of(job)
        return [
            Written(hosts.title(number), shlex.join(["heterps-compile", *hosts.words(number)]))
            for number in hosts.numbers
        ]
