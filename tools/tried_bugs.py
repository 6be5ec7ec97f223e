"""Try a bug: plant it in a copy of the sources and run tests until one fails.

The tests run in a fork that has imported the libraries, one file after another, so that a bug caught by the first
costs no import of the others. A fork is bounded:

    MOST_S of CPU      no test begins after it; no test of a file that has had a third of it; the bug survived
    ENDLESS_S of CPU   in one process: the bug counts as killed, by time-out
    IDLE_S of clock    the same

No test is run beforehand to see whether it passes without a bug: `failing_tests` runs those that killed one, at the
end.
"""

import os
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import NoReturn

from relevant_tests import PACKAGE

MOST_S, ENDLESS_S, IDLE_S = 40, 90, 600
FAST, SLOW = "not slow", "slow"
LIBRARIES = (
    "hypothesis",
    "numpy",
    "onnx",
    "pytest",
    "rich",
    "scipy.optimize",
    "torch",
    "torch.distributed",
    "torch.export",
)
"""Imported before forking; nothing of the package, which has the bug, and not jax, which cannot be forked."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}
"""As `make test` has it."""
_TAG = "HETERPS_TRIED_BUG"
_PASSED, _FAILED, _UNUSABLE = range(3)
_INTERRUPTED, _USAGE_ERROR, _NO_TESTS = 2, 4, 5
_KNOWN = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a bug.

    Attributes:
        is_killed: Whether a test failed, or did not end.
        test: Test that failed, or that ran when time was up.
        how: "" where it failed; "time-out" or "crash".
        left: Number of test files that were not run to their end, of a bug that survived.
        cpu_s: CPU time of the fork and of processes that it waited for.
    """

    is_killed: bool
    test: str
    how: str
    left: int
    cpu_s: float


