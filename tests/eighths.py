"""Slow tests that run with one commit: an eighth of them, every real component and every real kill.

The hash of the commit draws the eighth. The hash of a test's name puts the test into one; tests that share a fixture of
their file go with the file, so that one commit prepares it.
"""

import re
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

EIGHTHS = 8
OF_COMMIT = "commit"
EVERY_TIME = ("component", "kill")
_ALL_SLOW = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow\b", re.MULTILINE)
_SHARED = ("class", "module", "package")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--eighth", metavar="N", help="run one eighth of the slow tests: 1 to 8, or `commit` for its own")


def pytest_configure(config: pytest.Config) -> None:
    """Read the option before other processes start, which get the number."""
    written = config.getoption("--eighth")
    if written is not None:
        config.option.eighth = str(chosen_eighth(written, config.rootpath))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files unread that have none of the tests asked for: no slow ones, or slow ones alone."""
    if collection_path.suffix != ".py" or config.option.markexpr not in {"slow", "not slow"}:
        return None
    text = collection_path.read_text("utf-8")
    has_none = "slow" not in text if config.option.markexpr == "slow" else _ALL_SLOW.search(text) is not None
    return has_none or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other eighths out."""
    eighth = config.getoption("--eighth")
    if eighth is not None:
        config.hook.pytest_deselected(items=[item for item in items if not _runs_in(item, int(eighth))])
        items[:] = [item for item in items if _runs_in(item, int(eighth))]


def pytest_report_header(config: pytest.Config) -> str | None:
    eighth = config.getoption("--eighth")
    return None if eighth is None else f"slow tests: eighth {eighth} of {EIGHTHS} (others: make test-eighth EIGHTH=N)"


def chosen_eighth(written: str, root: Path) -> int:
    """Read the option ``--eighth``.

    Args:
        written: A number from 1 to 8, or ``commit`` for that of the commit checked out.
        root: The folder that is checked out.

    Raises:
        pytest.UsageError: It is neither, or git finds no commit.
    """
    if written != OF_COMMIT:
        if written not in map(str, range(1, EIGHTHS + 1)):
            raise pytest.UsageError(f"--eighth is {written!r}; expected 1 to {EIGHTHS}, or {OF_COMMIT}")
        return int(written)
    command = ["git", "-c", "safe.directory=*", "rev-parse", "--verify", "HEAD"]
    try:
        commit = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        raise pytest.UsageError(
            f"--eighth is {OF_COMMIT}; expected a commit that git finds here ({reason}). "
            f"Fix: make test-eighth EIGHTH=N, N from 1 to {EIGHTHS}"
        ) from error
    return int(commit, 16) % EIGHTHS + 1


def _runs_in(item: pytest.Item, eighth: int) -> bool:
    """Return whether a test runs with this eighth; a fast one runs with each."""
    if item.get_closest_marker("slow") is None or any(map(item.get_closest_marker, EVERY_TIME)):
        return True
    return int(sha256(_together(item).encode()).hexdigest(), 16) % EIGHTHS + 1 == eighth


def _together(item: pytest.Item) -> str:
    """Return the name of the file where the test shares a fixture of it, else that of the test."""
    made = [fixtures[-1] for fixtures in item._fixtureinfo.name2fixturedefs.values()]  # type: ignore[attr-defined]
    is_shared = any(fixture.scope in _SHARED for fixture in made)
    return item.nodeid.partition("::")[0] if is_shared else item.nodeid
