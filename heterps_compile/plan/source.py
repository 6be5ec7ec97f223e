"""Where a plan is read from: a ``plan.json``, a compiled folder, or a commit of a git repository.

``git`` is started with a list of arguments, never through a shell; what the user wrote reaches it as a revision that
does not begin with a dash, and as a path behind ``--``.

Left out: artefacts (``folder.py`` checks them); writing.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.units import format_bytes

from .file import from_json
from .folder import MAX_TEXT_BYTES, PLAN_NAME, read_text
from .plan import Plan

GIT_PREFIX = "git:"
_PLAIN_FILES = (b"100644", b"100755")


def read_plan(where: str) -> Plan:
    """Read a plan alone, without what it was written with.

    Args:
        where: Path of a ``plan.json`` or of a folder with one, or ``git:REV:PATH``; PATH is one of these two in the
            commit REV, relative to the current folder.

    Raises:
        InputError: where there is no such file, or it cannot be read.
        PlanError: where it is no plan, naming the JSON path.
    """
    return from_json(read_plan_text(where), where)


def read_plan_text(where: str) -> str:
    """Read the text of a plan; arguments and errors are those of :func:`read_plan`."""
    found = find_plan_text(where)
    if found is not None:
        return found
    if where.startswith(GIT_PREFIX):
        revision, path = _revision_and_path(where)
        raise InputError(
            f"the commit {revision!r} has no plan at {path!r}; expected a {PLAN_NAME} or a folder with one"
        )
    raise InputError(f"there is no plan at {where!r}; expected a {PLAN_NAME}, a compiled folder, or git:REV:PATH")


def find_plan_text(where: str) -> str | None:
    """Return the text of a plan; None where the folder, or the commit, has none there.

    Raises:
        InputError: as :func:`read_plan`, for what is there and cannot be read.
    """
    return _from_git(where) if where.startswith(GIT_PREFIX) else _from_disk(where)


def find_text_in_commit(base: str, path: str) -> str | None:
    """Return the text of a file in a commit (``git:REV``); None where the commit has no such file.

    Raises:
        InputError: where there is no such commit, or the file cannot be read.
    """
    where = f"{base}:{path}"
    return _in_commit(where, _commit(where), [path])


def path_of(where: str) -> str:
    """Return the path of the plan's file inside the tree it is read from, for an annotation."""
    path = where.removeprefix(GIT_PREFIX).partition(":")[2] if where.startswith(GIT_PREFIX) else where
    return path if path.endswith(".json") else os.path.join(path, PLAN_NAME)


def _from_disk(where: str) -> str | None:
    try:
        path = Path(where)
        return read_text(path / PLAN_NAME if path.is_dir() else path)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read the plan {where!r}: it is no UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise InputError(f"cannot read the plan {where!r}: {reason}") from error


def _revision_and_path(where: str) -> tuple[str, str]:
    revision, _, path = where.removeprefix(GIT_PREFIX).partition(":")
    if not revision or not path or revision.startswith("-") or "\0" in where:
        raise InputError(f"{where!r} is not git:REV:PATH, such as git:main:plans/plan.json or git:HEAD~1:model.heterps")
    return revision, path


def _commit(where: str) -> str:
    revision, _ = _revision_and_path(where)
    named = _git(where, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    return named.decode("ascii", "replace").strip()


def _from_git(where: str) -> str | None:
    _, path = _revision_and_path(where)
    return _in_commit(where, _commit(where), [path, f"{path.rstrip('/')}/{PLAN_NAME}"])


def _in_commit(where: str, commit: str, candidates: Sequence[str]) -> str | None:
    """Return the text of the first of some paths that is a plain file in a commit; None where none is."""
    for candidate in candidates:
        entry = _git(where, "ls-tree", "-z", commit, "--", candidate).split(b"\0")[0]
        mode, _, rest = entry.partition(b" ")
        if mode in _PLAIN_FILES:
            blob = rest.partition(b" ")[2].partition(b"\t")[0].decode("ascii")
            return _blob(where, blob)
    return None


def _blob(where: str, blob: str) -> str:
    size_bytes = int(_git(where, "cat-file", "-s", blob))
    if size_bytes > MAX_TEXT_BYTES:
        raise InputError(f"cannot read the plan {where!r}: it is larger than {format_bytes(MAX_TEXT_BYTES)}")
    try:
        return _git(where, "cat-file", "blob", blob).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read the plan {where!r}: it is no UTF-8 text") from error


def _git(where: str, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], check=False, capture_output=True)  # noqa: S603, S607 - a list, no shell
    except OSError as error:
        raise InputError(f"cannot read {where!r}: git does not run here ({error.strerror}); install it") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().removeprefix("fatal: ")
        unknown = "no such commit; fetch it first (a shallow clone has only the newest ones)"
        raise InputError(f"cannot read {where!r} from git: {said or unknown}")
    return done.stdout
