"""What there is to know of a plan, and under which names outputs print it: the table of every printed number.

``QUANTITIES`` and ``OF_A_STAGE`` compute each quantity from the plan's parts and a simulation, not by the code that
prints it. ``FRAGMENTS``, ``OF_A_STAGE`` and ``KEYS`` declare under which names it stands in text, tables and JSON.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser

import pytest

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan
from heterps_compile.units import (
    format_bytes,
    format_money,
    format_rate,
    format_seconds,
    format_share,
    rate_number,
)

SERVER_USD = 0.03  # of a core of a parameter server, in the pools of these plans that have them


def usd(suffix: str = "") -> Callable[[float], str]:
    return lambda amount: f"{format_money(amount)} USD{suffix}"


def slowest_s(plan: Plan) -> float:
    return max(max(stage.compute_s, stage.data_s) for stage in plan.stages)


def price(plan: Plan) -> float:
    of_unit = {device.name: device.price_per_hour for device in plan.devices}
    return sum(stage.replicas * of_unit[stage.device] for stage in plan.stages) + servers(plan)


def servers(plan: Plan) -> float:
    return SERVER_USD * plan.parameter_servers.count


def steady_bubble(plan: Plan) -> float:
    busy_s = sum(stage.replicas * max(stage.compute_s, stage.data_s) for stage in plan.stages)
    return 1 - busy_s / slowest_s(plan) / sum(stage.replicas for stage in plan.stages)


def rows_s(plan: Plan, stage: PlannedStage) -> float:
    """Return R of docs/cost-model.md, rows one way: the longer of networks and servers."""
    return 0.0 if stage.rows is None else max(stage.rows.network_s, stage.rows.servers_s)


def pull_s(plan: Plan, stage: PlannedStage) -> float:
    requests_s = 0.0 if stage.rows is None else stage.rows.requests_s
    return stage.replicas * rows_s(plan, stage) / plan.schedule.micro_batches + requests_s


def push_s(plan: Plan, stage: PlannedStage) -> float:
    requests_s = 0.0 if stage.rows is None else stage.rows.requests_s
    return (rows_s(plan, stage) + requests_s) * (plan.request.mode == "training")


def alone_s(plan: Plan) -> float:
    return own_timeline(plan).makespan_s


def own_timeline(plan: Plan):
    return simulate_plan(plan, plan_loads(plan), plan.schedule.name, plan.schedule.micro_batches).timeline


def described(plan: Plan) -> Callable[[float], str]:
    return lambda value: OBJECTIVES[plan.request.objective].describe(value, plan.batch, plan.currency)


def of(format_: Callable[[float], str]) -> Callable[[Plan], Callable[[float], str]]:
    return lambda _plan: format_


# What there is to know of a plan: how it is printed, and what it is.
QUANTITIES: Mapping[str, tuple[Callable[[Plan], Callable[[float], str]], Callable[[Plan], float]]] = {
    "steady time": (of(format_seconds), slowest_s),
    "steady rate": (of(format_rate), lambda plan: plan.batch / slowest_s(plan)),
    "steady bubble": (of(format_share), steady_bubble),
    "steady cost": (of(usd()), lambda plan: price(plan) / 3600 * slowest_s(plan) / plan.batch * 1e6),
    "alone time": (of(format_seconds), alone_s),
    "alone rate": (of(format_rate), lambda plan: plan.batch / alone_s(plan)),
    "alone bubble": (of(format_share), lambda plan: own_timeline(plan).bubble),
    "alone cost": (of(usd()), lambda plan: price(plan) / 3600 * alone_s(plan) / plan.batch * 1e6),
    "longest pull": (of(format_seconds), lambda plan: max(pull_s(plan, s) for s in plan.stages)),
    "longest push": (of(format_seconds), lambda plan: max(push_s(plan, s) for s in plan.stages)),
    "longest sum": (of(format_seconds), lambda plan: max(s.sync_s + s.sync_hops_s for s in plan.stages)),
    "longest work": (of(format_seconds), lambda plan: max(s.handling_s for s in plan.stages)),
    "longest update": (of(format_seconds), lambda plan: max(s.update_s for s in plan.stages)),
    "price": (of(usd("/h")), price),
    "price of servers": (of(usd("/h")), servers),
    "floor": (of(format_rate), lambda plan: plan.request.min_throughput),
    "budget": (of(format_money), lambda plan: plan.request.budget_per_hour or 0.0),
    "value": (described, lambda plan: plan.value),
    "bound": (described, lambda plan: plan.bound),
    "bound of all orders": (described, lambda plan: plan.bound_of_all_orders),
    "steady bound": (described, lambda plan: plan.steady_bound),
    "memory": (of(format_bytes), lambda plan: sum(s.replicas * s.memory.total_bytes for s in plan.stages)),
    "search time": (of(format_seconds), lambda plan: plan.search_s),
    "time spent": (of(format_seconds), lambda plan: plan.total_s),
}
OF_A_STAGE: Mapping[str, tuple[Callable[[float], str], Callable[[Plan, int], float]]] = {
    "batch every": (format_seconds, lambda plan, i: plan.stages[i].time_s),
    "compute": (format_seconds, lambda plan, i: plan.stages[i].compute_s),
    "data": (format_seconds, lambda plan, i: plan.stages[i].data_s),
    "all-reduce": (format_seconds, lambda plan, i: plan.stages[i].sync_s + plan.stages[i].sync_hops_s),
    "own work": (format_seconds, lambda plan, i: plan.stages[i].handling_s),
    "update": (format_seconds, lambda plan, i: plan.stages[i].update_s),
    "pull": (format_seconds, lambda plan, i: pull_s(plan, plan.stages[i])),
    "push": (format_seconds, lambda plan, i: push_s(plan, plan.stages[i])),
    "samples/s": (rate_number, lambda plan, i: plan.batch / plan.stages[i].time_s),
    "memory": (format_bytes, lambda plan, i: plan.stages[i].memory.total_bytes),
    "USD/h": (format_money, lambda plan, i: plan.stages[i].price_per_hour),
    "replicas": ("{:.0f}".format, lambda plan, i: plan.stages[i].replicas),
}
"""Columns of every table of stages, on a terminal, on the page, in the README."""

PER = " per million samples"
FRAGMENTS = (
    r"steady state\b[^|]*? {steady rate}, a batch every {steady time}",
    r"one batch alone\b[^|]*? {alone rate}, step {alone time}",
    r"steady state: {steady rate}, a batch every {steady time}, bubble {steady bubble}",
    r"one batch alone: {alone rate}, step {alone time}, bubble {alone bubble}",
    r"throughput:? {steady rate}, a batch every {steady time}",
    r"throughput:? {alone rate}, a batch every {alone time}",  # one line where the readings agree
    r"all-reduce after the last backward of \d+ stages?, the longest {longest sum} in stage \d+",
    r"own work of rules after the last backward of \d+ stages?, the longest {longest work} in stage \d+",
    r"step of the optimizer of \d+ stages?, the longest {longest update} in stage \d+",
    r"pull of rows on servers before the first forward of \d+ stages?, the longest {longest pull} in stage \d+",
    r"push of rows on servers after the last backward of \d+ stages?, the longest {longest push} in stage \d+",
    r"\(budget {budget}\)",
    r"per million samples:? *{steady cost} \(steady state\), {alone cost} \(one batch alone\)",
    r"price:? *{price}",
    r"price:? *{price}(?: \(budget [^)]*\))?, {steady cost} per million samples \(steady state\)",
    r"price:? *{price}(?: \(budget [^)]*\))?, {alone cost} per million samples \(one batch alone\)",
    r"servers:? *\d+ parameter server cores, {price of servers}",
    r"throughput {steady rate} in the steady state, {alone rate} one batch alone",
    r"price {price} {steady cost} per million samples in the steady state",
    r"bubble:? {steady bubble} in the steady state, {alone bubble} of one batch alone",
    r"proven bound:? *{bound}",
    r"the steady state alone proves {steady bound}",
    r"latency:? *{value}, undivided",
    r"time spent *{time spent}",
    r"time spent *{time spent}, {search time} of it on the search",
)
"""How text says them; what a field names must stand there as the quantity is printed."""

ELSEWHERE = (
    r"is more than \S+ % \w+",  # the gap: tests/unit/cost/test_objective.py
    r"fullest memory .*",
    r"^stage \d+: \d+ x .*",
    r"SHA-256.*",
    r"tables:? *\d+ tables? (on|\().*",
    r"\S+ \S+ of the .* gradients as large as .*",  # tests/unit/cost/test_gradients.py
    r"(hourly bill that|price of a million samples at or above).* --objective \w+",  # of another plan
)
"""Text whose numbers are of one output alone, or tested elsewhere."""

NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
TOKEN = re.compile(
    rf"(?<![\w.]){NUMBER} (?:samples/s|USD(?: per million samples|/h)?|%|[mun]?s(?: a batch)?|(?:[KMGT]i)?B)(?![\w/])"
)
FIELD = re.compile(r"\{([a-z ]+)\}")

# Keys of the JSON documents, "*" for a place in a list, and the quantity that stands there.
KEYS = {
    "throughput_samples_per_s": "steady rate",
    "steady_state.batch_s": "steady time",
    "steady_state.throughput_samples_per_s": "steady rate",
    "steady_state.bubble": "steady bubble",
    "one_batch_alone.batch_s": "alone time",
    "one_batch_alone.throughput_samples_per_s": "alone rate",
    "one_batch_alone.bubble": "alone bubble",
    "schedule.step_s": "alone time",
    "price_per_hour": "price",
    "price_usd_per_hour": "price",
    "price_per_million_samples": "steady cost",
    "usd_per_million_samples": "steady cost",
    "min_throughput_samples_per_s": "floor",
    "request.min_throughput": "floor",
    "objective.value": "value",
    "value": "value",
    "found_value": "value",
    "bound": "bound",
    "bound_of_all_orders": "bound of all orders",
    "steady_bound": "steady bound",
    "search_s": "search time",
    "total_s": "time spent",
}
STAGE_KEYS = {
    "stages.*.time_s": "batch every",
    "stages.*.compute_s": "compute",
    "stages.*.data_s": "data",
    "stages.*.all_reduce_s": "all-reduce",
    "stages.*.handling_s": "own work",
    "stages.*.update_s": "update",
    "stages.*.pull_s": "pull",
    "stages.*.push_s": "push",
    "stages.*.throughput_samples_per_s": "samples/s",
    "stages.*.memory_bytes": "memory",
    "stages.*.price_per_hour": "USD/h",
    "stages.*.replicas": "replicas",
}
OF_ONE_DOCUMENT = re.compile(
    r"(estimates\.)?(layers|tables|parameter_servers|cluster|model|provenance|schedules|other_objective|work|choices|moves|decisive|decides|decisions|pool)\b.*"
    r"|.*(version|seed|batch|evaluations|micro_batches|replicas|parameter_servers|budget_per_hour|gap|max_stages|"
    r"min_stages|time_limit_s|parameter_servers_price_per_hour|gain_percent|tolerance_percent|stage)"
    r"|stages\.\*\.(received_bytes|sent_bytes|times\..*|sync_\w+|rows\..*|memory\..*)|changes\..*"
)
"""Numbers of one document alone, options, and what is tested below or where it is computed."""


def same_text(plan: Plan, name: str) -> str:
    show, value = QUANTITIES[name]
    return show(plan)(value(plan))


def disagreements(text: str, plan: Plan) -> list[str]:
    """Return every number of a text that is not its quantity's, and every one under a name that is not known."""
    text, found, covered = re.sub(r"[ \t]+", " ", text.replace(plan.schedule.reason, "")), [], []
    for fragment in FRAGMENTS:
        names = FIELD.findall(fragment)
        pattern = FIELD.sub(lambda m: rf"({NUMBER}(?: [^\s,;:)|<]+(?: a batch| per million samples)?)?)", fragment)
        for match in re.finditer(pattern, text):
            covered.append(match.span())
            for name, told in zip(names, match.groups(), strict=True):
                if told != same_text(plan, name):
                    found.append(f"{match[0]!r}: the {name} is {same_text(plan, name)}")
    covered += [match.span() for part in ELSEWHERE for match in re.finditer(part, text, re.MULTILINE)]
    for token in TOKEN.finditer(text):
        if not any(first <= token.start() and token.end() <= end for first, end in covered):
            line = text[text.rfind("\n", 0, token.start()) + 1 : text.find("\n", token.end())]
            found.append(f"{token[0]!r} has a name that is not known: {line!r}")
    return found


def tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the header and the rows of every table of a terminal."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("──"):
            rows = []
            for row in lines[number + 1 :]:
                if not row.strip():
                    break
                rows.append(re.split(r"\s{2,}", row.strip()))
            yield re.split(r"\s{2,}", lines[number - 1].strip()), rows


def without_tables(text: str) -> str:
    return re.sub(r"[^\n]*\n─+\n(?:[^\n]*\S[^\n]*\n)*", "", text)


def check_stages(header: list[str], rows: list[list[str]], plan: Plan) -> list[str]:
    """Compare a table of stages, its cells from the right, as names may hold spaces."""
    found = []
    for row in rows:
        for column, told in zip(header[::-1], row[::-1], strict=False):
            if column in ("stage", "layers", "device", "file", "files"):
                continue
            if column not in OF_A_STAGE:
                found.append(f"the column {column!r} is not known")
                continue
            show, value = OF_A_STAGE[column]
            if told != show(value(plan, int(row[0]))):
                found.append(f"{column} of stage {row[0]} is {told}, not {show(value(plan, int(row[0])))}")
    assert len(rows) == len(plan.stages)
    return found


def numbers_of(value, path: str = "") -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Yield the path, the places in lists, and the number of every number of a document."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        inner = "*" if isinstance(value, list) else str(key)
        at = f"{path}.{inner}" if path else inner
        if isinstance(item, dict | list):
            for deep, places, number in numbers_of(item, at):
                yield deep, ((int(key), *places) if isinstance(value, list) else places), number
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield at, ((int(key),) if isinstance(value, list) else ()), item


