"""What ran when, in the Chrome trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The tracks are those of the simulated trace (``simulation/chrome_trace.py``): positions of the pipeline are processes,
replicas their threads, actions slices. Waits are slices as well, and a message is an arrow from the action that made
its values to the action that waited for them, whose slice says how many bytes came. Times are in microseconds from the
first of them on.

Source: "Trace Event Format", the Chromium project; complete ("X"), flow ("s", "f"), counter ("C") and metadata ("M").

Left out: alignment of clocks across machines beyond what their clocks on the wall give (a millisecond, where they are
kept by NTP).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from heterps_compile.escape import printable, shorten
from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.order import Action, Phase
from heterps_compile.units import trace_ns, trace_slice, trace_thread

from .events import Ran, RankSpans, RankStart, Received
from .step_report import StepReport

_NS_A_US = 1e3
_LONGEST_NAME = 120
_SERVERS = 999  # their process number: Perfetto takes one below 0 for stage 0
_SIMULATED_FROM = 1000  # process numbers of the simulated tracks beside measured ones
_INSIDE_S = 1e-7  # an arrow begins and ends inside its slices, this far from their ends


def measured_trace(
    plan: Plan,
    starts: Mapping[int, RankStart],
    spans: Sequence[RankSpans],
    reports: Sequence[StepReport] = (),
) -> str:
    """Write traced steps as the text of a JSON trace.

    Args:
        plan: What ran.
        starts: Of the ranks, by rank.
        spans: What they did.
        reports: Steps whose memory is drawn as a counter.
    """
    offset_s = _offsets(starts)
    begins = [offset_s[step.rank] + ran.began_s for step in spans for ran in step.actions]
    begins += [offset_s[step.rank] + wait.began_s for step in spans for wait in step.waits]
    zero_s = min(begins, default=0.0)
    shift_s = {rank: offset - zero_s for rank, offset in offset_s.items()}
    events = list(_tracks(plan, starts))
    for step in spans:
        events += _slices(starts[step.rank], step, shift_s[step.rank])
    events += _arrows(starts, spans, shift_s)
    for report in reports:
        for rank in report.ranks:
            start = starts[rank.rank]
            name, time_s = f"memory of replica {start.replica}", rank.ended_s + shift_s[rank.rank]
            place = {"ts": trace_ns(time_s) / _NS_A_US, "pid": _process(start.position)}
            events.append({"name": name, "ph": "C", **place, "args": {"bytes": rank.rss_bytes}})
    about = {
        "model": shorten(printable(plan.model), _LONGEST_NAME),
        "steps": " ".join(map(str, sorted({step.step for step in spans}))),
        "source": "measured by heterps-compile",
    }
    return _text(about, events)


def beside(measured: str, simulated: str) -> str:
    """Put a simulated trace under a measured one; both begin at 0.

    Args:
        measured: By :func:`measured_trace`.
        simulated: By ``report.trace.chrome_trace``.
    """
    first, second = json.loads(measured), json.loads(simulated)
    events = list(first["traceEvents"])
    arrows = 1 + max((event["id"] for event in events if "id" in event), default=-1)
    for event in second["traceEvents"]:
        moved = {**event, "pid": event["pid"] + _SIMULATED_FROM}
        if "id" in event:
            moved["id"] = event["id"] + arrows
        if event["name"] == "process_name":
            moved["args"] = {"name": f"simulated {event['args']['name']}"}
        elif event["name"] == "process_sort_index":
            moved["args"] = {"sort_index": event["args"]["sort_index"] + _SIMULATED_FROM}
        events.append(moved)
    simulated_about = {f"simulated_{key}": value for key, value in second["otherData"].items()}
    return _text(first["otherData"] | simulated_about, events)


def _text(about: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, allow_nan=False) + "\n"


def _offsets(starts: Mapping[int, RankStart]) -> dict[int, float]:
    """Return what to add to a rank's clock to compare it with others: 0 where all are of one machine."""
    if len({start.machine for start in starts.values()}) <= 1:
        return dict.fromkeys(starts, 0.0)
    first: dict[str, RankStart] = {}
    for rank in sorted(starts):
        first.setdefault(starts[rank].machine, starts[rank])
    ties = {machine: start.unix_s - start.clock_s for machine, start in first.items()}
    return {rank: ties[start.machine] for rank, start in starts.items()}


