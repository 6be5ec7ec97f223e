"""What can go wrong, as one tree.

::

    HeterpsError                  everything a user can cause; one clear message, exit code 1
    ├── InputError                an input cannot be read (path, what was expected)
    │   └── OptionError           an option means nothing for what it is given with (exit code 2)
    ├── GraphError                a graph breaks a law (law, node)
    ├── UnsupportedOpError        an op no table knows (op, domain, node)
    ├── UnknownNameError          a name nobody knows (name, the known ones, the nearest)
    ├── InfeasibleError           a request no plan meets (constraint, by how much, cheapest relaxation)
    │   └── UnprovenError         none was found, and one may exist
    ├── PartitionError            a partition breaks a law (law, stage)
    ├── MissingPackageError       what is asked for needs packages that are not installed (what, packages, what to type)
    ├── PlugInError               another package's plug-in does not load or has the wrong shape (entry point, fault)
    ├── BackendError              a stage cannot be built, written or run (stage, op)
    ├── VerificationError         the staged model differs from the whole one (output, difference)
    ├── RunError                  a run cannot start or came to an end (rank, stage, replica, micro-batch, cause)
    │   └── RunKilledError        a run was told twice to stop (exit code 128 and the signal)
    ├── CancelledError            the caller no longer wants the work (the step it was in, seconds)
    ├── PlanError                 a plan file is wrong (JSON path, what was expected)
    └── StalePlanError            a plan no longer fits (which hash)

Every message tells the thing, the fault, the numbers and the way out. A traceback that reaches a
user is a bug of ours.
"""

import difflib
from collections.abc import Iterable, Mapping

SIGNALLED = 128
"""Exit code of what a signal ended, less the signal's number, as shells have it."""

_SHOWN = 16


class HeterpsError(Exception):
    """The root of every error a user can cause.

    Attributes:
        exit_code: Of the command.
    """

    exit_code = 1


class InputError(HeterpsError):
    """An input file or object cannot be read."""


class OptionError(InputError):
    """An option that means nothing for what it is given with, or without another."""

    exit_code = 2


class GraphError(HeterpsError):
    """A graph breaks one of the laws of :mod:`heterps_compile.ir.laws`."""


class UnsupportedOpError(GraphError):
    """A graph uses an op that no table knows."""


class UnknownNameError(HeterpsError):
    """A name is not among the known ones; the message gives the nearest, and where others would come from."""

    def __init__(self, what: str, name: str, known: Iterable[str], *, others: str = "") -> None:
        choices = list(dict.fromkeys(known))
        near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        more = f" and {len(choices) - _SHOWN} more" if len(choices) > _SHOWN else ""
        also = f"; {others}" if others else ""
        super().__init__(f"unknown {what} {name!r}{hint} (known: {', '.join(choices[:_SHOWN])}{more}){also}")


class InfeasibleError(HeterpsError):
    """No plan meets the request; the message says which constraint, by how much, and what would help.

    Attributes:
        is_proven: Whether that is certain.
    """

    is_proven = True


class UnprovenError(InfeasibleError):
    """No plan that meets the request was found, and none was ruled out."""

    is_proven = False


class PartitionError(HeterpsError):
    """A partition breaks one of the laws of :mod:`heterps_compile.ir.partition`."""


class MissingPackageError(HeterpsError):
    """What is asked for needs packages that are not installed.

    Attributes:
        needs: The extras that are missing, by what needs them.
    """

    def __init__(self, message: str, needs: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(message)
        self.needs = needs


class PlugInError(HeterpsError):
    """A plug-in of another package cannot be loaded, or is not what its group asks for."""


class BackendError(HeterpsError):
    """A backend cannot build, write, read or run a stage."""


class VerificationError(HeterpsError):
    """The staged model does not give the whole model's outputs.

    Attributes:
        is_explained: Whether the message tells the cause, so that rounding need not be asked about.
        likely: The likely cause and the way out, for messages where rounding is none; "" where there is no guess.
    """

    def __init__(self, message: str, *, is_explained: bool = False, likely: str = "") -> None:
        super().__init__(message)
        self.is_explained = is_explained
        self.likely = likely


class RunError(HeterpsError):
    """A run of stages in several processes cannot start or came to an end before its time."""


class RunKilledError(RunError):
    """A run was ended by a signal, and not after a step: told twice, it was killed, or no process of it ran just then.

    Attributes:
        signal: The first one.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal, self.exit_code = signal, SIGNALLED + signal


class CancelledError(HeterpsError):
    """The caller cancelled the work; nothing of it is left."""


class PlanError(HeterpsError):
    """A plan file is not what its schema says."""


class StalePlanError(PlanError):
    """A plan or artefact no longer matches what it was made from."""