def wrong_keys(document: str, plan: Plan) -> list[str]:
    """Return every number of a document that is not its quantity's, and every one under a key that is not known."""
    found = []
    for path, places, number in numbers_of(json.loads(document)):
        key = path.removeprefix("estimates.")
        if key in ("schedule.bubble",):
            name = "alone bubble" if plan.request.mode == "training" else "steady bubble"
            expected = QUANTITIES[name][1](plan)
        elif key in KEYS:
            expected = QUANTITIES[KEYS[key]][1](plan)
        elif key in STAGE_KEYS:
            expected = OF_A_STAGE[STAGE_KEYS[key]][1](plan, places[0])
        elif OF_ONE_DOCUMENT.fullmatch(path) or OF_ONE_DOCUMENT.fullmatch(key):
            continue
        else:
            found.append(f"{path} is not known")
            continue
        if number != pytest.approx(expected, rel=1e-9, abs=1e-12):
            found.append(f"{path} is {number!r}, not {expected!r}")
    return found


class Page(HTMLParser):
    """The text of a page without its pictures, and the rows of its tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines, self.tables, self._inside = [""], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("svg", "script", "style"):
            self._inside.append(tag)
        if tag in ("dt", "p", "h1", "h2", "li", "tr", "title"):
            self.lines.append("")
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._inside.append("cell")

    def handle_endtag(self, tag):
        if tag in ("svg", "script", "style"):
            self._inside.remove(tag)
        if tag in ("td", "th"):
            self._inside.remove("cell")

    def handle_data(self, data):
        if "cell" in self._inside:
            self.tables[-1][-1][-1] += data.strip()
        elif not self._inside:
            self.lines[-1] += " " + " ".join(data.split())