class Copy:
    """A copy of the committed sources and tests, in which bugs are planted one at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        named = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True)
        self.commit = named.stdout.strip()
        packed = subprocess.run(["git", "archive", self.commit], cwd=root, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="tar")
        kept = root / ".pytest_cache"  # what XLA compiled
        kept.mkdir(exist_ok=True)
        (folder / kept.name).symlink_to(kept)
        self.folder = folder
        self._told = Path(tempfile.mkdtemp(dir=folder))
        self._times = count(1)
        os.environ |= ENVIRONMENT | {"PYTHONPATH": str(folder), _TAG: str(folder)}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for name in LIBRARIES:
            __import__(name)

    @contextmanager
    def planted(self, path: str, wrong: str) -> Iterator[None]:
        """Put another text in the place of a source, with a time that byte code of no other text has."""
        file = self.folder / PACKAGE / path
        right, made_s = file.read_bytes(), file.stat().st_mtime
        file.write_text(wrong, "utf-8")
        os.utime(file, (made_s, made_s + next(self._times)))
        try:
            yield
        finally:
            file.write_bytes(right)
            os.utime(file, (made_s, made_s))

    def tried(
        self, files: list[str], without: Collection[str] = (), marked: str = FAST, most_s: float = MOST_S
    ) -> Outcome:
        """Run test files of tests/ until a test fails, with what is planted.

        Args:
            files: Relative to tests/, in this order.
            without: Names of tests that are not run.
            marked: Expression on marks that tests satisfy.
            most_s: CPU time after which no test begins.
        """
        words = ["-x", "-m", marked]
        asked = [f"tests/{file}" for file in files if f"tests/{file}" not in without]
        status, cpu_s = self._forked(asked, words, _Watcher(self._told, without=without, most_s=most_s))
        ran, failed = self._read("running"), self._read("failed").splitlines()
        if os.WIFSIGNALED(status):
            is_late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
            return Outcome(is_killed=True, test=ran, how="time-out" if is_late else "crash", left=0, cpu_s=cpu_s)
        code = os.WEXITSTATUS(status)
        if code == _UNUSABLE:
            raise RuntimeError(f"pytest cannot run these; see why: pytest {' '.join(words)} {' '.join(asked)}")
        left = int(self._read("left") or 0)
        return Outcome(code == _FAILED, (failed or [ran])[0] if code == _FAILED else "", "", left, cpu_s)

    def failing_tests(self, tests: Collection[str]) -> list[str]:
        """Return those of some tests that fail, or do not end, without a bug."""
        failing: list[str] = []
        if not tests:
            return failing
        for marked in (FAST, SLOW):
            files = sorted({test.partition("::")[0] for test in set(tests) - set(failing)})
            status, _ = self._forked(files, ["-m", marked], _Watcher(self._told, only=tests, most_s=10 * MOST_S))
            ended_by = [self._read("running")] if os.WIFSIGNALED(status) else []
            failing += [test for test in [*self._read("failed").splitlines(), *ended_by] if test in tests]
        return failing

    def _forked(self, files: list[str], words: list[str], watcher: "_Watcher") -> tuple[int, float]:
        """Run tests in a fork; return its status and CPU time, and end all processes that it leaves."""
        for old in self._told.iterdir():
            old.unlink()
        process = os.fork()
        if process == 0:
            _be_pytest(self.folder, files, words, watcher)
        try:
            ended, until_s = 0, time.monotonic() + max(IDLE_S, 10 * watcher.most_s)
            while ended == 0 and time.monotonic() < until_s:
                time.sleep(0.1)
                ended, status, used = os.wait4(process, os.WNOHANG)
        finally:
            self._end_processes(process)
        if ended == 0:
            _, status, used = os.wait4(process, 0)
        return status, used.ru_utime + used.ru_stime

    def _end_processes(self, session: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)
        tag = f"{_TAG}={self.folder}".encode()
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if tag in (each / "environ").read_bytes().split(b"\0") and int(each.name) != os.getpid():
                    os.kill(int(each.name), signal.SIGKILL)

    def _read(self, name: str) -> str:
        path = self._told / name
        return path.read_text("utf-8") if path.exists() else ""


class _Watcher:
    """A plug-in of pytest that chooses tests, writes down which runs and which fail, and stops when time is up."""

    def __init__(
        self, told: Path, only: Collection[str] | None = None, without: Collection[str] = (), most_s: float = MOST_S
    ) -> None:
        self.told, self.only, self.without, self.most_s = told, only, without, most_s
        self._file_began_s = 0.0

    def begin_file(self) -> None:
        self._file_began_s = sum(os.times()[:4])

    def is_late(self) -> bool:
        now_s = sum(os.times()[:4])
        return now_s > self.most_s or now_s - self._file_began_s > self.most_s / 3

    def pytest_collection_modifyitems(self, items: list) -> None:
        wanted = [item for item in items if self.only is None or item.nodeid in self.only]
        items[:] = [item for item in wanted if item.nodeid not in self.without]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        (self.told / "running").write_text(nodeid, "utf-8")

    def pytest_runtest_logreport(self, report) -> None:
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            with (self.told / "failed").open("a", encoding="utf-8") as failed:
                failed.write(report.nodeid + "\n")

    def pytest_runtest_teardown(self, item) -> None:
        if self.is_late():
            item.session.shouldstop = "time is up"


def _be_pytest(copy: Path, files: list[str], words: list[str], watcher: _Watcher) -> NoReturn:
    """Run test files one after another in this fork, and end it."""
    import pytest  # noqa: PLC0415 - in the fork

    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    endless_s = int(ENDLESS_S + watcher.most_s - MOST_S)
    resource.setrlimit(resource.RLIMIT_CPU, (endless_s, endless_s))
    with open(os.devnull, "r+", encoding="utf-8") as nowhere:
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)
    left = 0
    for file in files:
        watcher.begin_file()
        if watcher.is_late():
            left += 1
            continue
        code = pytest.main([file, *words, "-q", "-p", "no:cacheprovider", "-W", _KNOWN], plugins=[watcher])
        has_failed = "-x" in words and (watcher.told / "failed").exists()
        if code == _USAGE_ERROR:
            os._exit(_UNUSABLE)
        if has_failed or code not in (0, 1, _INTERRUPTED, _NO_TESTS):
            os._exit(_FAILED)
        left += code == _INTERRUPTED
    (watcher.told / "left").write_text(str(left), "utf-8")
    os._exit(_PASSED)
