"""The compiled folder: ``plan.json``, the artefacts of every stage, a README, and a mark that it is ours.

The folder is written and replaced as a whole (``swap.py``). The mark lists the files we wrote: a folder without
it, or with files beside those, is somebody's work and is replaced only with ``force``. Reading checks every
artefact against its SHA-256 in the plan before anything else looks at it.

Left out: what is inside an artefact (``backends/``), signatures. Hashes in the folder find damage, not malice: who can
write an artefact can write the plan. Against malice a hash of the plan comes from elsewhere (``expect_sha256``).
"""

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from heterps_compile.errors import BackendError, InputError, PlanError, StalePlanError
from heterps_compile.plain_file import open_plain
from heterps_compile.units import format_bytes

from .file import from_json, to_json
from .plan import Artifact, Plan
from .readme import readme
from .schema import FILE_NAME
from .scoring_files import add_scoring
from .swap import recover, replacing

PLAN_NAME = "plan.json"
README_NAME = "README.md"
MARK_NAME = ".heterps-compile"

_MARK = "Written by heterps-compile, which replaces this folder as a whole. Files it wrote:"
_MADE_BY_RUNNING = "__pycache__"
MAX_TEXT_BYTES = 256 * 2**20  # of a plan or mark; a plan of 100,000 layers has some 20 MB
_FILES_SHOWN = 3


def check_target(directory: str | os.PathLike[str], *, force: bool) -> Path:
    """Check, before the long work, that a folder can be written; writes nothing that stays.

    Args:
        directory: Where the compiled folder is to be; need not exist.
        force: Whether a folder that we did not write may be replaced, with all that is in it.

    Returns:
        The folder with every symbolic link resolved.

    Raises:
        InputError: where the folder cannot be written or must not be replaced; says why.
    """
    try:
        target = Path(directory).resolve()
        recover(target)
        _refuse_foreign(target, force=force)
        _try_writing_beside(target)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL in the path; RuntimeError: a link loop
        raise _unwritable(directory, error) from error
    return target


def write_folder(
    directory: str | os.PathLike[str],
    plan: Plan,
    write_stages: Callable[[Path], list[list[str]]],
    write_scoring: Callable[[Path], list[list[str]]] | None = None,
    *,
    beside: Mapping[str, str] | None = None,
    force: bool = False,
) -> Plan:
    """Write the compiled folder as a whole: a crash leaves what was there before, or the new folder.

    Args:
        directory: Where it is to be; missing parents are made.
        plan: What was decided; its artefacts are filled in here.
        write_stages: Writes every stage into an empty folder; gives the names of the files of each stage.
        write_scoring: The same for the stages in evaluation mode; None where they are the same, or there are none.
        beside: Texts of further files by name, such as ``pool.toml``.
        beside: Texts of further files by name, such as ``pool.toml``.
        force: Whether a folder that we did not write may be replaced, with all that is in it.

    Returns:
        The plan with the artefacts and their hashes, as ``plan.json`` has it.

    Raises:
        InputError: where the folder cannot be written or must not be replaced.
        BackendError: where ``write_stages`` does not do what it promises.
    """
    target = check_target(directory, force=force)
    try:
        with replacing(target) as new:
            names = write_stages(new)
            _check_written(new, names)
            scoring = names if write_scoring is None else add_scoring(new, names, write_scoring)
            _check_written(new, [sorted({*files, *more}) for files, more in zip(names, scoring, strict=True)])
            artifacts = [_artifacts(new, of_stages) for of_stages in (names, scoring)]
            plan = replace(plan, artifacts=artifacts[0])
            if plan.scoring is not None and not plan.scoring.refused:
                plan = replace(plan, scoring=replace(plan.scoring, artifacts=artifacts[1]))
            (new / PLAN_NAME).write_text(to_json(plan), "ascii")
            (new / README_NAME).write_text(readme(plan), "utf-8")
            for name, text in (beside or {}).items():
                (new / name).write_text(text, "utf-8")
            _mark(new)
            _refuse_foreign(target, force=force)  # once more: minutes have passed since the first time
    except OSError as error:
        raise _unwritable(directory, error) from error
    return plan


