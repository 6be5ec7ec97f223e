"""Process groups of gloo in which no stranger has a place.

gloo listens on a port while its ranks connect, and takes whoever names a small number first for the rank that is due;
later it keeps every connection that anybody opens until it has no descriptors left, and then ends the process. So::

    meet       through the store   whoever comes first waits: only the time that connecting takes is limited
    connect    rank <-> rank       gloo's own way, through the store of the run, which strangers cannot read
    greet      rank i -> rank j    a hash of what both left in the store: who cannot read it has no place here
    agree      through the store   where one greeting is missing, all begin again on other ports, behind a guard
    shut       the ports           packets to what still listens are dropped by the system from then on

The guard (``port_guard.py``) costs a second, so that it stands only where somebody has disturbed an attempt, or one of
an earlier group of any member.

Left out: secrecy, and strangers who sit on the wire between machines and change what goes by: gloo neither encrypts nor
signs what it sends.
"""

from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from secrets import token_hex
from typing import Any

import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.c10d import PrefixStore, Store, wait_so_long

from .port_guard import PortGuard, guarded_store

Make = Callable[[Store, timedelta], Any]
"""Makes a ``ProcessGroupGloo`` in a store; it may take so long."""

_ATTEMPTS_S = (20.0, 60.0, 60.0, 60.0)  # for one attempt each
_GREETING_TAG = 6999
_GREETING_S = 10.0
_WELL, _ILL = "1", "0"
_disturbed: list[str] = []  # attempts of this process: groups that come after one begin behind the guard


def connect_without_strangers(
    make: Make, discard: Callable[[], object], store: Store, rank: int, size: int, *, patience: timedelta
) -> Any:
    """Make a process group of gloo and see that every member is one of the run; every member calls it.

    Args:
        make: Makes the group.
        discard: Called where a stranger got into what was made.
        store: Of this group.
        rank: Of this process in the group.
        size: Of the group.
        patience: How long to wait for members that come later, and then for messages.

    Raises:
        RunError: where strangers disturbed every attempt.
    """
    if size == 1:
        return make(store, patience)
    is_calm = _all_well(store, "here", rank, size, is_well=not _disturbed, patience=patience)
    why = ""
    for attempt, seconds in list(enumerate(_ATTEMPTS_S))[0 if is_calm else 1 :]:
        tried = PrefixStore(f"attempt-{attempt}", store)
        made: Any = None
        why = ""
        with PortGuard(stands=attempt > 0) as guard:
            try:
                made = make(guarded_store(tried, guard, rank, size) if attempt else tried, timedelta(seconds=seconds))
            except RuntimeError as error:
                why = _reason(error)
            if _all_well(tried, "made", rank, size, is_well=made is not None):
                try:
                    _greet(made, tried, rank, size)
                except (RuntimeError, _StrangeError) as error:
                    why = _reason(error)
                if _all_well(tried, "greeted", rank, size, is_well=not why):
                    wait_so_long(made, patience)
                    guard.shut()
                    return made
        del made
        discard()
        _disturbed.append(why)
    raise RunError(
        f"strangers disturbed the ranks while these connected, {len(_ATTEMPTS_S)} times in a row "
        f"({why or 'elsewhere'}); see who connects to the ports of this machine, and start the run again"
    )


class _StrangeError(Exception):
    """A greeting that is none of a rank's."""


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__


def _all_well(
    store: Store, what: str, rank: int, size: int, *, is_well: bool, patience: timedelta | None = None
) -> bool:
    """Tell all members whether this one is well, and give whether all are; waits so long, or as the store does."""
    store.set(f"{what}/{rank}", _WELL if is_well else _ILL)
    if patience is not None:
        store.wait([f"{what}/{other}" for other in range(size)], patience)
    return all(bytes(store.get(f"{what}/{other}")) == _WELL.encode() for other in range(size))


def _greet(group: Any, store: Store, rank: int, size: int) -> None:
    """Send every member what only ranks can know, and expect the same of it."""
    store.set(f"nonce/{rank}", token_hex(16))
    nonces = [bytes(store.get(f"nonce/{other}")) for other in range(size)]
    others = [other for other in range(size) if other != rank]
    came = {other: torch.zeros(sha256().digest_size, dtype=torch.uint8) for other in others}
    works = [group.recv([came[other]], other, _GREETING_TAG) for other in others]
    sent = [_greeting(nonces, rank, other) for other in others]
    works += [group.send([greeting], other, _GREETING_TAG) for greeting, other in zip(sent, others, strict=True)]
    for work in works:
        work.wait(timedelta(seconds=_GREETING_S))
    for other in others:
        if not torch.equal(came[other], _greeting(nonces, other, rank)):
            raise _StrangeError(f"what took the place of rank {other} of {size} is none")


def _greeting(nonces: list[bytes], source: int, target: int) -> Tensor:
    said = b"%s %s %d %d" % (nonces[source], nonces[target], source, target)
    return torch.frombuffer(bytearray(sha256(said).digest()), dtype=torch.uint8)
