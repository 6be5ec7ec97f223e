"""Record which share of the drawn bugs the tests kill, per folder, and compare it with an earlier record.

A bug that is in both records, by its key, is compared with itself: if nothing got worse, as many should be lost as
newly killed (sign test). The other bugs are two samples, whose shares are compared (Fisher's exact test). A folder
has fallen, or all together, if one of these one-sided tests rejects "no worse" at 5 %. Bugs that were killed and now
survive are listed in any case.

The record has 40 folders. As long as the sources are the same, that raises no false alarms: the result of a bug
changes with its tests alone. Of rewritten folders at most one in 20 falls by chance: draw again with another
`--seed`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb
from pathlib import Path

LEVEL = 0.05
ALL = "all"


@dataclass(frozen=True, slots=True)
class FolderShare:
    """Drawn bugs of a folder.

    Attributes:
        killed: Keys of bugs that a test caught.
        survived: Bugs that no test caught, as lines that begin with the key.
    """

    killed: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.killed) + len(self.survived)

    @property
    def percent(self) -> float:
        return 100 * len(self.killed) / self.count

    def results(self) -> dict[str, bool]:
        """Return whether each bug was killed, by key."""
        return dict.fromkeys(self.killed, True) | {line.split()[0]: False for line in self.survived}


@dataclass(frozen=True, slots=True)
class Record:
    """Result of a draw.

    Attributes:
        seed, asked: Of the draw; `folders` has fewer than it asked for where it was interrupted.
        commit: Of sources and tests.
        timed_out: Number of killed bugs whose tests did not end.
        cut_short: Number of survivors whose time was up before the last of their test files.
        cpu_s_per_bug: Mean CPU time.
        folders: By name.
    """

    seed: int
    asked: int
    commit: str
    timed_out: int
    cut_short: int
    cpu_s_per_bug: float
    folders: dict[str, FolderShare]

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        folders = {
            name: {"killed": len(each.killed), "killed_keys": " ".join(each.killed), "survived": each.survived}
            for name, each in sorted(self.folders.items())
        }
        facts = {name: getattr(self, name) for name in self.__slots__ if name != "folders"}
        path.write_text(json.dumps(facts | {"folders": folders}, indent=1, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Read what `write` wrote."""
        facts = json.loads(path.read_text("utf-8"))
        folders = facts.pop("folders").items()
        return cls(**facts, folders={name: FolderShare(e["killed_keys"].split(), e["survived"]) for name, e in folders})

    def rows(self) -> dict[str, FolderShare]:
        """Return the folders by name, and all together."""
        killed, survived = ([bug for each in self.folders.values() for bug in getattr(each, of)] for of in _OF_SHARE)
        return dict(sorted(self.folders.items())) | {ALL: FolderShare(killed, survived)}

    def table(self) -> str:
        """Return killed and survived bugs per folder, as text."""
        rows = [f"{'folder':28} killed survived  share"]
        for name, each in self.rows().items():
            rows.append(f"{name:28} {len(each.killed):6} {len(each.survived):8} {each.percent:5.0f} %")
        return "\n".join(rows)


_OF_SHARE = ("killed", "survived")


def lost_bugs(before: Record, now: Record) -> list[str]:
    """Return the bugs that were killed before and survive now, as lines."""
    was = before.rows()[ALL].results()
    return [line for line in now.rows()[ALL].survived if was.get(line.split()[0])]


def fallen(before: Record, now: Record) -> list[str]:
    """Name the folders whose share fell by more than chance; a folder in one record alone has no share to compare."""
    had, has = before.rows(), now.rows()
    return [said for name in has if name in had for said in _fall(name, had[name], has[name])]


def _fall(name: str, before: FolderShare, now: FolderShare) -> list[str]:
    was, now_is = before.results(), now.results()
    both = was.keys() & now_is.keys()
    lost = sum(was[key] and not now_is[key] for key in both)
    won = sum(now_is[key] and not was[key] for key in both)
    said = []
    if sign_test(lost, won) < LEVEL:
        said.append(
            f"{name}: of the {len(both)} bugs drawn both times, {lost} are no longer killed, {won} are newly killed"
        )
    old, new = ([result for key, result in each.items() if key not in both] for each in (was, now_is))
    if fisher_test(sum(old), len(old), sum(new), len(new)) < LEVEL:
        said.append(f"{name}: {sum(new)} of {len(new)} other bugs are killed, {sum(old)} of {len(old)} before")
    return said


def sign_test(lost: int, won: int) -> float:
    """Return the chance of at least this many losses among the changes, if losses and gains are equally likely."""
    return sum(comb(lost + won, k) for k in range(lost, lost + won + 1)) / 2 ** (lost + won)


def fisher_test(killed_before: int, before: int, killed_now: int, now: int) -> float:
    """Return the chance of at most this many kills now, if kills are dealt to both samples at random."""
    killed = killed_before + killed_now
    ways = sum(comb(now, k) * comb(before, killed - k) for k in range(killed_now + 1) if k <= killed)
    return ways / comb(before + now, killed)


def tally(results: Mapping[str, list[tuple[str, str, bool]]]) -> dict[str, FolderShare]:
    """Group results (key, line, is killed) of folders into shares."""
    return {
        name: FolderShare([key for key, _, killed in each if killed], [line for _, line, killed in each if not killed])
        for name, each in results.items()
    }
