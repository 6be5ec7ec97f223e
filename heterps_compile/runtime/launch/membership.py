"""Who a process is among the ranks of its run, as torchrun or the starter of a host says.

Imports nothing heavy: a command asks it before it knows whether it starts ranks or is one. Left out: where ranks meet
(``rendezvous.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from heterps_compile.errors import RunError

_LONGEST_PORT = 65535
AGENT_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Set by torchrun's agent, which is the parent of its ranks then."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Who a process is in its run, and where the run's store is.

    Attributes:
        rank: Of this process.
        world_size: Processes in all.
        local_rank: Among those of this machine.
        address: At which ranks meet, as whoever started them says.
        port: The same.
    """

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int


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
    return Membership(rank, world_size, int(local) if local.isdigit() else rank, environment["MASTER_ADDR"], port)
