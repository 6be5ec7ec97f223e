"""The environment contract: the variables that make a process one rank of a world.

==================  ==============================  ==================================
variable            in a step of Slurm               on a node of SkyPilot
==================  ==============================  ==================================
``RANK``            ``SLURM_PROCID``                ``SKYPILOT_NODE_RANK``
``WORLD_SIZE``      ``SLURM_STEP_NUM_TASKS``        ``SKYPILOT_NUM_NODES``
``LOCAL_RANK``      ``SLURM_LOCALID``               0
``MASTER_ADDR``     the first node of the job       the first of ``SKYPILOT_NODE_IPS``
``MASTER_PORT``     20,000 and up, by the job's id  29,500
==================  ==============================  ==================================

torchrun, Kubeflow and Ray's driver set the variables of the first column. They come before the others, so that a script
of Slurm may export an address of its own.

Imports nothing heavy: a command asks it before it knows whether it starts ranks or is one. Left out: how ranks meet
(``env_rank.py``).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

AGENT_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Set by torchrun's agent, which is the parent of its ranks then."""

STARTER_VARIABLE = "HETERPS_HOST_STARTER"
"""Set by an actor of Ray, which is the parent of its rank then."""

_LARGEST_PORT = 65535
_USUAL_PORT = "29500"
_FIRST_PORT, _PORTS = 20_000, 10_000
_VARIABLES = (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_PORT", 1))
_FIRST_NODE = re.compile(r"([A-Za-z0-9_.-]+)(?:\[([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Membership:
    """The rank that a process is, and the address at which its world meets.

    Attributes:
        rank: Of this process.
        world_size: Processes in all.
        local_rank: Among those of this machine.
        address: At which ranks meet.
        port: The same.
    """

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int


def is_rank(environment: Mapping[str, str]) -> bool:
    """Return whether a process was started as one rank of several."""
    found = _mapped(environment)
    return all(found.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def has_agent(environment: Mapping[str, str]) -> bool:
    """Return whether the parent of this process is an agent that starts the ranks of a machine."""
    return AGENT_VARIABLE in environment or STARTER_VARIABLE in environment


def membership_of(environment: Mapping[str, str]) -> Membership:
    """Read the rank of a process from its environment.

    Raises:
        RunError: if a variable is not a number, or out of range.
    """
    found = _mapped(environment)
    numbers = {}
    for name, least in _VARIABLES:
        text = found[name]
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise RunError(f"{name} is {printable(text)!r} in the environment; expected a number of {least} or more")
        numbers[name] = int(text)
    rank, world_size, port = numbers["RANK"], numbers["WORLD_SIZE"], numbers["MASTER_PORT"]
    if rank >= world_size or port > _LARGEST_PORT:
        raise RunError(
            f"RANK={rank}, WORLD_SIZE={world_size}, MASTER_PORT={port} do not fit together; expected a rank below the "
            f"size and a port of at most {_LARGEST_PORT}"
        )
    local_rank = _number({"LOCAL_RANK": str(rank), **found}, "LOCAL_RANK")
    return Membership(rank, world_size, local_rank, found["MASTER_ADDR"], port)


def _mapped(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the variables of the contract, where Slurm or SkyPilot set others."""
    return {**_of_skypilot(environment), **_of_slurm(environment), **environment}


def _of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a task of a step; none in a batch script, which is no step, nor for a single task.

    A step counts ranks and tasks over all components of a heterogeneous job.
    """
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS")
    if tasks < 2 or "SLURM_PROCID" not in environment:
        return {}
    first = "_HET_GROUP_0" if "SLURM_HET_SIZE" in environment else ""
    node = _FIRST_NODE.match(environment.get(f"SLURM_JOB_NODELIST{first}", ""))
    job = _number(environment, f"SLURM_JOB_ID{first}")
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "MASTER_PORT": str(_FIRST_PORT + job % _PORTS),
        **({} if node is None else {"MASTER_ADDR": f"{node[1]}{node[2] or ''}"}),
    }


def _of_skypilot(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one process a node."""
    nodes = environment.get("SKYPILOT_NODE_IPS", "").split()
    if len(nodes) < 2 or "SKYPILOT_NODE_RANK" not in environment:
        return {}
    return {
        "RANK": environment["SKYPILOT_NODE_RANK"],
        "WORLD_SIZE": str(len(nodes)),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": nodes[0],
        "MASTER_PORT": _USUAL_PORT,
    }


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
