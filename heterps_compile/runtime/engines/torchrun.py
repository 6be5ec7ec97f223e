"""torchrun: its agents start the ranks, meet by the c10d rendezvous, and start all anew where one was lost.

Without a file of hosts all ranks are of this machine. With one, an agent is started on every host over ssh. Agents
number their machines as they come, so every one is told which host it is (``--host``), and its ranks are those of the
file of hosts: a stage stays on the device type that it is planned for. The agents are ``torchrun_agent.py``.

What starts anew goes on from the last checkpoint, by ``--resume``, with the widths that it had. Left out: other widths.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from heterps_compile.errors import InputError

from .contract import Capabilities, Engine, Job, Streams, Written
from .followed import Followed, follow
from .hosts_of_job import JobHosts, hosts_of
from .over_ssh import Remote
from .restarts import check_restarts, resume_words

_AGENT = "heterps_compile.runtime.engines.torchrun_agent"
_HERE = "127.0.0.1:0"  # the agent takes a free port


@dataclass(frozen=True, slots=True)
class Torchrun(Engine):
    """Starts agents of torchrun; fields are its options (``launch_options.py``)."""

    name: ClassVar[str] = "torchrun"
    capabilities: ClassVar[Capabilities] = Capabilities()

    python: str = "python3"
    ssh_config: str | None = None
    no_check: bool = False
    max_restarts: int = 0
    rendezvous_port: int = 29400

    def check(self, job: Job) -> None:
        """Check that the hosts fit the run, and that there is something to go on from after a restart."""
        if job.options.hosts is None:
            if job.options.host is not None:
                raise InputError("--host means nothing without --hosts; leave it out")
        else:
            hosts = hosts_of(job)
            hosts.check(looks_up=not self.no_check)
            if self.rendezvous_port == hosts.known.port:
                raise InputError(
                    f"port {self.rendezvous_port} is where the ranks meet (port = ... in the file of hosts); give the "
                    f"agents another (--rendezvous-port PORT)"
                )
            self._remote.check()
        check_restarts(job, self.max_restarts)

    def write(self, job: Job) -> Sequence[Written]:
        """Return the line for this machine, or for every host."""
        if job.options.hosts is None:
            return [Written(f"here: {job.prepared.world_size} processes", shlex.join(self._here(job)))]
        hosts = hosts_of(job)
        return [
            Written(
                hosts.title(number),
                shlex.join(self._remote.words(hosts.address(number), self._on_host(job, hosts, number))),
            )
            for number in hosts.numbers
        ]

    def start(self, job: Job, streams: Streams) -> int:
        """Start the agents, and follow them."""
        if job.options.hosts is None:
            return follow([Followed(tuple(self._here(job)))], streams)[0]
        hosts = hosts_of(job)
        return self._remote.follow(
            [(hosts.address(number), self._on_host(job, hosts, number)) for number in hosts.numbers], streams
        )

    @property
    def _remote(self) -> Remote:
        return Remote(self.python, self.ssh_config)

    def _here(self, job: Job) -> list[str]:
        where = ("--nnodes=1", f"--nproc-per-node={job.prepared.world_size}", f"--rdzv-endpoint={_HERE}")
        return [sys.executable, *self._agent(job, where), *job.run_words(*resume_words(job, self.max_restarts))]

    def _on_host(self, job: Job, hosts: JobHosts, number: int) -> list[str]:
        first, address = hosts.address(1), hosts.address(number)
        endpoint = f"[{first}]:{self.rendezvous_port}" if ":" in first else f"{first}:{self.rendezvous_port}"
        where = (
            f"--nnodes={len(hosts.known.hosts)}",
            f"--nproc-per-node={hosts.known.hosts[number - 1].slots}",
            f"--rdzv-endpoint={endpoint}",
            f"--local-addr={address}",
        )
        return [self.python, *self._agent(job, where), *hosts.words(number, *resume_words(job, self.max_restarts))]

    def _agent(self, job: Job, where: Sequence[str]) -> list[str]:
        """Return the words of torchrun before those of ``heterps-compile``."""
        named = (f"--rdzv-id=heterps-{job.prepared.plan_sha256[:12]}", f"--max-restarts={self.max_restarts}")
        return ["-m", _AGENT, "--rdzv-backend=c10d", *where, *named, "-m", "--", "heterps_compile"]
