"""Which signals stop a run."""

import os
import signal
from collections.abc import Iterator

import pytest

from heterps_compile.runtime.launch.stop_signals import collecting_signals, heeded


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN])
def of_hangup(request: pytest.FixtureRequest) -> Iterator[signal.Handlers]:
    """Yield what this process does where its terminal goes away."""
    before = signal.signal(signal.SIGHUP, request.param)
    yield request.param
    signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_goes_away_stops_a_run_unless_nohup_says_otherwise(of_hangup: signal.Handlers):
    stops = {signal.SIG_DFL: ["SIGINT", "SIGTERM", "SIGHUP"], signal.SIG_IGN: ["SIGINT", "SIGTERM"]}
    assert [number.name for number in heeded()] == stops[of_hangup]


@pytest.mark.usefixtures("in_the_foreground")
def test_a_terminal_that_goes_away_twice_is_no_second_interrupt():
    with collecting_signals() as caught:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
    assert caught == [signal.SIGHUP]
    with collecting_signals() as caught:
        for number in (signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert caught == [signal.SIGHUP, signal.SIGTERM]
