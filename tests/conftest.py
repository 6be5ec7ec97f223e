"""What every test may use: golden files; and how properties are tested.

By default hypothesis draws the same examples in every run, so that a run that fails fails again;
``pytest --hypothesis-profile=random`` draws new ones. Neither has deadlines: machines are shared.

So are all other random numbers of this process: generators that nobody has seeded are, at every step of every test, so
that no test depends on those before it. The profile seeds them too; the seed stands at the head of the run.

What XLA compiles is kept in ``.pytest_cache/xla``: processes of one run compile much of the same, and so does the next.
"""

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["eighths"]

GOLDEN = Path(__file__).parent / "golden"
_XLA_CACHE = Path(__file__).parents[1] / ".pytest_cache" / "xla"
_LARGEST_CACHE_BYTES = 1 << 30

_SEED = "HETERPS_TESTS_SEED"

settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("random"), derandomize=True)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; look at the diff")


def pytest_configure(config: pytest.Config) -> None:
    """Have jax keep what it compiles, in this process and in those it starts; begin anew where too much is kept.

    What is printed has the width that a test asks for: pytest imports readline, which sets COLUMNS for those it starts.
    """
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
        os.unsetenv(name)  # os.environ does not know what a library has set
    if not hasattr(config, "workerinput"):
        kept = [file.stat().st_size for file in _XLA_CACHE.glob("*")]
        if sum(kept) > _LARGEST_CACHE_BYTES:
            shutil.rmtree(_XLA_CACHE)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_XLA_CACHE)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what is converted apart from the user's cache, and from earlier sessions."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


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


@pytest.fixture
def in_the_foreground() -> Iterator[None]:
    """Take SIGINT and SIGHUP as in a terminal; what runs in a script's background, or with nohup, ignores them."""
    plain = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in plain.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the product on one page first: where it fails, nothing else matters."""
    items.sort(key=lambda item: item.path.name != "test_tiny.py")


def pytest_report_header(config: pytest.Config) -> str:
    del config
    return f"random numbers: seed {_seed()} (of other ones: {_SEED}=N)"


def _seed() -> int:
    """Return what unseeded generators are seeded with; drawn once a run with the profile ``random``."""
    if _SEED not in os.environ:
        is_random = settings.get_current_profile_name() == "random"
        os.environ[_SEED] = str(random.SystemRandom().randrange(2**32) if is_random else 0)
    return int(os.environ[_SEED])


def _seed_generators() -> None:
    """Seed what draws without a seed of its own; nothing is imported for it.

    Of torch that is the CPU's generator: ``torch.manual_seed`` notes the stack for each absent device, too.
    """
    random.seed(_seed())
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(_seed())
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(_seed())


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report() -> None:
    """Let models at the top of a file be the same whichever files are collected."""
    _seed_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let fixtures be the same whichever tests ran before."""
    _seed_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Let a test draw the same whether it is the one that its fixtures were made for or not."""
    _seed_generators()
