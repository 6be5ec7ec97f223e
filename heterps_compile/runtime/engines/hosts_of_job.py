"""The file of hosts of a run that an engine starts on machines which it names.

Left out: the file itself (``launch/hosts_file.py``), engines that find machines by themselves.
"""

from dataclasses import dataclass

from heterps_compile.errors import InputError
from heterps_compile.runtime.launch.hosts_file import (
    Hosts,
    check_hosts,
    dealt,
    host_words,
    look_up_hosts,
    ranks_of_hosts,
    read_hosts,
)

from .contract import Job


@dataclass(frozen=True, slots=True)
class JobHosts:
    """The machines of a run: the file that names them, the same on all of them, and what it says."""

    job: Job
    path: str
    known: Hosts

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the hosts that are meant: all, or the one that ``--host`` names.

        Raises:
            InputError: where there is no such host.
        """
        count, one = len(self.known.hosts), self.job.options.host
        if one is not None and one > count:
            raise InputError(f"--host is {one}, and the file names {count} hosts; give one from 1 on")
        return list(range(1, count + 1)) if one is None else [one]

    def address(self, number: int) -> str:
        """Return the address of a host."""
        return self.known.hosts[number - 1].address

    def title(self, number: int) -> str:
        """Return a host's address and what its processes are."""
        ranks = ranks_of_hosts(self.known)[number - 1]
        return f"{self.address(number)}: {'; '.join(str(self.job.prepared.places[rank]) for rank in ranks)}"

    def words(self, number: int, *more: str) -> list[str]:
        """Return the words after ``heterps-compile`` on a host."""
        return self.job.run_words(*more, *host_words(self.known, self.job.prepared, self.path, number))

    def check(self, *, looks_up: bool) -> None:
        """Check that the hosts fit the run, and where asked that they are found from here.

        Raises:
            RunError: naming the host, and what does not fit.
        """
        check_hosts(self.known, self.job.prepared)
        if looks_up:
            look_up_hosts(self.known)


def hosts_of(job: Job) -> JobHosts:
    """Read the file of hosts that a run names.

    Raises:
        InputError: where it names none, or it cannot be read or used.
    """
    path = job.options.hosts
    if path is None:
        raise InputError("launch needs the machines (--hosts FILE.toml)")
    known, deal = read_hosts(path), job.options.deal
    addresses = {host.address for host in known.hosts}
    other = next((address for address, _ in deal if address not in addresses), None)
    if other is not None:
        raise InputError(f"--deal names {other!r}, which the file of hosts does not; it has {', '.join(addresses)}")
    return JobHosts(job, path, dealt(known, deal) if deal else known)
