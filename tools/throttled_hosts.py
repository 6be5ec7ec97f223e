"""Hosts in network namespaces behind links of a rate. Root on Linux, with iproute2.

Each has an address and a card whose sending `tc` holds to the rate; they have a bridge in common. The rate is that of
the wire, with a token bucket that holds one burst; no delay is added, so that a message takes what the kernel and two
processes take. A command there has the namespace for its host name, as ranks of one name are on one machine.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

BURST_BYTES = 16_384
QUEUE_BYTES = 8_000_000
GOODPUT = 1448 / 1514
"""Of a packet of 1,514 bytes of Ethernet these are left beside the headers of Ethernet, IP, and TCP with timestamps."""


class NotPermittedError(Exception):
    """This machine does not let us make hosts."""


@dataclass(frozen=True, slots=True)
class Host:
    """One of them.

    Attributes:
        namespace: Of the network.
        address: As the others reach it.
    """

    namespace: str
    address: str

    def words(self, *command: str) -> list[str]:
        """Return what runs a command there."""
        named = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.namespace)
        return ["ip", "netns", "exec", self.namespace, *named, *command]

    def throttle(self, bits_per_s: float) -> None:
        """Hold what it sends to a rate."""
        rate = ("rate", f"{bits_per_s:.0f}bit", "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES))
        _must(["tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate])


@contextmanager
def throttled_hosts(count: int) -> Iterator[tuple[Host, ...]]:
    """Make hosts around a bridge, and take them away in the end.

    Raises:
        NotPermittedError: where this machine does not let us.
    """
    for command in ("ip", "tc", "unshare", "hostname"):
        if shutil.which(command) is None:
            raise NotPermittedError(f"there is no {command} (packages iproute2, util-linux and hostname)")
    name = f"heterps-{os.getpid()}"
    hosts = tuple(Host(f"{name}-{number}", f"10.231.79.{number}") for number in range(1, count + 1))
    hub = f"{name}-hub"
    try:
        for namespace in (hub, *(host.namespace for host in hosts)):
            _must(["ip", "netns", "add", namespace])
        _must(["ip", "-n", hub, "link", "add", "hub", "type", "bridge"])
        _must(["ip", "-n", hub, "link", "set", "hub", "up"])
        for number, host in enumerate(hosts):
            peer = ("peer", "name", f"port{number}", "netns", hub)
            _must(["ip", "link", "add", "eth0", "netns", host.namespace, "type", "veth", *peer])
            _must(["ip", "-n", hub, "link", "set", f"port{number}", "master", "hub", "up"])
            _must(["ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0"])
            for link in ("eth0", "lo"):
                _must(["ip", "-n", host.namespace, "link", "set", link, "up"])
        yield hosts
    finally:
        for namespace in (hub, *(host.namespace for host in hosts)):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _must(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermittedError(f"{' '.join(words[:5])}: {done.stderr.strip()}")
