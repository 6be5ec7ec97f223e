"""What an elastic run is to do about a host that is lost, by somebody who knows prices and the samples that are wanted.

The launcher knows neither: it is handed a callable, which is told what was lost and answers in sentences. It is asked
once a loss, between two starts.

Left out: how it is decided (``machines/advised.py``), what is done about it (``driver.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass

from heterps_compile.errors import HeterpsError, RunError

STAY, MOVE, WAIT = "stay", "move", "wait"


@dataclass(frozen=True, slots=True)
class Loss:
    """Hosts that a run has lost.

    Attributes:
        hosts: That it ran on.
        lost: Those that are gone.
        elapsed_s: Since the run was launched.
        patience_s: For how long it can wait for others.
    """

    hosts: tuple[str, ...]
    lost: tuple[str, ...]
    elapsed_s: float
    patience_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about it.

    Attributes:
        kind: ``STAY`` on the hosts that are left, ``WAIT`` for others, or end here and ``MOVE``.
        told: Why, in sentences.
        command: What moves the run, as typed into a shell; "" for another kind.
    """

    kind: str
    told: tuple[str, ...]
    command: str = ""


Advisor = Callable[[Loss], Advice]
"""Raises a HeterpsError where it cannot tell."""


def ask(advisor: Advisor, loss: Loss, say: Callable[[str], None]) -> str:
    """Ask what to do about a loss, and tell it.

    Returns:
        ``STAY`` or ``WAIT``; ``STAY`` too where nobody can tell.

    Raises:
        RunError: where the run is to move, with the command that does it.
    """
    say("deciding whether to stay on the hosts that are left, to wait or to move")
    try:
        advice = advisor(loss)
    except HeterpsError as error:
        say(f"nothing is decided, and the run goes on with the hosts that are left: {error}")
        return STAY
    for sentence in advice.told:
        say(sentence)
    if advice.kind == MOVE:
        raise RunError(f"the run has ended at its last checkpoint to move to other machines: {advice.command}")
    return advice.kind
