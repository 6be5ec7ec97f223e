"""The hosts of a file, over OpenSSH: what would be typed on each is started there, followed, and ended.

The file of hosts lies under the same path on all of them, as the folder and the data do. Left out: copying it there.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .contract import Capabilities, Engine, Job, Streams, Written
from .hosts_of_job import hosts_of
from .over_ssh import PROGRAM, Remote


@dataclass(frozen=True, slots=True)
class Ssh(Engine):
    """Starts the ranks of every host over ssh; fields are its options (``launch_options.py``)."""

    name: ClassVar[str] = "ssh"
    capabilities: ClassVar[Capabilities] = Capabilities(programs=(PROGRAM,))

    python: str = "python3"
    ssh_config: str | None = None
    no_check: bool = False

    def check(self, job: Job) -> None:
        """Check that the hosts fit the run."""
        hosts_of(job).check(looks_up=not self.no_check)
        self._remote.check()

    def write(self, job: Job) -> Sequence[Written]:
        """Return the line for every host."""
        hosts = hosts_of(job)
        return [
            Written(hosts.title(number), shlex.join(self._remote.words(hosts.address(number), command)))
            for number, command in zip(hosts.numbers, self._commands(job), strict=True)
        ]

    def start(self, job: Job, streams: Streams) -> int:
        """Start the hosts' lines over ssh, and follow them."""
        hosts = hosts_of(job)
        addresses = map(hosts.address, hosts.numbers)
        return self._remote.follow(list(zip(addresses, self._commands(job), strict=True)), streams)

    @property
    def _remote(self) -> Remote:
        return Remote(self.python, self.ssh_config)

    def _commands(self, job: Job) -> list[list[str]]:
        hosts = hosts_of(job)
        return [[self.python, "-m", "heterps_compile", *hosts.words(number)] for number in hosts.numbers]
