"""Where the ranks of a run meet that torchrun or a host's starter has started, and how they come to know its secret.

::

    one machine        rank 0 makes a folder that is this user's alone, with the socket of the store, a new secret and
                       a note of what started it; the others look for that folder among the temporary ones
    several machines   the file of hosts (--hosts FILE), mode 0600, has the secret and the address to meet at; one that
                       names no hosts has the secret alone, and the environment the address

Neither the address nor anything else is taken from torchrun's own store, which listens on every interface and takes
what anybody writes.

Left out: ranks that our own launcher starts: it hands them their folder (``local_ranks.py``).
"""

import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from secrets import token_bytes

from heterps_compile.errors import RunError

from .addresses import is_loopback
from .channel import SECRET_BYTES
from .hosts_file import Hosts
from .membership import AGENT_VARIABLE, Membership
from .run_folder import PREFIX, is_held, make_run_folder, write_private, writing_temporary_files
from .store_client import CONNECT_S, LOOPBACK, RunStore, StorePlace, connect_store, host_store

STARTER_VARIABLE = "HETERPS_HOST_STARTER"
"""Set by the starter of one host's ranks (``host_ranks.py``), which is their parent then."""

_SECRET_NAME = "secret"  # noqa: S105 - the name of its file
_NOTE_NAME = "meeting.json"
_LOOK_S = 0.05
_PRIVATE_FOLDER = 0o700


def has_agent(environment: Mapping[str, str]) -> bool:
    """Tell whether the parent of this process is an agent that starts the ranks of a machine."""
    return AGENT_VARIABLE in environment or STARTER_VARIABLE in environment


def new_secret() -> bytes:
    """Return a secret that nobody can guess."""
    return token_bytes(SECRET_BYTES)


def write_secret(folder: Path, secret: bytes) -> None:
    """Leave the secret of a run in its folder, for this user's processes."""
    write_private(folder / _SECRET_NAME, secret.hex())


def read_secret(folder: Path) -> bytes:
    """Read what :func:`write_secret` wrote.

    Raises:
        OSError: where it cannot be read.
        ValueError: where it is no secret.
    """
    secret = bytes.fromhex((folder / _SECRET_NAME).read_text("ascii"))
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes")
    return secret


@contextmanager
def hosting_store(folder: Path) -> Iterator[RunStore]:
    """Host the store of a launcher's run in its folder while a block runs; yield a connection to it."""
    place = StorePlace(new_secret(), folder=folder)
    with writing_temporary_files():
        write_secret(folder, place.secret)
    with closing(host_store(place)):
        yield connect_store(place, "the launcher")


def meet(member: Membership, hosts: Hosts | None, run: str, environment: Mapping[str, str]) -> StorePlace:
    """Find out where the store of this run is; rank 0 is to host it there.

    Args:
        member: Who this process is.
        hosts: The machines; None where all ranks are of one.
        run: Which of the runs that these processes have one after the other.
        environment: Of this process.

    Raises:
        RunError: where the ranks are of several machines and have no secret, or do not find each other.
    """
    if hosts is not None:
        address = hosts.hosts[0].address if hosts.hosts else member.address
        return StorePlace(hosts.secret, address=address, port=hosts.port, run=run, patience_s=float(hosts.wait_s))
    local = environment.get("LOCAL_WORLD_SIZE")
    is_one = is_loopback(member.address) if local is None else local == str(member.world_size)
    if not is_one:
        raise RunError(
            f"the {member.world_size} ranks of this run are on several machines, and nothing says which secret they "
            f"share; name the file of hosts on all of them (--hosts FILE.toml, with secret = ... in it)"
        )
    note = _note(member, run, environment)
    if member.rank == 0:
        return _make(note, run)
    return _find(member, note, run)


def address_of(member: Membership, place: StorePlace) -> str:
    """Return the address by which ranks find out how they reach each other: loopback on one machine."""
    return LOOPBACK if place.folder is not None else place.address or member.address


def _note(member: Membership, run: str, environment: Mapping[str, str]) -> dict[str, object]:
    """Return what the ranks of one run have in common, and no others of this user on this machine at this time."""
    parent = os.getppid() if has_agent(environment) else 0
    agent = environment.get(AGENT_VARIABLE, "")
    return {"world": member.world_size, "port": member.port, "parent": parent, "agent": agent, "run": run}


def _make(note: Mapping[str, object], run: str) -> StorePlace:
    folder, _ = make_run_folder()  # held until this process ends
    secret = new_secret()
    with writing_temporary_files():
        write_secret(folder, secret)
        write_private(folder / f"{_NOTE_NAME}.new", json.dumps(note))
        (folder / f"{_NOTE_NAME}.new").rename(folder / _NOTE_NAME)  # whole, or not there
    return StorePlace(secret, folder=folder, run=run)


def _find(member: Membership, note: Mapping[str, object], run: str) -> StorePlace:
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        for folder in _own_folders():
            with suppress(OSError, ValueError):
                if json.loads((folder / _NOTE_NAME).read_text("utf-8")) == note and is_held(folder):
                    return StorePlace(read_secret(folder), folder=folder, run=run)
        if time.monotonic() > deadline_s:
            raise RunError(
                f"rank {member.rank} cannot find the folder of the run within {CONNECT_S} s, which rank 0 makes in "
                f"{tempfile.gettempdir()!r}; is rank 0 up, and is TMPDIR the same for all ranks?"
            )
        time.sleep(_LOOK_S)


def _own_folders() -> Iterator[Path]:
    """Yield the folders of runs that are this user's alone; what others put beside them is passed over."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            is_own = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == _PRIVATE_FOLDER
            if is_own and stat.S_ISDIR(status.st_mode):
                yield folder
