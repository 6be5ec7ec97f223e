"""A file of hosts for machines that a scheduler names beforehand, and what each does to have it and its number.

Left out: what names they have (``kubernetes.py``, ``skypilot.py``).
"""

from collections.abc import Sequence

PORT = 29_500
WAIT_S = 900
"""How long machines wait for one another: images are pulled, nodes are started."""

WAIT_FOR_FIRST = f"""tries=0
until python3 -c 'import socket, sys; socket.getaddrinfo(sys.argv[1], None)' "$FIRST" 2> /dev/null; do
  tries=$((tries+1)); [ "$tries" -gt {WAIT_S} ] && break; sleep 1
done
"""
"""Lines of a shell that wait until the name of the first host is known."""


def hosts_text(hosts: Sequence[tuple[str, int]]) -> str:
    """Return a file of hosts without its secret.

    Args:
        hosts: Pairs of an address and the processes that the machine takes, in the order of ranks.
    """
    tables = "".join(f'[[host]]\naddress = "{address}"\nslots = {slots}\n' for address, slots in hosts)
    return f"port = {PORT}\nwait_s = {WAIT_S}\n{tables}"
