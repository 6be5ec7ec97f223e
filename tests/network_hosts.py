"""Hosts that share nothing but a wire: network namespaces, each with its own address, name, /etc/hosts and files.

They are as Debian installs a machine: its own name leads to 127.0.1.1.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ENTER = """
mount --bind "$1" "$2" && mount --bind "$1/hosts" /etc/hosts && hostname "$3" && shift 3 && exec "$@"
"""


class NotPermittedError(Exception):
    """This machine does not let us make hosts."""


@dataclass(frozen=True)
class NetworkHost:
    """One of them.

    Attributes:
        address: As the other reaches it.
        disk: What it has under ``mounted``, where every host has its own.
        mounted: See above.
    """

    namespace: str
    name: str
    address: str
    disk: Path
    mounted: Path

    def words(self, *command: str) -> list[str]:
        """Return what runs a command there."""
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--uts", "sh", "-c", _ENTER, "sh"]
        return [*enter, str(self.disk), str(self.mounted), self.name, *command]

    def environment(self) -> dict[str, str]:
        """Return the environment of a command there: temporary files lie on its own disk too."""
        return {**os.environ, "TMPDIR": str(self.mounted / "tmp"), "HOME": str(self.mounted), "OMP_NUM_THREADS": "1"}

    def shape(self, *discipline: str) -> None:
        """Send by a queueing discipline of tc.

        Raises:
            NotPermittedError: if the kernel has no such discipline.
        """
        _must(["tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", *discipline])

    def unplug(self) -> None:
        """Take it off the network."""
        _ip("-n", self.namespace, "link", "set", "eth0", "down")


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[NetworkHost, NetworkHost]]:
    """Make two hosts whose disks lie in a folder, and take them away in the end.

    Raises:
        NotPermittedError: where this machine does not let us.
    """
    if not all(map(shutil.which, ("ip", "tc", "unshare"))):
        raise NotPermittedError("there is no ip or tc (iproute2), or no unshare (util-linux)")
    mounted = folder / "disk"
    mounted.mkdir()
    hosts = []
    for number in (1, 2):
        disk = folder / f"host-{number}"
        (disk / "tmp").mkdir(parents=True)
        (disk / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 node-{number}\n")
        namespace = f"heterps-{os.getpid()}-{number}"
        hosts.append(NetworkHost(namespace, f"node-{number}", f"10.231.77.{number}", disk, mounted))
    first, second = hosts
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        wire = ("link", "add", "eth0", "netns", first.namespace, "type", "veth", "peer", "name", "eth0")
        _ip(*wire, "netns", second.namespace)
        for host in hosts:
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                _ip("-n", host.namespace, "link", "set", link, "up")
            _must(host.words("true"))
        yield first, second
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True, check=False)


def _ip(*words: str) -> None:
    _must(["ip", *words])


def _must(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermittedError(f"{' '.join(words[:3])}: {done.stderr.strip()}")
