"""The hosts of a file, over OpenSSH: what would be typed on each is started there, followed, and ended.

The file of hosts lies under the same path on all of them, as the folder and the data do. Left out: copying it there.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.launch.hosts_file import Host
from heterps_compile.runtime.launch.prepare import Prepared

from .contract import Capabilities, Engine, Job, Streams, Written
from .deal import Deal, deal_widths, fill_in_order, lacking
from .elastic_limits import Limits
from .going_on import go_on
from .hosts_of_job import hosts_of
from .over_ssh import PROGRAM, Remote
from .ssh_hosts import SshHosts


@dataclass(frozen=True, slots=True)
class Ssh(Engine):
    """Starts the ranks of every host over ssh; fields are its options (``launch_options.py``)."""

    name: ClassVar[str] = "ssh"
    capabilities: ClassVar[Capabilities] = Capabilities(programs=(PROGRAM,), changes_widths=True)

    python: str = "python3"
    ssh_config: str | None = None
    no_check: bool = False
    max_restarts: int = 0
    elastic: tuple[int, int] | None = None

    def check(self, job: Job) -> None:
        """Check that the hosts fit the run; one that is elastic begins on those that answer."""
        hosts = hosts_of(job)
        self._limits.check(job, len(hosts.known.hosts))
        if job.options.host is not None and (self.max_restarts or self.elastic):
            raise InputError("--host starts the ranks of one host, and a run goes on with all of them; leave it out")
        if self.elastic is None:
            hosts.check(looks_up=not self.no_check)
        self._remote.check()

    def write(self, job: Job) -> Sequence[Written]:
        """Return the line for every host that takes part at the start."""
        job = self._dealt(job)
        hosts = hosts_of(job)
        return [
            Written(hosts.title(number), shlex.join(self._remote.words(hosts.address(number), command)))
            for number, command in zip(hosts.numbers, self._commands(job), strict=True)
        ]

    def start(self, job: Job, streams: Streams) -> int:
        """Start the hosts' lines over ssh, follow them, and start them again where a host is lost, comes or goes."""
        if job.options.host is not None:  # a part of a run, whose other ranks somebody else starts
            return self._remote.follow(self._by_address(job), streams)
        return go_on(SshHosts(job, self._remote, self._by_address), job, self._limits, streams)

    @property
    def _limits(self) -> Limits:
        return Limits(self.elastic, self.max_restarts)

    @property
    def _remote(self) -> Remote:
        return Remote(self.python, self.ssh_config)

    def _dealt(self, job: Job) -> Job:
        """Return the run as it begins where all hosts answer; one that is elastic need not take all their slots."""
        if self.elastic is None:
            return job
        hosts = hosts_of(job).known.hosts
        found = deal_widths(job.prepared, job.options, hosts, self._fill)
        if found is None:
            raise RunError(lacking(job.prepared, hosts))
        return Job(replace(found.options, deal=found.deal), found.prepared)

    def _fill(self, prepared: Prepared, hosts: Sequence[Host]) -> Deal | None:
        deal = fill_in_order(prepared, hosts)
        return deal if self._limits.takes(deal) else None

    def _by_address(self, job: Job) -> list[tuple[str, list[str]]]:
        hosts = hosts_of(job)
        return list(zip(map(hosts.address, hosts.numbers), self._commands(job), strict=True))

    def _commands(self, job: Job) -> list[list[str]]:
        hosts = hosts_of(job)
        return [[self.python, "-m", "heterps_compile", *hosts.words(number)] for number in hosts.numbers]
