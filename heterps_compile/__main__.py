"""The command, from its first moment on; ``python -m heterps_compile`` is the same.

While it is still importing, Ctrl-C ends the process at once: nothing is begun yet that would have to be put right. From
then on it is heeded by ``cli/main.py``. Nothing but the standard library's smallest modules is imported before that.
"""

import os
import signal
import sys

_INTERRUPTED = 130  # as errors.SIGNALLED has it, which is not imported yet


def _end_at_once(_number: int, _frame: object) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(_INTERRUPTED)


def main() -> None:
    """Run the command on this process's arguments."""
    heeded = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # a shell ignores it for what runs behind
    if heeded:
        signal.signal(signal.SIGINT, _end_at_once)
    from heterps_compile.cli.main import main as command  # noqa: PLC0415 - heeded from here on

    sys.exit(command())


if __name__ == "__main__":
    main()
