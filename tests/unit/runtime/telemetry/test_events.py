"""What ranks tell, as lines of JSON and back."""

import json
import math

import pytest

from heterps_compile.errors import InputError
from heterps_compile.runtime.telemetry.events import (
    Ran,
    RankSpans,
    RankStart,
    RankStep,
    Received,
    Waited,
    from_line,
    to_line,
)

START = RankStart(3, 1, 0, (1, 4), "machine", 77, 12.5, 1.7e9)
STEP = RankStep(
    rank=3,
    step=8,
    began_s=12.5,
    ended_s=13.0,
    samples=64,
    loss=0.25,
    forward_s={1: 0.1, 4: 0.05},
    backward_s={1: 0.2},
    micro_batches=4,
    wait_s={"receive": 0.125},
    received_bytes={0: 4096, 2: 10},
    messages=2,
    rss_bytes=1000,
    peak_rss_bytes=2000,
    losses={"click": 0.125, "margin": math.inf},
)
SPANS = RankSpans(
    3, 8, (Ran(1, 0, "forward", 12.5, 12.6),), (Received(0, 4096, 12.4, 12.5, 0),), (Waited("receive", 12.4, 12.5),)
)


@pytest.mark.parametrize("event", [START, STEP, SPANS], ids=["start", "step", "spans"])
def test_a_line_is_the_event(event):
    line = to_line(event)
    assert line.count("\n") == 1
    assert from_line(line) == event


def test_a_start_has_a_schema():
    assert json.loads(to_line(START))["schema"] == 1
    with pytest.raises(InputError, match=r"\b1\b"):
        from_line(to_line(START).replace('"schema":1', '"schema":2'))


@pytest.mark.parametrize("loss", [math.inf, -math.inf])
def test_an_infinite_loss_stays_json(loss):
    line = to_line(RankStep(0, 0, 0, 1, 1, {}, {}, 0, {}, {}, 0, loss=loss))
    json.loads(line, parse_constant=pytest.fail)
    read = from_line(line)
    assert isinstance(read, RankStep)
    assert read.loss == loss


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"kind":"step"}', '{"kind":"other"}', '{"kind":"start","schema":1}'])
def test_other_lines_are_refused(line):
    with pytest.raises(InputError):
        from_line(line)
