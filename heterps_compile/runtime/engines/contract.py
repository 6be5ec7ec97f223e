"""What an engine is: a value that starts a run on machines, follows its log and ends it, or prints how.

An engine is a frozen dataclass whose fields are its options. It is handed a :class:`Job`, which is the run as it was
asked for and what was worked out of it, and adds nothing to the options of ``run``: these travel as the words that
``run`` is given by hand.

Left out: which engines there are (``find.py``), their options (``launch_options.py``).
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, TextIO

from heterps_compile.errors import RunError
from heterps_compile.packages import need
from heterps_compile.runtime.launch.option_words import option_words
from heterps_compile.runtime.launch.prepare import Prepared
from heterps_compile.runtime.launch.run_options import RunOptions

from .advice import Advisor


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do beside printing, which all can.

    Attributes:
        starts: It starts the run, follows its log until the end, and ends it when this process is told to.
        changes_widths: It can end the ranks of a run that goes on and start them again with other widths.
        programs: What must be on this machine's PATH for it to start a run.
        extras: Whose packages it needs for that.
    """

    starts: bool = True
    changes_widths: bool = False
    programs: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RentedAs:
    """The machine of a cloud with which the units of a device type are rented.

    Attributes:
        provider: Who rents it out, such as ``"aws"``.
        region: Where.
        instance: What the provider calls it.
        is_spot: Whether as a transient machine.
        units: How many it has.
    """

    provider: str
    region: str
    instance: str
    is_spot: bool
    units: int


@dataclass(frozen=True, slots=True)
class Job:
    """A run that an engine is to start.

    Attributes:
        options: As asked for.
        prepared: What was worked out of them.
        rented: What machines were chosen for device types, by the types' names; an engine's own options go before.
        advisor: Who says what an elastic run is to do about a lost host; None to go on with those that are left.
        environment: Variables that Ray adds to the environment of every rank.
    """

    options: RunOptions
    prepared: Prepared
    rented: Mapping[str, RentedAs] = field(default_factory=lambda: MappingProxyType({}))
    advisor: Advisor | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def run_words(self, *more: str) -> list[str]:
        """Return the words after ``heterps-compile`` that start this run, with more options of it."""
        return ["run", self.options.directory, *option_words(self.options, without=("hosts",)), *more]


@dataclass(frozen=True, slots=True)
class Written:
    """What an engine would type or hand to somebody: shown by ``--print``.

    Attributes:
        title: What it is, in one line; "" where the text is for a program that takes no more.
        text: A line for a shell, a script, a manifest.
    """

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Streams:
    """Where the log of a run goes: what its processes print, and their errors."""

    out: TextIO
    err: TextIO


class Engine(ABC):
    """Starts a run on machines."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()

    @abstractmethod
    def check(self, job: Job) -> None:
        """Check that this engine can start the run, without starting or writing anything.

        Raises:
            HeterpsError: in one sentence, what does not fit and the way out.
        """

    @abstractmethod
    def write(self, job: Job) -> Sequence[Written]:
        """Return what it would write or type, without a secret in it."""

    def start(self, job: Job, streams: Streams) -> int:
        """Start the run, follow its log to the end, and end it when this process is told to.

        Returns:
            What this process is to exit with.

        Raises:
            HeterpsError: where it cannot be started, or the way to it is lost.
        """
        raise NotImplementedError(f"{self.name} starts nothing")


def no_other_widths(engine: Engine) -> str:
    """Say why a run of an engine that cannot change widths keeps those it has."""
    return (
        f"the engine {engine.name} does not start ranks again with other widths; end the run (Ctrl-C, which keeps a "
        f"checkpoint), and launch it again with --resume and other --replicas"
    )


def need_installed(engine: Engine) -> None:
    """Check that what an engine starts runs with is on this machine.

    Raises:
        RunError: naming the first program that is not.
        MissingPackageError: naming the packages that are not, and what to type.
    """
    need(f"the engine {engine.name}", *engine.capabilities.extras)
    for program in engine.capabilities.programs:
        if shutil.which(program) is None:
            raise RunError(
                f"the engine {engine.name} needs {program!r}, which is not on the PATH of this machine; install it, or "
                f"take --print and start what is printed where it is"
            )
