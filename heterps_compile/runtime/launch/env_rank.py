"""Ranks that torchrun, srun, Kubeflow, SkyPilot or Ray started meet, and rank 0 assigns stages by device type.

They meet in a ``TCPStore`` at ``MASTER_ADDR:MASTER_PORT``, that of torchrun's agent where there is one::

    every rank                                  rank 0
    ask/RANK   <- token, host, device type      reads all
    reads word/TOKEN/0, 1, ...                  word/TOKEN/I <- a new number, to all
    pong/TOKEN/NUMBER                           waits for all, else sends another number
    until a word has its answer                 assigns the run's ranks, word/TOKEN/I <- answer

So all processes run when ranks are assigned: one that died, or that an earlier start left in the store of torchrun's
agent, has no pong for the last number. The run goes on in this store, below a prefix that rank 0 draws for the start.

A *device type* is what ``--device-type`` says, else the type of the plan that this process's GPU is named after.
A process with a type takes stages of that type alone. One without takes any of those that are left, in the order of
``RANK``, so that a run of one type keeps its ranks.

The network between machines is trusted, as everywhere in PyTorch: whoever reaches the store can read it and write it.
All that is read is checked against a grammar.

Left out: ranks that our own launcher starts (``local_machine.py``).
"""

import itertools
import os
import platform
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from pydantic import ConfigDict, Field
from torch.distributed import DistNetworkError, DistStoreError

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.strict_json import STRICT, received

from .membership import Membership
from .prepare import Prepared, check_world_size, planned_devices
from .run_store import Connect, tcp_store
from .store_values import to_send

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

COME_S = 600.0
"""Seconds that ranks wait for each other; machines may take their time to start."""

_PONG_S = 3.0
_LAST_WORD_S = 10.0
_AGENTS_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{32,64}$")]
_Name = Annotated[str, Field(max_length=255)]
_MODEL_WORD = re.compile(r"(?<![a-z0-9])(?=[a-z]*[0-9])[a-z0-9]+")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Asked:
    """A process that asks for its rank; ``error`` is its reason to refuse the run, "" for none."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    token: _Hex
    host: _Name
    device_type: _Name
    error: Annotated[str, Field(max_length=10_000)]


@dataclass(frozen=True, slots=True)
class _Answer:
    """The run's rank of a process, the name of this start, and the rank that hosts the store; None for an agent."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    rank: Annotated[int, Field(ge=0)]
    name: _Hex
    host: Annotated[int, Field(ge=0)] | None
    error: Annotated[str, Field(max_length=10_000)] = ""


