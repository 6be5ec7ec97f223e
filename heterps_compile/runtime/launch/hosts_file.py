"""The machines of a run, and the options by which each knows the others.

A file of hosts::

    secret = "8f4c...e1"         # 32 characters or more, which only these hosts know; the file has mode 0600 for it
    port = 29500                # of the first host, where the ranks meet; may be left out
    wait_s = 120                # how long the hosts wait for one another to begin; may be left out

    [[host]]
    address = "10.0.0.1"        # as the others reach it
    slots = 2                   # processes it takes

    [[host]]
    address = "worker-2"
    slots = 1
    speed = 2.0                 # of its processes beside the others' 1.0; may be left out
    device = "v100"             # the plan's device type that it has; may be left out

Ranks fill the hosts in the file's order. Where a scheduler deals ranks to machines the file has no hosts, and they meet
at the address that their environment tells (``MASTER_ADDR``).

Left out: starting something on them (``engines/``), and the ranks of one host (``host_ranks.py``).
"""

import os
import re
import shlex
import socket
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from heterps_compile.conflict_markers import unmerged
from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.plain_file import open_plain
from heterps_compile.units import plain_number

from .addresses import is_loopback
from .membership import Membership
from .prepare import Prepared
from .run_options import RunOptions

DEFAULT_PORT = 29500
DEFAULT_WAIT_S = 120

_ADDRESS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,45}")
_LARGEST_FILE_BYTES = 2**20
_LONGEST_PORT = 65535
_LONGEST_WAIT_S = 86_400
_ANSWER_S = 3.0
_KEYS = {"address", "slots", "speed", "device"}
_SECRET = re.compile(r"[A-Za-z0-9+/=_-]{32,256}")
_OF_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Host:
    """A machine.

    Attributes:
        address: Name or number by which the others reach it.
        slots: Processes it takes.
        speed: Of its processes, in any unit.
        device: Device type of the plan that it has; None where it does not say.
    """

    address: str
    slots: int
    speed: float = 1.0
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Hosts:
    """The machines of a run; ranks meet at ``port`` of the first, which waits ``wait_s`` seconds for the others.

    All of them know ``secret``, and nobody else does.
    """

    hosts: tuple[Host, ...]
    port: int = DEFAULT_PORT
    wait_s: int = DEFAULT_WAIT_S
    secret: bytes = field(default=b"", repr=False)


