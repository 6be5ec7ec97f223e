"""The command, from its first moment on; ``python -m heterps_compile`` is the same.

While it is still importing, Ctrl-C ends the process at once: nothing is begun yet that would have to be put right. From
then on it is heeded by ``cli/main.py``. Before that nothing is imported that Python has not loaded by itself: neither
here nor in ``__init__.py``.

Left out, as no code of ours has begun: while Python itself starts (its ``site`` module, the packages of an environment
that it loads, the ``import re`` of an installed script) Ctrl-C ends it in a way of its own, with a traceback.
"""

# The part of ``signal`` that is in Python itself: the other one imports ``enum`` for its names.
import _signal  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
import os
import sys

_INTERRUPTED = 130  # as errors.SIGNALLED has it, which is not imported yet


def _end_at_once(_number: int, _frame: object) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(_INTERRUPTED)


def main() -> None:
    """Run the command on this process's arguments."""
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:  # a shell ignores it for what runs behind
        _signal.signal(_signal.SIGINT, _end_at_once)
    from heterps_compile.cli.main import main as command  # noqa: PLC0415 - heeded from here on

    sys.exit(command())


if __name__ == "__main__":
    main()
