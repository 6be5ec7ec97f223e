"""The Chrome trace format as far as we write it, as a list of laws: what Perfetto's importer relies on.

Source: "Trace Event Format" of the Chromium project, and the importer's handling of slices, flows and counters.
"""

import json
from collections import defaultdict
from itertools import pairwise
from math import isfinite
from typing import Any

NEEDED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "s": {"name", "cat", "ph", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "ph", "id", "ts", "pid", "tid", "bp"},
}
METADATA = {
    "process_name": {"name": str},
    "process_sort_index": {"sort_index": int},
    "thread_name": {"name": str},
    "thread_sort_index": {"sort_index": int},
}
NANOSECOND = 1e-3  # in microseconds, the unit of the format; Perfetto keeps whole nanoseconds, and so do we

Event = dict[str, Any]


def read_trace(text: str) -> list[Event]:
    """Return the events of a trace that keeps every law; fails with the first event that breaks one."""

    def no_constant(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    document = json.loads(text, parse_constant=no_constant)
    assert set(document) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str | int | float) for value in document["otherData"].values())
    events: list[Event] = document["traceEvents"]
    for event in events:
        _is_well_formed(event)
    _tracks_have_one_name(events)
    _slices_of_a_track_are_in_order_and_apart(events)
    _counters_are_in_order(events)
    _flows_lead_from_slice_to_slice(events)
    return events


def _is_well_formed(event: Event) -> None:
    assert event["ph"] in NEEDED, event
    optional = {"args"} if event["ph"] == "X" else set()
    assert NEEDED[event["ph"]] <= set(event) <= NEEDED[event["ph"]] | optional, event
    assert isinstance(event["name"], str), event
    assert event["name"].isprintable(), event
    for key in ("pid", "tid", "id"):
        assert type(event.get(key, 0)) is int, event
    assert event["pid"] >= 0, event  # Perfetto takes what is below for 0
    assert event["ph"] == "M" or event.get("tid", 1) > 0, event  # and thread 0 for the one with its process's number
    for key in ("ts", "dur"):
        assert isinstance(event.get(key, 0.0), int | float), event
        assert isfinite(event.get(key, 0.0)), event
        assert event.get(key, 0.0) >= 0, event
    if event["ph"] == "M":
        kinds = METADATA[event["name"]]
        assert {key: type(value) for key, value in event["args"].items()} == kinds, event
    if event["ph"] == "C":
        assert event["args"], event
        assert all(type(value) in (int, float) and isfinite(value) for value in event["args"].values()), event
    assert event.get("bp", "e") == "e", event


def _tracks_have_one_name(events: list[Event]) -> None:
    named: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        if event["ph"] == "M":
            track = event["pid"] if event["name"].startswith("process") else (event["pid"], event["tid"])
            named[event["name"]].append(track)
    for tracks in named.values():
        assert len(tracks) == len(set(tracks))
    for event in events:
        if event["ph"] != "M":
            assert event["pid"] in named["process_name"], event
        if "tid" in event and event["ph"] != "M":
            assert (event["pid"], event["tid"]) in named["thread_name"], event


def _by_track(events: list[Event], phase: str) -> dict[Any, list[Event]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == phase:
            found[event["pid"], event["name"] if phase == "C" else event["tid"]].append(event)
    return found


def _slices_of_a_track_are_in_order_and_apart(events: list[Event]) -> None:
    for slices in _by_track(events, "X").values():
        for one, two in pairwise(slices):
            assert _ns(two["ts"]) >= _ns(one["ts"]) + _ns(one["dur"]), (one, two)  # else Perfetto drops the second


def _ns(time_us: float) -> int:
    """Return whole nanoseconds; fails where there are none."""
    assert abs(time_us / NANOSECOND - round(time_us / NANOSECOND)) < 1e-3, time_us
    return round(time_us / NANOSECOND)


def _counters_are_in_order(events: list[Event]) -> None:
    for points in _by_track(events, "C").values():
        times = [point["ts"] for point in points]
        assert times == sorted(times)


def _flows_lead_from_slice_to_slice(events: list[Event]) -> None:
    slices = _by_track(events, "X")
    ends: dict[int, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in ends[event["id"]], event
            ends[event["id"]][event["ph"]] = event
            inside = [s for s in slices[event["pid"], event["tid"]] if s["ts"] <= event["ts"] <= s["ts"] + s["dur"]]
            assert inside, event
    for pair in ends.values():
        start, finish = pair["s"], pair["f"]
        assert (start["name"], start["cat"]) == (finish["name"], finish["cat"])
        assert start["ts"] <= finish["ts"] + NANOSECOND / 2
