"""Replace a folder as a whole, so that a crash or Ctrl-C leaves the old folder or the new one, never half.

The steps; any of them may be the last::

    1. make and lock  .heterps-new-<target>-<random>  beside the target
    2. fill it, flush it to disk
    3. exchange the two names (one system call), or just rename where there is no old folder
    4. delete what now stands under the hidden name: the old folder

A crash leaves at worst a hidden folder whose lock died with its process; the next run for the same target
deletes it. Where the file system cannot exchange two names (NFS, macOS), step 3 becomes two renames by way of
``.heterps-old-<target>``. A failure between the two puts the old folder back at once, a power cut is mended by
:func:`recover` before the target is next read or written.

Left out: Windows (no ``fcntl``), what the folder holds (``folder.py``).
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from heterps_compile.escape import printable
from heterps_compile.logger import LOG

_AT_FDCWD = -100  # the paths below are relative to the current folder (linux/fcntl.h)
_RENAME_EXCHANGE = 2  # linux/fs.h
_CANNOT_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
_ATTEMPTS = 8  # at making a folder that no tidying process mistakes for a stale one


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the target's place where the block ends well, and vanishes where not.

    Args:
        target: An existing folder, or a path where nothing is; missing parents are made.

    Raises:
        OSError: where something cannot be written; the target is then as it was.
    """
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        recover(target)
        _delete_stale(target)
        new, lock = _make_locked(target)
        try:
            yield new
            _flush(new)
            _swap(new, target)
        finally:
            # What was half built, or the folder that was replaced; what cannot be deleted, the next run deletes.
            shutil.rmtree(new, ignore_errors=True)
            os.close(lock)
    except BaseException:
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise


def recover(target: Path) -> None:
    """Put back an old folder that a crash between two renames left aside; else do nothing.

    Leaves alone what a run that is still going on holds; does nothing where it may not write.
    """
    if not target.exists():
        old = _aside(target)
        with suppress(OSError), locked(old):
            os.rename(old, target)
            LOG.warning("put back %s: an interrupted run had left it aside", printable(str(target)))


def _delete_stale(target: Path) -> None:
    """Delete what crashed runs left beside the target; what a live run has locked stays."""
    names = {_aside(target).name} if target.exists() else set()
    with os.scandir(target.parent) as entries:
        names |= {entry.name for entry in entries if entry.name.startswith(_new_prefix(target))}
    for name in names:
        with suppress(OSError), locked(target.with_name(name)):
            shutil.rmtree(target.with_name(name))
            LOG.debug("deleted %s, left by an interrupted run", printable(str(target.with_name(name))))


def _key(target: Path) -> str:
    # A hash, because the name itself may already be as long as a name can be.
    return hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]


def _new_prefix(target: Path) -> str:
    return f".heterps-new-{_key(target)}-"


def _aside(target: Path) -> Path:
    return target.with_name(f".heterps-old-{_key(target)}")


@contextmanager
def locked(folder: Path, *, needed: bool = True) -> Iterator[None]:
    """Hold a folder's lock; where it is not needed, go on without it on a file system that has no locks.

    Raises:
        OSError: where there is no such folder, or somebody holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _lock(descriptor, needed=needed)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, needed: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        if needed:
            raise


def _make_locked(target: Path) -> tuple[Path, int]:
    """Make a hidden folder beside the target and lock it; return it with the descriptor that holds the lock."""
    for _ in range(_ATTEMPTS):
        new = target.with_name(_new_prefix(target) + secrets.token_hex(8))
        os.mkdir(new)
        # Until the lock is held, a run that tidies up may take the new folder for a stale one and delete it.
        try:
            descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        with suppress(BlockingIOError):
            _lock(descriptor, needed=False)  # where there are no locks, nobody deletes stale folders either
            if new.exists():
                return new, descriptor
        os.close(descriptor)
    raise OSError(errno.EAGAIN, "another run keeps deleting what this one makes", str(target))


def _flush(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            _fsync(os.path.join(root, name))
        _fsync_folder(root)


def _fsync_folder(path: str | os.PathLike[str]) -> None:
    with suppress(OSError):  # some file systems cannot flush a folder's entries; the files are safe
        _fsync(path)


def _fsync(path: str | os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _swap(new: Path, target: Path) -> None:
    if not target.exists():
        os.rename(new, target)
    elif not _exchange(new, target):
        _rename_twice(new, target)
    _fsync_folder(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False where system or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(second))


def _rename_twice(new: Path, target: Path) -> None:
    aside = _aside(target)
    with locked(target, needed=False):  # so that recover() in another process leaves the folder that is aside alone
        try:
            os.rename(target, aside)
            os.rename(new, target)
        except BaseException:
            if not target.exists():
                os.rename(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
