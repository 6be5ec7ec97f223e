"""A command on another machine, by OpenSSH's client: ended with the connection, told of signals through it.

Left out: which commands (``ssh.py``, ``torchrun.py``).
"""

import os
import shlex
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
        options = [word for option in _OPTIONS for word in ("-o", option)]
        config = [] if self.config is None else ["-F", os.path.abspath(self.config)]
        held = [self.python, "-m", "heterps_compile.runtime.engines.with_input", *command]
        return [PROGRAM, *config, *options, "--", address, shlex.join(held)]

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
        codes = follow(
            [
                Followed(tuple(self.words(address, command)), address, is_told_by_input=True, fatal=frozenset({_LOST}))
                for address, command in commands
            ],
            streams,
        )
        lost = [address for (address, _), code in zip(commands, codes, strict=True) if code == _LOST]
        if lost:
            raise RunError(
                f"ssh to {lost[0]!r} failed or was cut off, and the run was ended on the other hosts; try 'ssh "
                f"{lost[0]} true', which must need no password (keys, an agent, --ssh-config FILE)"
            )
        return next((code for code in codes if code), 0)
