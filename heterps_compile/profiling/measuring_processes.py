"""Processes that measure for a profile: started together, all ready before any is told to begin, ended in any case.

A process prints ``ready`` once it has read its model, and goes on line by line from then on.

Left out: what they are told and what they answer (``replicas.py``, ``crowding.py``).
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Timer

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line, shorten

_SHOWN = 500


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """How it is told that processes gave no answer.

    Attributes:
        what: They measure.
        option: That leaves it out.
    """

    what: str
    option: str

    def error(self, why: str) -> RunError:
        """Return the error for a reason."""
        return RunError(f"{self.what} were not measured: {why}; leave them out ({self.option})")


@contextmanager
def started(
    module: Sequence[str], count: int, threads: int, limit_s: float, untold: NotMeasured
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start processes of a module of ours; they are ready within, and ended afterwards.

    Args:
        module: Its name, and its arguments.
        count: Of processes.
        threads: Of each.
        limit_s: After which they are ended.
        untold: What to say where one gives no answer.

    Raises:
        RunError: where a process ends or says something else than it should.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    processes = [
        subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        for _ in range(count)
    ]

    def give_up() -> None:
        for process in processes:
            process.kill()

    watch = Timer(limit_s, give_up)
    watch.start()
    try:
        for process in processes:  # all have read the model before any is timed
            if process.stdout is not None and process.stdout.readline().strip() != b"ready":
                raise untold.error(_end_of(process))
        yield processes
    except (ValueError, OSError) as error:
        ended = next((process for process in processes if process.poll()), None)
        raise untold.error("one gave no answer" if ended is None else _end_of(ended)) from error
    finally:
        watch.cancel()
        for process in processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with suppress(OSError):  # what was written to a process that has ended
                        stream.close()


def _end_of(process: "subprocess.Popen[bytes]") -> str:
    complaint = process.communicate()[1].decode("utf-8", "replace")
    return f"one ended with {shorten(one_line(complaint[-_SHOWN:]), _SHOWN)!r}"


def tell(process: "subprocess.Popen[bytes]", line: str) -> None:
    """Tell a process a line."""
    if process.stdin is not None:
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()


def hear(process: "subprocess.Popen[bytes]") -> str:
    """Wait for a line of a process; "" where it has ended."""
    return "" if process.stdout is None else process.stdout.readline().decode("utf-8", "replace")
