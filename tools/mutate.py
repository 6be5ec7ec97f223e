"""Plant small bugs one at a time and see whether the tests catch them: `python tools/mutate.py`.

Planted bugs. `tools/planted_bugs.toml` lists a bug for each concept of the compiler: a sign, an off-by-one, a dropped
condition. Each is planted in a copy of the committed sources; then the tests that are likely to catch it are run,
then `make test`, then the rest, until one fails. `--quick` stops after the likely ones: seconds a bug. A bug that
survives is a missing test. A bug whose line is gone is listed as to be planted again; all others are tried. Exit code
1 for both.

Drawn bugs. `--draw 500 --seed 0` draws bugs at random (`tools/drawn_bugs.py`) and runs the fast tests of the ten test
files that are likeliest to catch each (`tools/relevant_tests.py`) in a bounded fork (`tools/tried_bugs.py`). The
table has the killed share of each folder; a survivor may be the same program in other words. `--write FILE` records
the result after each bug, so that an interrupted draw has one too. `--against FILE` compares it with a record
(`tools/killed_shares.py`): exit code 1 if the share of a folder fell by more than chance. Before and after a change
of tests:

    nice python tools/mutate.py --draw 120 --seed 0 --against tools/killed_shares.json

`--only cost/` tries the bugs of a folder or file, and `--tests unit/cost` runs no other tests.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from drawn_bugs import Drawn, draw_changes, folder_of
from killed_shares import Record, fallen, lost_bugs, tally
from planted_bugs import Bug, read_bugs
from relevant_tests import OF_THE_LIST, RelevantTests, sources
from tried_bugs import FAST, SLOW, Copy, Outcome

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES = 10
MOST_OF_PLANTED_S = 600
_MADE = {FAST: "make test", SLOW: "make test-all"}
_FIRST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TESTS_FAILED, _INTERRUPTED_BY_ERRORS, _NO_TESTS = 1, 2, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="TEXT", help="bugs whose file has this in its path")
    parser.add_argument("--quick", action="store_true", help="run the likely tests of planted bugs alone")
    parser.add_argument("--some", type=int, metavar="N", help="N planted bugs, chosen by --seed; default: all")
    parser.add_argument("--draw", type=int, metavar="N", help="number of drawn bugs")
    parser.add_argument("--seed", default="0", help="of --draw and --some; `random` for a fresh one; default: 0")
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="PATH",
        help="files and folders of tests/ that --draw runs; default: the likeliest ten files",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="record the result of --draw")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare the result of --draw with a record")
    options = parser.parse_args()
    of_draw = ("tests", "write", "against")
    if options.draw is None and any(getattr(options, name) for name in of_draw):
        parser.error("--tests, --write and --against go with --draw")
    seed = random.randrange(10**6) if options.seed == "random" else int(options.seed)  # noqa: S311 - no secret
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the copy is removed
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(ROOT, Path(folder))
        if options.draw is None:
            return try_planted(copy, options.only or [""], options.some, seed, is_quick=options.quick)
        record = try_drawn(copy, options.draw, seed, options.only or [""], options.tests, options.write)
    print(f"\n{record.table()}")
    print(
        f"{record.timed_out} of the killed by time-out; {record.cut_short} survivors had more tests than time; "
        f"{record.cpu_s_per_bug:.1f} s of CPU per bug; seed {record.seed}, commit {record.commit}"
    )
    return compare(Record.read(options.against), record) if options.against else 0


def try_planted(copy: Copy, only: list[str], some: int | None, seed: int, *, is_quick: bool) -> int:
    """Try the listed bugs, print who caught each, and return the exit code."""
    bugs = [bug for bug in read_bugs()[0] if any(text in bug.path for text in only)]
    if some is not None:
        bugs = random.Random(seed).sample(bugs, min(some, len(bugs)))  # noqa: S311 - no secret
    tests = RelevantTests(copy.folder)
    by: Counter[str] = Counter()
    killers: set[str] = set()
    to_plant_again, lost_tests = [], []
    for bug in bugs:
        lost_tests += [f"{bug.title}: tests/{name} is gone" for name in bug.lost_tests(copy.folder)]
        if misfit := bug.misfit(copy.folder):
            to_plant_again.append(f"{bug.title}: {misfit}")
            continue
        caught_by, test = who_catches(bug, copy, tests, is_quick=is_quick)
        by[caught_by] += 1
        killers |= {test} - {""}
        print(f"{caught_by or 'SURVIVED':13} {bug.title} ({bug.path}) {test}", flush=True)
    print(f"\n{by.total()} bugs: " + ", ".join(f"{count} {caught_by or 'survived'}" for caught_by, count in by.items()))
    reported = {
        "To be planted again": to_plant_again,
        "Tests to be named again": lost_tests,
        "Tests that fail without a bug too, so that what they caught may survive": copy.failing_tests(killers),
    }
    for title, lines in reported.items():
        print("\n".join([f"\n{title}:", *lines]) if lines else "", end="\n" if lines else "", file=sys.stderr)
    return 1 if by[""] or any(reported.values()) else 0


def who_catches(bug: Bug, copy: Copy, tests: RelevantTests, *, is_quick: bool) -> tuple[str, str]:
    """Return the target of make whose tests catch a planted bug, and the first that fails; "" for none."""
    right = (copy.folder / "heterps_compile" / bug.path).read_text("utf-8")
    line = right[: right.index(bug.old)].count("\n") + 1
    files = tests.within(bug.tests, bug.path, line)
    with copy.planted(bug.path, right.replace(bug.old, bug.new)):
        for marked, target in _MADE.items():
            found = copy.tried(files, marked=marked, most_s=MOST_OF_PLANTED_S)
            test = found.test if found.is_killed or is_quick else first_failure(copy.folder, marked)
            if test:
                return target, test
    return "", ""


def try_drawn(
    copy: Copy, number: int, seed: int, only: list[str], asked: list[str] | None, written: Path | None
) -> Record:
    """Try drawn bugs, print each, and return the result; bugs killed by a test that fails without them are retried.

    SIGINT and SIGTERM end the draw early; the result then has the bugs tried so far.
    """
    texts = {path: file.read_text("utf-8") for path, file in sources(copy.folder)}
    texts = {path: text for path, text in texts.items() if any(each in path for each in only)}
    tests = RelevantTests(copy.folder)
    drawn = waiting = draw_changes(texts, number, seed)
    found: dict[str, Outcome] = {}
    broken: set[str] = set()
    sound: set[str] = set()
    while waiting:
        try:
            for bug in waiting:
                at = (bug.path, bug.change.line)
                files = tests.files(*at)[:MOST_FILES] if asked is None else tests.within(asked, *at)
                with copy.planted(bug.path, bug.change.of(texts[bug.path])):
                    found[bug.key] = copy.tried(files, broken)
                print(_row(bug, found[bug.key]), flush=True)
                if written:
                    _record(drawn, found, seed, number, copy.commit).write(written)
        except KeyboardInterrupt:
            print(f"\ninterrupted after {len(found)} of {len(drawn)} bugs", file=sys.stderr)
        killers = {each.test for each in found.values() if each.is_killed} - sound - {""}
        failing = set(copy.failing_tests(killers))
        for test in sorted(failing):
            print(f"fails without a bug too, and is left out: {test}", file=sys.stderr)
        broken |= failing
        sound |= killers - failing
        waiting = [bug for bug in drawn if bug.key in found and found[bug.key].test in failing]
    record = _record(drawn, found, seed, number, copy.commit)
    if written:
        record.write(written)
    return record


def _row(bug: Drawn, found: Outcome) -> str:
    verdict = (found.how or "killed") if found.is_killed else "SURVIVED"
    by = f"  [{found.test}]" if found.is_killed else f"  [{found.left} files left]" * (found.left > 0)
    return f"{verdict:8} {found.cpu_s:5.1f} s  {bug}{by}"


def _record(drawn: list[Drawn], found: dict[str, Outcome], seed: int, asked: int, commit: str) -> Record:
    results = defaultdict(list)
    for bug in drawn:
        if bug.key in found:
            results[folder_of(bug.path)].append((bug.key, str(bug), found[bug.key].is_killed))
    return Record(
        seed=seed,
        asked=asked,
        commit=commit,
        timed_out=sum(each.how == "time-out" for each in found.values()),
        cut_short=sum(each.left > 0 for each in found.values()),
        cpu_s_per_bug=round(sum(each.cpu_s for each in found.values()) / max(1, len(found)), 1),
        folders=tally(results),
    )


def compare(before: Record, now: Record) -> int:
    """Print what changed since a record, and return the exit code: 1 if a folder's share fell."""
    for line in lost_bugs(before, now):
        print(f"was killed, survives: {line}")
    falls = fallen(before, now)
    for line in falls:
        print(f"FELL  {line}")
    shares = [
        f"{each.rows()['all'].percent:.0f} % of {each.rows()['all'].count} at {each.commit}" for each in (before, now)
    ]
    print(f"killed: {shares[0]}, {shares[1]}")
    return 1 if falls else 0


def first_failure(copy: Path, marked: str) -> str:
    """Run all tests of a mark on all cores until one fails; give its name, "" where none does."""
    words = ["-m", marked, "-x", "-q", "-p", "no:cacheprovider", f"--ignore-glob=*/{OF_THE_LIST}", "tests"]
    words += ["-n", "auto", "--dist", "worksteal"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=copy, env=os.environ, capture_output=True, text=True, check=False
    )
    if run.returncode in (0, _NO_TESTS):
        return ""
    named = _FIRST_FAILED.search(run.stdout)
    if run.returncode not in (_TESTS_FAILED, _INTERRUPTED_BY_ERRORS) or named is None:
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return named[1]


if __name__ == "__main__":
    sys.exit(main())
