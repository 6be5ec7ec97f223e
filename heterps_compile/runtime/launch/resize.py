"""Asking a training run to go on with other widths: the asking side, and what both sides agree on.

::

    resize CHECKPOINTS          finds the run's folder by a file among its checkpoints, and its store there
      resizes -> n              numbers the request
      resize/n                  directory and options that change
      resize/n/answer   <---    what the launcher says: it goes on so after the step, or why it does not

The launcher checks a request as it checks a run, then stops the ranks as Ctrl-C does, after the same step and with a
checkpoint, and starts them again from there. So every sample is trained on once, whatever the widths.

The launcher of ranks on other machines has such a folder too, on the machine where it follows them.

Left out: stopping and starting the ranks (``engines/driver.py``); runs that nobody follows, such
as those that were started by hand on every machine.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.plain_file import open_plain

from .run_folder import PREFIX, is_held, run_folder, write_private
from .run_options import RESIZE, RunOptions, by_field, frozen
from .run_store import FOLDER, folder_store

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_COUNT_KEY = "resizes"
_ANSWER_S = 600.0  # the launcher hashes the files of a folder that is new to it
_POINTER = ".heterps-run"
"""Among the checkpoints of a run that lives: the path of its private folder, in JSON."""
_LOOK_S = 0.1
_MOST_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class Resize:
    """What a run is to go on with.

    Attributes:
        directory: Another compiled folder of the same model, absolute; None for the same.
        options: Those of :data:`RESIZABLE` that change, by name.
    """

    directory: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, options: RunOptions) -> RunOptions:
        """Return the options of a run with the change; what it begins with stays.

        Raises:
            HeterpsError: where they do not go together.
        """
        changed = by_field({**options.by_name, **self.options})
        if self.directory is not None:
            # The hash that was asked for is of the folder before; who asks for another one has chosen it.
            changed |= {"directory": self.directory, "expect_sha256": None}
        return RunOptions(**{"directory": options.directory, **changed})


def request_resize(checkpoints: str | Path, resize: Resize) -> str:
    """Ask the run that writes its checkpoints to a folder to go on otherwise; return its answer.

    Args:
        checkpoints: The folder, as in ``--checkpoint``.
        resize: What changes.

    Raises:
        InputError: where nothing changes, or no run of this user on this machine writes there.
        RunError: where the run refuses, or ends before it answers.
    """
    if resize.directory is None and not resize.options:
        raise InputError(
            f"nothing changes; say what the run is to go on with ({RESIZE.option('replicas').word} 2,1, or --to DIR)"
        )
    folder = _find_run(Path(checkpoints))
    try:
        store = folder_store(folder, FOLDER)
        number = store.add(_COUNT_KEY, 1)
        store.set(_key(number), json.dumps(asdict(resize)))
        deadline_s = time.monotonic() + _ANSWER_S
        while not store.check([_answer_key(number)]):
            if time.monotonic() > deadline_s or not is_held(folder):
                raise TimeoutError
            time.sleep(_LOOK_S)
        answer = json.loads(store.get(_answer_key(number)))
    except (OSError, RuntimeError) as error:
        raise RunError("the run gave no answer: it ended meanwhile, or its launcher is busy") from error
    if answer["refused"]:
        raise RunError(f"the run goes on as it is: {answer['words']}")
    return str(answer["words"])


def _find_run(checkpoints: Path) -> Path:
    """Return the folder for requests of the run that writes its checkpoints somewhere."""
    folder = _pointed(checkpoints)
    if folder is None:
        raise InputError(
            f"no run of yours is followed on this machine that writes its checkpoints to "
            f"{printable(str(checkpoints))!r}; one that is over, or was started by hand on every machine, is started "
            f"again with other widths (run ... --resume --replicas N,N)"
        )
    return folder


def _pointed(checkpoints: Path) -> Path | None:
    """Return the folder of this user's living run that writes its checkpoints somewhere; None where there is none."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        with open_plain(checkpoints / _POINTER) as file:
            folder = Path(json.loads(file.read(_MOST_BYTES)))
        if folder.name.startswith(PREFIX) and folder.lstat().st_uid == os.getuid() and is_held(folder):
            return folder
    return None


@contextmanager
def _pointing(checkpoints: Path, folder: Path) -> Iterator[None]:
    """Leave the path of a run's folder among its checkpoints during a block, unless another run lives there."""
    new = [path for path in (checkpoints, *checkpoints.parents) if not path.exists()]
    with suppress(OSError):  # who cannot write there is told when the first checkpoint is due
        checkpoints.mkdir(parents=True, exist_ok=True)
        if _pointed(checkpoints) is None:
            (checkpoints / _POINTER).unlink(missing_ok=True)  # of a run that was killed
        write_private(checkpoints / _POINTER, json.dumps(str(folder)))
    try:
        yield
    finally:
        with suppress(OSError):
            if _pointed(checkpoints) == folder:
                (checkpoints / _POINTER).unlink()
            for path in new:  # the innermost first
                path.rmdir()


class ResizeRequests:
    """The launcher's side: the requests that have come, one after the other."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._seen = 0

    def next(self) -> Resize | None:
        """Return the next request; None where there is none. One that cannot be read is refused here."""
        while self._store.check([_key(self._seen + 1)]):
            self._seen += 1
            content = self._store.get(_key(self._seen))
            try:
                return _read(content)
            except (ValueError, TypeError, KeyError):
                self.answer("the request cannot be read", refused=True)
        return None

    def answer(self, words: str, *, refused: bool) -> None:
        """Answer the request that came last."""
        self._store.set(_answer_key(self._seen), json.dumps({"words": words, "refused": refused}))


@contextmanager
def hosting_requests(options: RunOptions) -> Iterator[ResizeRequests | None]:
    """Let a run be asked for other widths; yield the requests.

    None is yielded for a run without checkpoints, which is not found by them.
    """
    if not options.training or options.checkpoint is None:
        yield None
        return
    with run_folder() as folder, _pointing(Path(options.checkpoint), folder):
        yield ResizeRequests(folder_store(folder, FOLDER))


def _read(content: bytes) -> Resize:
    if len(content) > _MOST_BYTES:
        raise ValueError("too long")
    found = json.loads(content)
    directory, options = found["directory"], dict(found["options"])
    if not (directory is None or isinstance(directory, str)) or not options.keys() <= {
        option.name for option in RESIZE.options
    }:
        raise ValueError("of another form")
    lists = {name: frozen(value) for name, value in options.items()}
    return Resize(directory, lists)


def _key(number: int) -> str:
    return f"resize/{number}"


def _answer_key(number: int) -> str:
    return f"resize/{number}/answer"
