"""The folder of a run's checkpoints: which are finished, which is the last, and who may write there.

One run at a time writes checkpoints into a folder: two would go on from each other's, and delete them. The lock ends
with the process that holds it, however that ends: the launcher's, or rank 0's under torchrun.

Left out: the content of a checkpoint (``format.py``), and file systems without locks, where nobody is refused.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.swap import locked

STATE_NAME = "state.json"
STEP_PATTERN = "step-[0-9]{6,18}"
"""What the name of a checkpoint looks like: a step, never a path."""
_STEP = re.compile(r"step-([0-9]{6,18})")
_ASIDE = ".heterps-new-"  # what plan/swap.py calls a folder that is being built


def step_name(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step-{step:06d}"


def find_checkpoints(directory: Path) -> list[Path]:
    """Return the finished checkpoints of a folder, the oldest first; none where there is no folder."""
    if not directory.is_dir():
        return []
    found = [(int(match[1]), path) for path in directory.iterdir() if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(found) if (path / STATE_NAME).is_file()]


def is_state_dict(checkpoint: Path) -> bool:
    """Check whether weights to begin with are a state dict in one file, instead of a checkpoint's folder."""
    return checkpoint.suffix == ".safetensors" and checkpoint.is_file()


def way_out(checkpoint: Path) -> str:
    """Say what is to be done where a checkpoint is damaged: which one lies before it."""
    match = _STEP.fullmatch(checkpoint.name)
    step = int(match[1]) if match else -1
    before = [one.name for one in find_checkpoints(checkpoint.parent) if int(one.name.removeprefix("step-")) < step]
    shown = repr(printable(str(checkpoint)))
    if not before:
        return f"there is none before it: start anew in another folder, or copy {shown} again"
    return f"remove the folder {shown} to go on from {before[-1]}"


def keep_last(directory: Path, keep: int, spared: str | None = None) -> None:
    """Delete all finished checkpoints but the last ``keep``; of one that lies elsewhere, the link to it alone.

    Args:
        directory: Of the checkpoints.
        keep: How many of the last stay.
        spared: Name of another one that stays; None for none.
    """
    for old in find_checkpoints(directory)[:-keep]:
        if old.name == spared:
            continue
        if old.is_symlink():
            with suppress(OSError):
                old.unlink()
            continue
        # state.json goes first: what a crash leaves of the rest is then no checkpoint.
        with suppress(OSError):
            (old / STATE_NAME).unlink()
        shutil.rmtree(old, ignore_errors=True)


def tidy(directory: Path) -> None:
    """Delete what crashed runs left half built; what a live run holds stays."""
    if not directory.is_dir():
        return
    left = [path for path in directory.iterdir() if path.name.startswith(_ASIDE)]
    left += [p for p in directory.iterdir() if _STEP.fullmatch(p.name) and not (p / STATE_NAME).exists()]
    for path in left:
        with suppress(OSError), locked(path):
            shutil.rmtree(path)


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