def _tracks(plan: Plan, starts: Mapping[int, RankStart]) -> Iterator[dict[str, Any]]:
    for position in sorted({start.position for start in starts.values()}):
        ranks = [start for start in starts.values() if start.position == position]
        process = _process(position)
        yield _metadata("process_name", process, 0, {"name": _name(plan, ranks[0])})
        yield _metadata("process_sort_index", process, 0, {"sort_index": position})
        for start in sorted(ranks, key=lambda start: start.replica):
            yield _metadata("thread_name", process, trace_thread(start.replica), {"name": f"replica {start.replica}"})


def _process(position: int) -> int:
    return position if position >= 0 else _SERVERS


def _track(start: RankStart) -> dict[str, int]:
    return {"pid": _process(start.position), "tid": trace_thread(start.replica)}


def _name(plan: Plan, start: RankStart) -> str:
    if start.position < 0:
        return "parameter servers"
    devices = dict.fromkeys(plan.stages[stage].device_words for stage in start.stages)
    many = "s" if len(start.stages) > 1 else ""
    text = f"stage{many} {', '.join(map(str, start.stages))}: {', '.join(devices)}"
    return shorten(printable(text), _LONGEST_NAME)


def _metadata(name: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": arguments}


def _slices(start: RankStart, step: RankSpans, shift_s: float) -> Iterator[dict[str, Any]]:
    received_bytes: dict[int, int] = {}
    for message in step.messages:
        received_bytes[message.before] = received_bytes.get(message.before, 0) + message.size_bytes
    slices = []
    for place, ran in enumerate(step.actions):
        chunk = start.stages.index(ran.stage)
        action = Action(start.position, ran.micro_batch, Phase(ran.phase), chunk)
        details = {"step": step.step, "micro_batch": ran.micro_batch, "chunk": chunk}
        details["received_bytes"] = received_bytes.get(place, 0)
        slices.append(_slice(start, str(action), ran.phase, (ran.began_s + shift_s, ran.ended_s + shift_s), details))
    for wait in step.waits:
        times_s = (wait.began_s + shift_s, wait.ended_s + shift_s)
        slices.append(_slice(start, f"wait: {wait.what}", "wait", times_s, {"step": step.step}))
    yield from sorted(slices, key=lambda slice_: (slice_["ts"], slice_["dur"]))


def _slice(
    start: RankStart, name: str, category: str, times_s: tuple[float, float], details: dict[str, Any]
) -> dict[str, Any]:
    where = {**_track(start), **trace_slice(*times_s)}
    return {"name": name, "cat": category, "ph": "X", **where, "args": details}


def _arrows(
    starts: Mapping[int, RankStart], spans: Sequence[RankSpans], shift_s: Mapping[int, float]
) -> Iterator[dict[str, Any]]:
    """Yield two events for every message whose maker and reader were traced."""
    made: dict[tuple[int, int, str, int], list[Ran]] = {}
    for step in spans:
        for ran in step.actions:
            made.setdefault((step.rank, step.step, ran.phase, ran.micro_batch), []).append(ran)
    count = 0
    for step in spans:
        for message in step.messages:
            reader = step.actions[message.before] if message.before < len(step.actions) else None
            if reader is None or message.source not in starts:  # a server of tables tells nothing of itself
                continue
            makers = made.get((message.source, step.step, reader.phase, reader.micro_batch), [])
            maker = _last_before(makers, message, shift_s[message.source] - shift_s[step.rank])
            if maker is None:
                continue
            begins_s = max(maker.began_s, maker.ended_s - _INSIDE_S) + shift_s[message.source]
            ends_s = min(reader.ended_s, reader.began_s + _INSIDE_S) + shift_s[step.rank]
            name = "activations" if reader.phase == Phase.FORWARD else "gradients"
            yield _arrow(name, starts[message.source], begins_s, {"ph": "s", "id": count})
            yield _arrow(name, starts[step.rank], ends_s, {"ph": "f", "id": count, "bp": "e"})
            count += 1


def _last_before(makers: Sequence[Ran], message: Received, behind_s: float) -> Ran | None:
    """Return the last action that ended before a message was there; ``behind_s`` turns the maker's clock into ours."""
    return max((m for m in makers if m.ended_s + behind_s <= message.ended_s), key=lambda m: m.ended_s, default=None)


def _arrow(name: str, start: RankStart, time_s: float, more: dict[str, Any]) -> dict[str, Any]:
    where = {**_track(start), "ts": trace_ns(time_s) / _NS_A_US}
    return {"name": name, "cat": "flow", **where, **more}