def read_hosts(path: str | Path, *, names_them: bool = True) -> Hosts:
    """Read a file of hosts, which nobody else may read: it has the secret of the run.

    Args:
        path: Of the file.
        names_them: Whether it must name hosts: a scheduler that starts ranks tells them where they meet.

    Raises:
        InputError: where it cannot be read or is none, naming the entry; where others may read it, or it has no secret.
    """
    shown, text = repr(printable(str(path))), ""
    try:
        with open_plain(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > _LARGEST_FILE_BYTES:
                raise InputError(f"{shown} is larger than a list of hosts can be")
            text = file.read().decode("utf-8")
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        conflict = unmerged(text)
        raise InputError(f"{shown} {conflict}" if conflict else f"cannot read the hosts {shown}: {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the hosts {shown}: {getattr(error, 'strerror', None) or error}") from error
    port = content.get("port", DEFAULT_PORT)
    if type(port) is not int or not 0 < port <= _LONGEST_PORT:
        raise InputError(f"{shown}: port is {port!r}; expected a number from 1 to {_LONGEST_PORT}")
    wait_s = content.get("wait_s", DEFAULT_WAIT_S)
    if type(wait_s) is not int or not 0 < wait_s <= _LONGEST_WAIT_S:
        raise InputError(f"{shown}: wait_s is {wait_s!r}; expected whole seconds from 1 to {_LONGEST_WAIT_S}")
    unknown = sorted(set(content) - {"secret", "port", "wait_s", "host"})
    if unknown:
        raise InputError(f"{shown}: unknown key {unknown[0]!r}; expected secret, port, wait_s and [[host]]")
    secret = _secret(content.get("secret"), status, str(path))
    entries = content.get("host", [])
    if not isinstance(entries, list) or (names_them and not entries):
        raise InputError(f"{shown} names no [[host]]; each has an address and slots")
    hosts = tuple(_host(entry, f"{shown}: host {number}") for number, entry in enumerate(entries, 1))
    addresses = [host.address for host in hosts]
    twice = next((address for address in addresses if addresses.count(address) > 1), None)
    if twice is not None and not is_loopback(twice):
        raise InputError(f"{shown} names {twice!r} twice; give it once, with all its slots")
    return Hosts(hosts, port, wait_s, secret)


def read_hosts_of(options: RunOptions, *, names_them: bool = True) -> Hosts:
    """Read the file of hosts that a run names; of its hosts, those that take part (``--deal``), in that order.

    A host that the file does not name was added to that of the launcher after this copy was made.

    Raises:
        InputError: where it cannot be read or is none.
    """
    hosts = read_hosts(options.hosts or "", names_them=names_them)
    return dealt(hosts, options.deal) if options.deal else hosts


def dealt(hosts: Hosts, deal: Sequence[tuple[str, int]]) -> Hosts:
    """Return hosts that take part in a run, each with as many slots as it runs processes."""
    known = {host.address: host for host in hosts.hosts}
    taking = [replace(known.get(address, Host(address, slots)), slots=slots) for address, slots in deal]
    return replace(hosts, hosts=tuple(taking))


def _secret(text: object, status: os.stat_result, path: str) -> bytes:
    shown, quoted = repr(printable(path)), shlex.quote(printable(path))
    if text is None:
        raise InputError(
            f"{shown} has no secret, by which the processes of the run know each other; put one in, and leave it to "
            f"nobody else: sed -i \"1i secret = '$(openssl rand -hex 32)'\" {quoted} && chmod 600 {quoted}"
        )
    if not isinstance(text, str) or not _SECRET.fullmatch(text):
        raise InputError(
            f"{shown}: secret is too short, or not made of letters, digits and +/=_-; expected 32 to 256 characters "
            f"that nobody can guess, such as openssl rand -hex 32 prints"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OF_OTHERS:
        raise InputError(
            f"{shown} has the secret of the run, and others may read or change it (mode {mode:04o}); keep it to "
            f"yourself: chmod 600 {quoted}"
        )
    if status.st_uid != os.geteuid():
        raise InputError(
            f"{shown} has the secret of the run and belongs to user {status.st_uid}, who can read it; make a file of "
            f"your own (this is user {os.geteuid()})"
        )
    return sha256(text.encode()).digest()


def _host(entry: Any, place: str) -> Host:
    if not isinstance(entry, Mapping):
        raise InputError(f"{place} is no table; write [[host]] and its address and slots below")
    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        raise InputError(f"{place}: unknown key {unknown[0]!r}; expected {', '.join(sorted(_KEYS))}")
    address, slots, speed, device = (entry.get(key) for key in ("address", "slots", "speed", "device"))
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise InputError(f"{place}: address is {address!r}; expected a host's name or number, such as '10.0.0.1'")
    if type(slots) is not int or slots < 1:
        raise InputError(f"{place}: slots is {slots!r}; expected the processes it takes, 1 or more")
    speed = 1.0 if speed is None else speed
    if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed < float("inf"):
        raise InputError(f"{place}: speed is {speed!r}; expected a number above zero")
    if device is not None and not isinstance(device, str):
        raise InputError(f"{place}: device is {device!r}; expected the name of a device type")
    return Host(address, slots, float(speed), device)


def check_hosts(hosts: Hosts, prepared: Prepared) -> None:
    """Check that hosts fit a run.

    Raises:
        RunError: where they have too few or too many slots, or a rank's device is not its host's.
    """
    slots = sum(host.slots for host in hosts.hosts)
    if slots != prepared.world_size:
        counts = " + ".join(str(host.slots) for host in hosts.hosts)
        raise RunError(
            f"the hosts have {slots} slots ({counts}), and the run has {prepared.world_size} processes; give them as "
            f"many (slots), or the stages other counts (--replicas)"
        )
    for rank, host in enumerate(_host_of_ranks(hosts)):
        for stage in prepared.places[rank].stages:
            wanted = prepared.plan.stages[stage].of_replica(prepared.places[rank].replica)[0]
            if host.device is not None and host.device != wanted:
                raise RunError(
                    f"rank {rank} runs stage {stage}, planned for {printable(wanted)!r}, on {host.address!r}, which "
                    f"has {printable(host.device)!r}; ranks fill the hosts in order: put these in that of the stages"
                )


def look_up_hosts(hosts: Hosts) -> None:
    """Check that hosts are found from here and answer, and that ranks can meet on the first where it is this machine.

    Raises:
        RunError: naming the host that has no address or gives no answer, or the port that is in use.
    """
    for host in hosts.hosts:
        try:
            socket.getaddrinfo(host.address, hosts.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise RunError(
                f"the host {host.address!r} cannot be found: {error.strerror}; mend its address, or where only "
                f"the other hosts know it, take --no-check"
            ) from error
        _refuse_silent(host.address, hosts.port)
    first = hosts.hosts[0].address
    if _is_own(first) and not _is_free(first, hosts.port):
        raise RunError(
            f"port {hosts.port} of {first!r}, where the ranks are to meet, is in use; choose another (port = N in the "
            f"file of hosts)"
        )


def host_words(hosts: Hosts, prepared: Prepared, path: str, number: int) -> list[str]:
    """Return the options by which one of the hosts knows the others and itself.

    Args:
        hosts: The machines.
        prepared: The run.
        path: Of the file of hosts.
        number: Of the host, from 1.
    """
    return ["--hosts", path, *_speed_words(hosts, prepared), "--host", str(number)]


def ranks_of_hosts(hosts: Hosts) -> list[range]:
    """Return the ranks of every host."""
    ranges, first = [], 0
    for host in hosts.hosts:
        ranges.append(range(first, first + host.slots))
        first += host.slots
    return ranges


def member_of_host(hosts: Hosts, number: int, member: Membership, environment: Mapping[str, str]) -> Membership:
    """Return who a process is that an agent has started on a host which is known by number.

    Agents of torchrun number their machines as they come; the ranks of a host are those that the file deals it.

    Args:
        hosts: The machines.
        number: Of the host, from 1.
        member: Who the agent says it is.
        environment: Of the process.

    Raises:
        InputError: where there is no such host, or the agent has started other numbers of processes than it has slots.
    """
    if not 1 <= number <= len(hosts.hosts):
        raise InputError(f"--host is {number}, and the file names {len(hosts.hosts)} hosts; give one from 1 on")
    slots, ranks = hosts.hosts[number - 1].slots, ranks_of_hosts(hosts)[number - 1]
    local, world_size = environment.get("LOCAL_WORLD_SIZE", ""), sum(host.slots for host in hosts.hosts)
    if local != str(slots) or member.world_size != world_size or not 0 <= member.local_rank < slots:
        raise InputError(
            f"host {number} has {slots} slots of {world_size}, and this process was started as one of "
            f"{printable(local) or 'an unknown number'} here of {member.world_size} (LOCAL_WORLD_SIZE, WORLD_SIZE); "
            f"start as many (torchrun --nproc-per-node {slots}), or leave --host out"
        )
    return replace(member, rank=ranks[member.local_rank])


def _speed_words(hosts: Hosts, prepared: Prepared) -> list[str]:
    """Return the option that deals micro-batches by the hosts' speeds; none where replicas of a stage are all alike."""
    of_rank = [host.speed for host in _host_of_ranks(hosts)]
    first, parts = 0, []
    for width in prepared.layout.widths:
        parts.append(of_rank[first : first + width])
        first += width
    if all(len(set(part)) == 1 for part in parts):
        return []
    return ["--speeds", ";".join(",".join(map(plain_number, part)) for part in parts)]


def _host_of_ranks(hosts: Hosts) -> list[Host]:
    return [host for host in hosts.hosts for _ in range(host.slots)]


def _refuse_silent(address: str, port: int) -> None:
    try:
        socket.create_connection((address, port), timeout=_ANSWER_S).close()
    except ConnectionRefusedError:
        pass  # an answer: nobody listens there yet
    except OSError as error:
        raise RunError(
            f"the host {address!r} gives no answer here ({error.strerror or error}); every host must reach all "
            f"ports of the others: look whether it is up, and at its firewall; where only these reach it: --no-check"
        ) from error


def _is_own(address: str) -> bool:
    """Tell whether an address is one of this machine's: something can be bound to it."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True


def _is_free(address: str, port: int) -> bool:
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError:
        return False
    return True
