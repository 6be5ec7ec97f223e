"""The key-value store through which the processes of a run find each other.

The launcher hosts it on the loopback interface, at a port that the system chooses; under torchrun its agent does. What
goes through it is JSON and small numbers, and everything read from it is checked.

Left out: who writes what (``watch.py``, ``agree.py``, ``checkpointing.py``).
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore  # torch.distributed has it, but does not declare so

LOOPBACK = "127.0.0.1"

CONNECT_S = 60
"""How long a process tries to reach the store."""

_PATIENCE = timedelta(days=7)  # waits end by what the watchers find, not by a clock
_BACKLOG = 1024
_LONGEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Membership:
    """Who a process is in its run, and where the run's store is.

    Attributes:
        rank: Of this process.
        world_size: Processes in all.
        local_rank: Among those of this machine.
        address: Of the store.
        port: Of the store.
        hosts_store: Whether this process hosts it.
    """

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int
    hosts_store: bool = False


def is_under_torchrun(environment: Mapping[str, str]) -> bool:
    """Tell whether a process was started as one rank of several."""
    return all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def membership_of(environment: Mapping[str, str]) -> Membership:
    """Read who this process is from what torchrun set.

    Raises:
        RunError: where a variable is no number, or out of range.
    """
    numbers = {}
    for name, least in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_PORT", 1)):
        text = environment[name]
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise RunError(
                f"the environment has {name}={text!r}; expected a number of {least} or more, as torchrun sets"
            )
        numbers[name] = int(text)
    rank, world_size, port = numbers["RANK"], numbers["WORLD_SIZE"], numbers["MASTER_PORT"]
    if rank >= world_size or port > _LONGEST_PORT:
        raise RunError(
            f"the environment has RANK={rank}, WORLD_SIZE={world_size}, MASTER_PORT={port}; these do not fit"
        )
    local = environment.get("LOCAL_RANK", str(rank))
    is_agents = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Membership(
        rank,
        world_size,
        int(local) if local.isdigit() else rank,
        environment["MASTER_ADDR"],
        port,
        hosts_store=rank == 0 and not is_agents,
    )


def host_store(address: str = LOOPBACK, port: int = 0) -> "TCPStore":
    """Host the store of a run; its ``port`` says where.

    Args:
        address: The interface to listen on.
        port: 0 lets the system choose.

    Raises:
        RunError: where the port is in use, or the address is not of this machine.
    """
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415 - torch only where a run starts

    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise RunError(
            f"the run cannot listen on {address}:{port}: {error.strerror}; choose another port, or end what holds it"
        ) from error
    chosen = listener.getsockname()[1]
    # The descriptor of a bound socket: otherwise the store would listen on every interface.
    store = TCPStore(
        address, chosen, is_master=True, wait_for_workers=False, timeout=_PATIENCE, master_listen_fd=listener.fileno()
    )
    listener.detach()
    return store


def connect_store(member: Membership) -> "TCPStore":
    """Connect to the store of a run, once for every thread that waits in it.

    Raises:
        RunError: where the host cannot be reached.
    """
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415 - as above
    from torch.distributed import DistNetworkError, DistStoreError  # noqa: PLC0415

    try:
        store = TCPStore(member.address, member.port, is_master=False, timeout=timedelta(seconds=CONNECT_S))
    except (DistNetworkError, DistStoreError, ValueError) as error:
        raise RunError(
            f"rank {member.rank} cannot reach the store of the run at {member.address}:{member.port} within "
            f"{CONNECT_S} s: {_first_line(error)}; is the first host up, and its port open?"
        ) from error
    store.set_timeout(_PATIENCE)
    return store


def is_loopback(address: str) -> bool:
    """Tell whether an address is this machine's to itself."""
    return address in ("localhost", "::1") or address.startswith("127.")


def loopback_interface() -> str:
    """Give the name of the loopback interface: ``lo`` on Linux, ``lo0`` on macOS."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")


def worker_environment(threads: int) -> dict[str, str]:
    """Give the environment of a process that runs on this machine alone."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment["GLOO_SOCKET_IFNAME"] = loopback_interface()
    environment["OMP_NUM_THREADS"] = str(threads)
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # its errors are raised too, and told in one line
    return environment


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