def _artifacts(folder: Path, names: Sequence[Sequence[str]]) -> tuple[tuple[Artifact, ...], ...]:
    return tuple(tuple(Artifact(name, _sha256(folder / name)) for name in files) for files in names)


def write_files(directory: str | os.PathLike[str], files: Mapping[str, str], *, force: bool = False) -> None:
    """Write a folder of text files as a whole, as :func:`write_folder` does.

    Raises:
        InputError: where the folder cannot be written or must not be replaced.
    """
    target = check_target(directory, force=force)
    try:
        with replacing(target) as new:
            for name, text in files.items():
                (new / name).write_text(text, "utf-8")
            _mark(new)
            _refuse_foreign(target, force=force)
    except OSError as error:
        raise _unwritable(directory, error) from error


def _mark(folder: Path) -> None:
    (folder / MARK_NAME).write_text("\n".join([_MARK, *sorted(os.listdir(folder))]) + "\n", "ascii")


def read_folder(
    directory: str | os.PathLike[str], *, expect_sha256: str | None = None
) -> tuple[Plan, list[list[Path]]]:
    """Read a compiled folder's plan and check every artefact against it.

    Args:
        directory: The folder.
        expect_sha256: Of its ``plan.json``, which holds the hashes of all other files, from somewhere that can be
            trusted; None to take the folder's own word, which finds damage and no malice.

    Returns:
        The plan, and the paths of every stage's files, the one to open first.

    Raises:
        InputError: where there is no such folder, or it is no compiled one.
        PlanError: where the plan is wrong, naming the JSON path.
        StalePlanError: where an artefact is missing or not the one the plan was written with, or the plan is not the
            one that is expected.
    """
    folder = Path(directory)
    shown = os.fspath(directory)
    expected = None if expect_sha256 is None else _read_expected(expect_sha256)
    try:
        recover(folder.absolute())
        if not folder.is_dir():
            fault = "is a file" if folder.exists() else "does not exist"
            raise InputError(f"{shown!r} {fault}; expected a folder that heterps-compile wrote")
        text = read_text(folder / PLAN_NAME)
    except FileNotFoundError as error:
        raise InputError(f"{shown!r} is no compiled folder: it has no {PLAN_NAME}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {os.path.join(shown, PLAN_NAME)!r}: {_reason(error)}") from error
    if expected is not None and (found := hashlib.sha256(text.encode()).hexdigest()) != expected:
        raise StalePlanError(
            f"{shown!r} is not the folder that is expected: its {PLAN_NAME} has the SHA-256 {found}, expected "
            f"{expected}; nothing of it was opened: get it anew from who told you the hash"
        )
    plan = from_json(text, os.path.join(shown, PLAN_NAME))
    if not plan.artifacts:
        raise PlanError(f"{os.path.join(shown, PLAN_NAME)}: artifacts: the plan names no files to run; compile again")
    paths = [[folder / artifact.file for artifact in files] for files in plan.artifacts]
    scoring = () if plan.scoring is None else plan.scoring.artifacts
    for artifact in dict.fromkeys(artifact for files in (*plan.artifacts, *scoring) for artifact in files):
        _check_artifact(folder, artifact, shown)
    return plan, paths


def _read_expected(text: str) -> str:
    if not re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        raise InputError(
            f"{text!r} is no SHA-256: expected the 64 hexadecimal digits of {PLAN_NAME}, as heterps-compile prints "
            f"them where it writes or shows a folder"
        )
    return text.lower()