@dataclass(frozen=True, slots=True)
class _Word:
    """A number to answer, or the answer."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    number: _Hex
    answer: _Answer | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """A process that has its rank of a run.

    Attributes:
        member: This process in the run.
        connect: Connects to the store of the run.
        host: The rank that hosts the store; None if an agent does.
    """

    member: Membership
    connect: Connect
    host: int | None


@dataclass(frozen=True, slots=True)
class _Meeting:
    """This rank, the store in which it meets the others, and how many seconds it waits for them."""

    store: "Store"
    member: Membership
    come_s: float


def join(member: Membership, prepared: Prepared | HeterpsError, device_type: str | None, run: str) -> Joined:
    """Meet the other ranks of the world and get a rank of the run.

    Args:
        member: This process in the world.
        prepared: The run, or the reason to refuse it.
        device_type: Of this process; None where it is not known.
        run: The number of the run, of those that these processes have one after the other.

    Raises:
        RunError: if ranks do not come, or the plan does not fit their device types; the same on every rank.
    """
    if isinstance(prepared, HeterpsError):
        return meet(member, lambda asked: range(len(asked)), device_type, run, refusal=prepared)

    def ranks_of(asked: Sequence[Asked]) -> list[int]:
        check_world_size(prepared, member.world_size)
        wanted = [name for name, _ in planned_devices(prepared)]
        ranks = assigned(wanted, [each.device_type for each in asked])
        unknown = sum(not each.device_type for each in asked)
        if unknown and len(set(wanted)) > 1:
            print(
                f"note: {unknown} of {len(asked)} processes report no device type and take what is left of the "
                f"stages, in the order of RANK; --device-type names it",
                file=sys.stderr,
            )
        return ranks

    return meet(member, ranks_of, device_type, run)


def meet(
    member: Membership,
    ranks_of: Callable[[Sequence[Asked]], Sequence[int]],
    device_type: str | None,
    run: str,
    *,
    refusal: HeterpsError | None = None,
    come_s: float = COME_S,
) -> Joined:
    """Meet the other ranks of the world and get the rank that rank 0 assigns.

    Args:
        member: This process in the world.
        ranks_of: Returns the new rank of every process, or raises RunError; rank 0 calls it once all have come.
        device_type: Of this process; None where it is not known.
        run: Distinguishes meetings of the same processes.
        refusal: The reason of this process to refuse; all ranks then do.
        come_s: Seconds that ranks wait for each other.

    Raises:
        HeterpsError: if ranks do not come, or one refuses; the same on every rank.
    """
    from heterps_compile.runtime.c10d import PrefixStore  # noqa: PLC0415 - torch only in the processes of a run

    meeting = _Meeting(PrefixStore(f"heterps/{run}", _meeting(member, come_s)), member, come_s)
    error = "" if refusal is None else f"rank {member.rank}: {one_line(str(refusal))}"
    asked = Asked(token_hex(16), platform.node()[:255], device_type or "", error[:10_000])
    _set(meeting.store, f"ask/{member.rank}", to_send(asked))
    answer = _assign(meeting, asked, ranks_of) if member.rank == 0 else _answer(meeting, asked.token)
    if answer.error:
        raise refusal or RunError(answer.error)
    connect = partial(tcp_store, member.address, member.port, f"heterps/{run}/{answer.name}")
    return Joined(replace(member, rank=answer.rank), connect, answer.host)


def device_type_here(known: Sequence[str], asked: str | None, local_rank: int) -> str | None:
    """Return the device type of this process: the one asked for, else the one that its GPU is named after.

    Args:
        known: The device types of the run.
        asked: What ``--device-type`` says.
        local_rank: Of this process.

    Raises:
        RunError: if the run has no such type.
    """
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    if asked is not None:
        if asked not in known:
            shown = ", ".join(map(printable, known))
            raise RunError(f"--device-type is {printable(asked)!r}; expected a device type of this run ({shown})")
        return asked
    if not torch.cuda.is_available():
        return None
    return named_after(torch.cuda.get_device_name(local_rank % torch.cuda.device_count()), known)


def named_after(gpu: str, known: Sequence[str]) -> str | None:
    """Return the one device type whose words with digits, such as ``a100`` and ``40gb``, are all in a GPU's name."""
    words = set(_MODEL_WORD.findall(gpu.lower()))
    found = [name for name in known if (own := set(_MODEL_WORD.findall(name.lower()))) and own <= words]
    return found[0] if len(found) == 1 else None


def assigned(wanted: Sequence[str], reported: Sequence[str]) -> list[int]:
    """Return the run's rank of every process.

    Args:
        wanted: The device type of every rank of the run.
        reported: The device type of every process, "" where it is not known.

    Raises:
        RunError: if more processes report a type than the run has ranks of it.
    """
    have, need = Counter(name for name in reported if name), Counter(wanted)
    for name, count in have.items():
        if count > need[name]:
            counts = ", ".join(f"{printable(each)} {number}" for each, number in need.items())
            raise RunError(
                f"{count} of {len(reported)} processes report the device type {printable(name)!r}; expected at most "
                f"{need[name]} (the run has {counts}). Fix: start the run's numbers of each type (--device-type), or "
                f"other replicas (--replicas)"
            )
    left = {name: [rank for rank, each in enumerate(wanted) if each == name] for name in need}
    found = [left[name].pop(0) if name else -1 for name in reported]
    others = iter(sorted(rank for ranks in left.values() for rank in ranks))
    return [next(others) if rank < 0 else rank for rank in found]


def _answer(meeting: _Meeting, token: str) -> _Answer:
    """Answer the numbers of rank 0 until its answer comes."""
    for count in itertools.count():
        word = _read(meeting, f"word/{token}/{count}", _Word)
        _set(meeting.store, f"pong/{token}/{word.number}", "1")
        if word.answer is not None:
            return word.answer
    raise AssertionError


