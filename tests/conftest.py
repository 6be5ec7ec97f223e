"""What every test may use: golden files; and how properties are tested.

By default hypothesis draws the same examples in every run, so that a run that fails fails again;
``pytest --hypothesis-profile=random`` draws new ones. Neither has deadlines: machines are shared.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("random"), derandomize=True)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; look at the diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file in tests/golden, or write that file under --update-golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        assert path.exists(), f"no golden file {name}; write it with pytest --update-golden"
        assert text == path.read_text("utf-8")

    return compare


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the product on one page first: where it fails, nothing else matters."""
    items.sort(key=lambda item: item.path.name != "test_tiny.py")
