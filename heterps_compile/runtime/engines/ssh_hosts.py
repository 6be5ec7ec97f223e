"""The hosts of a file as the machines of a run whose widths may change: read again where it changes, asked over ssh.

Left out: the words that a host is sent (``ssh.py``).
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from heterps_compile.runtime.launch.hosts_file import Host, dealt, read_hosts
from heterps_compile.runtime.launch.prepare import Prepared

from .contract import Job, Streams
from .deal import Deal, fill_in_order
from .followed import Following
from .hosts_of_job import JobHosts, hosts_of
from .machines import Asking, Left, Machines, Started
from .over_ssh import Remote, lost_of, lost_way

Commands = Callable[[Job], Sequence[tuple[str, Sequence[str]]]]
"""Returns pairs of an address and the words to run there, of a run."""


class SshHosts(Machines):
    """The hosts of a file, reached over ssh."""

    def __init__(self, job: Job, remote: Remote, commands: Commands) -> None:
        """Read the file.

        Args:
            job: The run as asked for.
            remote: How hosts are reached.
            commands: What runs there.

        Raises:
            InputError: where the file cannot be used.
        """
        found: JobHosts = hosts_of(job)
        self.patience_s = float(found.known.wait_s)
        self._path, self._asked_deal = found.path, job.options.deal
        self._remote, self._commands = remote, commands
        self._known, self._seen = found.known.hosts, self._stamp()

    def listed(self) -> tuple[Host, ...]:
        """Return the hosts of the file, read again where it was changed."""
        stamp = self._stamp()
        if stamp != self._seen:
            hosts = read_hosts(self._path)
            self._known = (dealt(hosts, self._asked_deal) if self._asked_deal else hosts).hosts
            self._seen = stamp
        return self._known

    def ask(self, hosts: Sequence[Host]) -> Asking:
        """Begin to ask hosts over ssh."""
        return _AskingOverSsh({host.address: self._remote.asking(host.address) for host in hosts})

    def fill(self, prepared: Prepared, hosts: Sequence[Host]) -> Deal | None:
        """Deal processes to hosts in their order."""
        return fill_in_order(prepared, hosts)

    def start(self, job: Job, deal: Deal, streams: Streams) -> Started:
        """Start a command on every host that takes part."""
        commands = self._commands(replace(job, options=replace(job.options, deal=deal)))
        return _StartedOverSsh(commands, Following(self._remote.followed(commands), streams))

    def _stamp(self) -> tuple[int, int]:
        try:
            status = os.stat(self._path)
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_size


class _AskingOverSsh(Asking):
    def __init__(self, processes: "Mapping[str, subprocess.Popen[bytes]]") -> None:
        self._processes = processes

    def answered(self) -> frozenset[str] | None:
        codes = {address: process.poll() for address, process in self._processes.items()}
        if None in codes.values():
            return None
        return frozenset(address for address, code in codes.items() if code == 0)

    def close(self) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


class _StartedOverSsh(Started):
    def __init__(self, commands: Sequence[tuple[str, Sequence[str]]], following: Following) -> None:
        self._commands, self._following = commands, following

    def poll(self) -> bool:
        return self._following.poll()

    def tell(self, number: int) -> None:
        self._following.tell(number)

    def close(self) -> Left:
        codes = self._following.close()
        lost = lost_of(self._commands, codes)
        return Left(tuple(codes), tuple(lost), lost_way(lost[0]) if lost else None)
