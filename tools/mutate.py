"""Plant small bugs one at a time and see whether the tests catch them: `python tools/mutate.py`.

A sign, an off-by-one, a dropped condition: `tools/planted_bugs.toml` has them, spread over the compiler. Each is
planted in a copy of the sources as they are committed; then the tests that are likely to see it are run, then what
`make test` runs, then the rest, until one fails. The table says who caught what; exit code 1 where a bug survives, or
where a line of the list is no longer in the sources. A bug that survives is a missing test.

`--quick` stops after the tests that are likely to see a bug: minutes instead of hours, and a survivor there may be
caught by others.

`--draw 50 --only cost/ --tests unit/cost` plants bugs drawn at random instead (`tools/drawn_bugs.py`), and asks the
fast ones of the tests named, in forks of one process that has imported the libraries: seconds a bug. A survivor of
these may be the same program in other words: each has to be read.
"""

import argparse
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from drawn_bugs import Change, draw_changes

ROOT = Path(__file__).resolve().parent.parent
BUGS = ROOT / "tools" / "planted_bugs.toml"
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
"""What a fork for a drawn bug need not import; nothing of ours, which has the bug."""
KNOWN = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
LONGEST_S = 240
FAST, ALL, NOBODY = "make test", "make test-all", "nobody"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TESTS_FAILED, _INTERRUPTED_BY_ERRORS, _NO_TESTS = 1, 2, 5


@dataclass(frozen=True, slots=True)
class Bug:
    """A line that is made wrong; `tools/planted_bugs.toml` says what its parts are."""

    path: str
    old: str
    new: str
    tests: list[str]


@dataclass(frozen=True, slots=True)
class Found:
    """Who caught a bug.

    Attributes:
        by: ``make test``, ``make test-all`` or nobody.
        test: The first one that failed.
        time_s: How long it took.
    """

    by: str
    test: str
    time_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="TEXT", help="bugs whose file has this in its name")
    parser.add_argument("--quick", action="store_true", help="run the likely tests alone")
    parser.add_argument("--draw", type=int, metavar="N", help="plant N bugs drawn at random")
    parser.add_argument("--seed", default="0", help="of --draw; `random` for a fresh one")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="of --draw: what of tests/ is asked")
    options = parser.parse_args()
    if (options.draw is None) != (options.tests is None):
        parser.error("--draw and --tests go together")
    if options.draw is not None:
        seed = random.randrange(10**6) if options.seed == "random" else int(options.seed)  # noqa: S311 - no secret
        return try_drawn(options.draw, seed, options.only or [""], options.tests)
    listed = [Bug(**entry) for entry in tomllib.loads(BUGS.read_text("utf-8"))["bug"]]
    bugs = [bug for bug in listed if not options.only or any(text in bug.path for text in options.only)]
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_sources(Path(folder))
        stale = [bug for bug in bugs if (copy / "heterps_compile" / bug.path).read_text("utf-8").count(bug.old) != 1]
        for bug in stale:
            print(f"{bug.path}: this does not stand there exactly once any more: {bug.old!r}", file=sys.stderr)
        found = []
        for bug in bugs:
            if bug not in stale:
                found.append(try_bug(bug, copy, is_quick=options.quick))
                print(row(bug, found[-1]), flush=True)
    counts = Counter(each.by for each in found)
    caught = f"{counts[FAST]} caught by make test, {counts[ALL]} more by test-all, {counts[NOBODY]} by nobody"
    print(f"\n{len(found)} bugs: {caught}")
    return 1 if stale or counts[NOBODY] else 0


def copy_sources(folder: Path) -> Path:
    """Copy what is committed to a folder; give it."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="tar")
    return folder


def try_bug(bug: Bug, copy: Path, *, is_quick: bool) -> Found:
    """Plant a bug, run tests until one fails, and put the line back."""
    path = copy / "heterps_compile" / bug.path
    right = path.read_text("utf-8")
    began = time.perf_counter()
    path.write_text(right.replace(bug.old, bug.new), "utf-8")
    try:
        tests = [f"tests/{name}" for name in bug.tests] + ([] if is_quick else ["tests"])
        for by, marked in ((FAST, "not slow"), (ALL, "slow")):
            for test in tests:
                failed = first_failure(copy, test, marked)
                if failed:
                    return Found(by, failed, time.perf_counter() - began)
        return Found(NOBODY, "", time.perf_counter() - began)
    finally:
        path.write_text(right, "utf-8")


def try_drawn(number: int, seed: int, only: list[str], tests: list[str]) -> int:
    """Plant drawn bugs one at a time, tell of each, and return the exit code: 1 where one survives."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_sources(Path(folder))
        of_ours = sorted((copy / "heterps_compile").rglob("*.py"))
        files = [path for path in of_ours if any(text in str(path.relative_to(copy)) for text in only)]
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload(list(LIBRARIES))
        if _verdict(forks, copy, tests) != "survived":
            raise RuntimeError(f"the tests fail without a bug; see why: pytest -m 'not slow' {' '.join(tests)}")
        for path, change in draw_changes(files, number, seed):
            right = path.read_text("utf-8")
            path.write_text(change.of(right), "utf-8")
            found = _verdict(forks, copy, tests)
            path.write_text(right, "utf-8")
            counts[found] += 1
            print(f"{found:8} {path.relative_to(copy / 'heterps_compile')}:{_told(change, right)}", flush=True)
    print(f"\n{counts.total()} bugs drawn with seed {seed}: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return 1 if counts["survived"] else 0


def _told(change: Change, source: str) -> str:
    right, wrong = (text.splitlines()[change.line - 1].strip() for text in (source, change.of(source)))
    return f"{change.line}: {right}  ->  {wrong}"


def _verdict(forks: multiprocessing.context.ForkServerContext, copy: Path, tests: list[str]) -> str:
    process = forks.Process(target=_be_pytest, args=(copy, tests))
    process.start()
    process.join(LONGEST_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        return "endless"
    return {0: "survived", _TESTS_FAILED: "caught"}.get(process.exitcode, "breaks")


def _be_pytest(copy: Path, tests: list[str]) -> None:
    import pytest  # noqa: PLC0415 - in the fork

    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        words = [
            "-m",
            "not slow",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            KNOWN,
            *(f"tests/{name}" for name in tests),
        ]
        os._exit(pytest.main(words))


def first_failure(copy: Path, tests: str, marked: str) -> str:
    """Run tests until one fails; give its name, "" where none does."""
    words = ["-m", marked, "-x", "-q", "-p", "no:cacheprovider", tests]
    if tests == "tests":
        words += ["-n", "auto", "--dist", "worksteal"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode in (0, _NO_TESTS):
        return ""
    named = _FAILED.search(run.stdout)
    if run.returncode not in (_TESTS_FAILED, _INTERRUPTED_BY_ERRORS) or named is None:
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return named[1]


def row(bug: Bug, found: Found) -> str:
    """Return a line of the table."""
    return f"{found.by:13} {found.time_s:6.0f} s  {bug.path:40} {found.test}"


if __name__ == "__main__":
    sys.exit(main())