def compiled_folder(path: str | os.PathLike[str]) -> Path | None:
    """Return the compiled folder that a path is, or whose plan it is; None where the plan stands alone."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    is_its_plan = Path(path).is_dir() or Path(path).name == PLAN_NAME
    return folder if is_its_plan and _listed_in_mark(folder) is not None else None


def _check_artifact(folder: Path, artifact: Artifact, shown: str) -> None:
    path = folder / artifact.file
    try:
        is_plain = stat.S_ISREG(path.lstat().st_mode)  # a link may lead out of the folder
        found = _sha256(path) if is_plain else ""
    except FileNotFoundError as error:
        raise StalePlanError(f"{shown!r} lacks {artifact.file!r}, which its plan names; compile again") from error
    except OSError as error:
        raise InputError(f"cannot read {os.fspath(path)!r}: {_reason(error)}") from error
    if not is_plain:
        raise StalePlanError(f"{artifact.file!r} in {shown!r} is a link or folder, not the file that was written")
    if found != artifact.sha256:
        raise StalePlanError(
            f"{artifact.file!r} in {shown!r} is not the file the plan was written with "
            f"(SHA-256 {found[:12]}…, expected {artifact.sha256[:12]}…); compile again"
        )


def _check_written(folder: Path, names: list[list[str]]) -> None:
    named = {name for files in names for name in files}
    reserved = {PLAN_NAME, README_NAME, MARK_NAME}
    wrong = sorted(n for n in named if not re.fullmatch(FILE_NAME, n) or n in reserved)
    if wrong:
        raise BackendError(f"the backend chose the file name {wrong[0]!r}; expected letters, digits, '.', '_' and '-'")
    written = set(os.listdir(folder))
    if written != named:
        missing, extra = sorted(named - written), sorted(written - named)
        raise BackendError(f"the backend named files it did not write {missing} or wrote files it did not name {extra}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: Path) -> str:
    """Read a plan or a mark.

    Raises:
        OSError: where it cannot be read.
        ValueError: where it is too large, or no UTF-8 text.
    """
    with open_plain(path) as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise ValueError(f"it is larger than {format_bytes(MAX_TEXT_BYTES)}")
    return content.decode("utf-8")


def _refuse_foreign(target: Path, *, force: bool) -> None:
    """Refuse what must not be replaced: files, folders in use, and without ``force`` other people's work."""
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"the output {str(target)!r} is a file; name a folder")
    home = Path(os.path.realpath(os.path.expanduser("~")))
    if os.path.ismount(target) or Path.cwd().is_relative_to(target) or home.is_relative_to(target):
        raise InputError(
            f"the output {str(target)!r} cannot be replaced as a whole, it is or holds the current folder, the home "
            f"folder or a mounted disk; name a folder inside it"
        )
    present = set(os.listdir(target))
    if force or not present:
        return
    ours = _listed_in_mark(target)
    if ours is None:
        raise InputError(
            f"the folder {str(target)!r} was not written by heterps-compile; "
            f"choose another (-o DIR) or replace it with all that is in it (--force)"
        )
    foreign = sorted(present - ours)
    if foreign:
        more = f" and {len(foreign) - _FILES_SHOWN} more" if len(foreign) > _FILES_SHOWN else ""
        raise InputError(
            f"the folder {str(target)!r} holds files that heterps-compile did not write "
            f"({', '.join(map(repr, foreign[:_FILES_SHOWN]))}{more}) and that would be lost; "
            f"move them away, choose another folder (-o DIR), or give them up (--force)"
        )


def _listed_in_mark(folder: Path) -> set[str] | None:
    """Return the names of the files we wrote, or None where the folder does not bear our mark."""
    try:
        lines = read_text(folder / MARK_NAME).splitlines()
    except (OSError, ValueError):
        return None
    return {MARK_NAME, _MADE_BY_RUNNING, *lines[1:]} if lines[:1] == [_MARK] else None


def _try_writing_beside(target: Path) -> None:
    """Make and remove a folder beside the target, or in its nearest parent that exists.

    Raises:
        OSError: where that fails, or the target's name is one that no file can have.
    """
    with suppress(FileNotFoundError):
        os.lstat(target)
    parent = next(folder for folder in target.parents if folder.exists())
    os.rmdir(tempfile.mkdtemp(prefix=".heterps-try-", dir=parent))


def _unwritable(directory: str | os.PathLike[str], error: Exception) -> InputError:
    return InputError(f"cannot write the folder {os.fspath(directory)!r}: {_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8 text"
    return (isinstance(error, OSError) and error.strerror) or str(error)