def _assign(meeting: _Meeting, own: Asked, ranks_of: Callable[[Sequence[Asked]], Sequence[int]]) -> _Answer:
    """Collect the ranks and answer each; rank 0 does so."""
    store, member, sent = meeting.store, meeting.member, Counter[str]()
    ranks: Sequence[int] = range(member.world_size)
    others, late = _collect(meeting, sent)
    asked, error = [own, *others], ""
    try:
        if late is not None:
            raise late
        error = next((each.error for each in asked if each.error), "")
        if not error:
            ranks = ranks_of(asked)
    except RunError as refused:
        error = str(refused)
    name, number, host = token_hex(16), token_hex(16), ranks[0] if _hosts_store(member) else None
    found = [_Answer(rank, name, host, error) for rank in ranks[: len(asked)]]
    for each, answer in zip(asked[1:], found[1:], strict=True):
        _set(store, f"word/{each.token}/{sent[each.token]}", to_send(_Word(number, answer)))
    if error:
        with suppress(RuntimeError):  # this process may host the store, and ends now
            store.wait([f"pong/{each.token}/{number}" for each in asked[1:]], timedelta(seconds=_LAST_WORD_S))
    return found[0]


def _collect(meeting: _Meeting, sent: Counter[str]) -> tuple[list[Asked], RunError | None]:
    """Wait until all other ranks answer one number; return those that have come and, where some have not, the fault.

    Args:
        meeting: Of rank 0.
        sent: Counts the words to every token.
    """
    deadline_s, asked, store = time.monotonic() + meeting.come_s, list[Asked](), meeting.store
    while True:
        number, asked = token_hex(16), []
        try:
            for rank in range(1, meeting.member.world_size):
                asked.append(_read(meeting, f"ask/{rank}", Asked))
        except RunError as error:
            return asked, error
        for each in asked:
            _set(store, f"word/{each.token}/{sent[each.token]}", to_send(_Word(number)))
            sent[each.token] += 1
        pongs = [f"pong/{each.token}/{number}" for each in asked]
        try:
            store.wait(pongs, timedelta(seconds=_PONG_S))
        except RuntimeError:  # torch's word for a wait that took too long
            if time.monotonic() > deadline_s:
                silent = next((rank for rank, pong in enumerate(pongs, 1) if not store.check([pong])), 1)
                return asked, _late(silent, meeting)
            continue
        return asked, None


@cache
def _store_at(address: str, port: int, world_size: int, come_s: float, *, hosts: bool) -> "Store":
    """Connect to the store of a world once: a process that hosts it does so until its end."""
    from heterps_compile.runtime.c10d import TCPStore  # noqa: PLC0415 - torch only in the processes of a run

    try:
        socket.getaddrinfo(address, port)  # else it is tried for minutes
        return TCPStore(address, port, world_size, hosts, timeout=timedelta(seconds=come_s), wait_for_workers=False)
    except (OSError, RuntimeError, ValueError) as error:
        does = "listen on" if hosts else "reach"
        raise RunError(
            f"this rank cannot {does} {printable(address)}:{port}, where the ranks meet: "
            f"{one_line(str(error))[:300].rstrip('.')}. Fix: MASTER_ADDR and MASTER_PORT"
        ) from error


def _meeting(member: Membership, come_s: float) -> "Store":
    return _store_at(member.address, member.port, member.world_size, come_s, hosts=_hosts_store(member))


def _hosts_store(member: Membership) -> bool:
    return member.rank == 0 and os.environ.get(_AGENTS_STORE) != "True"


def _set(store: "Store", key: str, text: str) -> None:
    with _reaching():
        store.set(key, text)


def _read(meeting: _Meeting, key: str, schema: type[_T]) -> _T:
    """Wait for a value and check it.

    Raises:
        RunError: if it does not come, or is not of the schema.
    """
    with _reaching():
        try:
            meeting.store.wait([key], timedelta(seconds=meeting.come_s))
        except DistStoreError as error:
            raise _late(int(key[4:]) if key.startswith("ask/") else 0, meeting) from error
        text = meeting.store.get(key)
    return received(schema, text, key)


@contextmanager
def _reaching() -> Iterator[None]:
    """Report a store that is gone.

    Raises:
        RunError: if the store cannot be reached any more.
    """
    try:
        yield
    except DistNetworkError as error:
        raise RunError("rank 0 or its agent has ended before all ranks had met. Fix: see its message") from error


def _late(rank: int, meeting: _Meeting) -> RunError:
    member = meeting.member
    return RunError(
        f"rank {rank} of {member.world_size} did not come within {meeting.come_s:g} s. Fix: start all ranks, each with "
        f"MASTER_ADDR={printable(member.address)} and MASTER_PORT={member.port}"
    )
