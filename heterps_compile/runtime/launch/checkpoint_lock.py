"""One run at a time writes checkpoints into a folder: two would go on from each other's, and delete them.

The lock ends with the process that holds it, however that ends: the launcher's, or rank 0's under torchrun.

Left out: file systems without locks, where nobody is refused.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.swap import locked


@contextmanager
def holding_checkpoints(directory: str | None) -> Iterator[None]:
    """Hold the folder of a run's checkpoints while a block runs; nothing where there is none.

    Raises:
        RunError: where another run holds it.
    """
    with ExitStack() as held:
        if directory is not None:
            try:
                held.enter_context(locked(Path(directory).resolve(), needed=False))
            except BlockingIOError as error:
                raise RunError(
                    f"another run writes its checkpoints to {printable(directory)!r}; wait for its end, or name "
                    f"another folder (--checkpoint DIR)"
                ) from error
        yield
