"""A command on another machine, by OpenSSH's client: ended with the connection, told of signals through it.

Left out: which commands (``ssh.py``).
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.errors import RunError

from .contract import Streams
from .followed import Followed, follow

PROGRAM = "ssh"
_LOST = 255  # ssh(1): the exit code where an error of its own occurred
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")


@dataclass(frozen=True, slots=True)
class Remote:
    """How commands are started on other machines.

    Attributes:
        python: The Python there that has heterps-compile.
        config: Of OpenSSH; None for its own.
    """

    python: str
    config: str | None

    def words(self, address: str, command: Sequence[str]) -> list[str]:
        """Return the words that run a command there for as long as this connection stands."""
        held = [self.python, "-m", "heterps_compile.runtime.engines.with_input", *command]
        return self._ssh(address, shlex.join(held))

    def check(self) -> None:
        """Check that the configuration is there.

        Raises:
            RunError: where it is not.
        """
        if self.config is not None and not os.path.isfile(self.config):
            raise RunError(f"there is no file {self.config!r} (--ssh-config)")

    def follow(self, commands: Sequence[tuple[str, Sequence[str]]], streams: Streams) -> int:
        """Run commands on machines, and follow them to the end.

        Args:
            commands: Pairs of an address and the words to run there.
            streams: Take what they print.

        Returns:
            The first exit code other than 0.

        Raises:
            RunError: where a machine cannot be reached, or the way to it is lost.
        """
        codes = follow(self.followed(commands), streams)
        lost = lost_of(commands, codes)
        if lost:
            raise lost_way(lost[0])
        return next((code for code in codes if code), 0)

    def followed(self, commands: Sequence[tuple[str, Sequence[str]]]) -> list[Followed]:
        """Return the processes of this machine by which commands run on others."""
        return [
            Followed(tuple(self.words(address, command)), address, is_told_by_input=True, fatal=frozenset({_LOST}))
            for address, command in commands
        ]

    def asking(self, address: str) -> "subprocess.Popen[bytes]":
        """Start asking whether a machine answers: the process ends with 0 where it does."""
        return subprocess.Popen(  # noqa: S603 - ssh, with an address that was read as one
            self._ssh(address, "true"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )

    def _ssh(self, address: str, line: str) -> list[str]:
        options = [word for option in _OPTIONS for word in ("-o", option)]
        config = [] if self.config is None else ["-F", os.path.abspath(self.config)]
        return [PROGRAM, *config, *options, "--", address, line]


def lost_of(commands: Sequence[tuple[str, Sequence[str]]], codes: Sequence[int]) -> list[str]:
    """Return the machines to which the way was lost."""
    return [address for (address, _), code in zip(commands, codes, strict=True) if code == _LOST]


def lost_way(address: str) -> RunError:
    """Return what is told of a machine to which the way was lost."""
    return RunError(
        f"ssh to {address!r} failed or was cut off, and the run was ended on the other hosts; try 'ssh "
        f"{address} true', which must need no password (keys, an agent, --ssh-config FILE)"
    )
