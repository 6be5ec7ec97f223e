"""Read the planted bugs of `planted_bugs.toml`, and say which of them fit the sources."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug that the tests have to catch.

    Attributes:
        title: The concept that it breaks, in words that outlive the code; unique.
        path: Source, relative to the package.
        old: Text that is there exactly once.
        new: Text that takes its place.
        tests: Files and folders of tests/ that are likely to catch it.
    """

    title: str
    path: str
    old: str
    new: str
    tests: list[str]

    def misfit(self, root: Path) -> str:
        """Say why the bug cannot be planted in a checkout, "" where it can."""
        file = root / "heterps_compile" / self.path
        if not file.is_file():
            return f"{self.path} is gone"
        found = file.read_text("utf-8").count(self.old)
        return "" if found == 1 else f"{self.path} has this {found} times: {self.old!r}"

    def lost_tests(self, root: Path) -> list[str]:
        """Return the tests of the bug that a checkout lacks."""
        return [name for name in self.tests if not (root / "tests" / name).exists()]


@dataclass(frozen=True, slots=True)
class Gone:
    """A bug whose concept the product no longer has.

    Attributes:
        title: As it was planted.
        reason: Why nothing takes its place.
    """

    title: str
    reason: str


def read_bugs(path: Path = LIST) -> tuple[list[Bug], list[Gone]]:
    """Read the planted bugs, and those whose concept is gone."""
    tables = tomllib.loads(path.read_text("utf-8"))
    return [Bug(**each) for each in tables["bug"]], [Gone(**each) for each in tables.get("gone", [])]
