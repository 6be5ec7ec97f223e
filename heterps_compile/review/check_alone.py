"""Check a committed plan without its model: what its file and the pool of today say together.

The file is sound when it has been read (``plan/consistency.py``). Beside it stands the pool of today: whether it still
has the devices, units and memory that the plan takes, what the plan costs there, and what else the pool says otherwise.
Nothing is searched, and no package that models need is imported.

Left out: whether the plan fits its model, what other speeds and links do to its times, whether a better plan exists:
that takes the model (``check.py``).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cluster.load import as_pool
from heterps_compile.errors import InputError
from heterps_compile.escape import Escape, for_markdown, printable
from heterps_compile.plan.idle_units import idle_of, units_of
from heterps_compile.plan.plan import Plan
from heterps_compile.plan_diff.formats import workflow_command
from heterps_compile.plan_diff.pool_changes import PoolChange, compare_pools, told_together
from heterps_compile.plan_diff.sentences import as_sentence
from heterps_compile.units import counted, format_bytes, format_money, format_percent, format_rate

from .stale import is_other_pool, pool_of

FORMAT_VERSION = 1
NOT_JUDGED = "whether the plan fits its model, and whether a better one exists, is not judged: name the MODEL.onnx"


@dataclass(frozen=True, slots=True)
class AloneResult:
    """What a check without the model found.

    Attributes:
        plan: The plan that was checked.
        pool: The name of the pool of today.
        faults: Why the plan can stay no longer, one sentence each, with names as they are.
        is_other_pool: Whether the pool of today is another one than the plan was made for.
        pool_changes: What it says otherwise, where the plan recorded its own.
        price_per_hour: Of the plan's units today; None where the pool lacks one of them, or has another currency.
    """

    plan: Plan
    pool: str
    faults: tuple[str, ...]
    is_other_pool: bool
    pool_changes: tuple[PoolChange, ...]
    price_per_hour: float | None

    @property
    def passes(self) -> bool:
        """Whether nothing speaks against the plan, and its numbers are those of today's pool."""
        return not self.faults and not self.is_other_pool


def check_alone(plan: Plan, cluster: str | Path | Cluster | None = None) -> AloneResult:
    """Check a plan by its file and the pool of today.

    Args:
        plan: The plan, as it was read.
        cluster: The pool, its name or its file; None for the built-in one of the plan's name, else for the one that it
            recorded.

    Raises:
        InputError: where the pool cannot be read, there is none, or the plan does not say for which one it was made.
    """
    if plan.pool is None and not plan.hashes.get("cluster"):
        raise InputError(
            "the plan does not say for which pool it was made, so that nothing can be held against it; name the "
            "MODEL.onnx, or compile again"
        )
    pool = as_pool(pool_of(plan) if cluster is None else cluster)
    devices = {device.name: device for device in pool.device_types}
    lacking = tuple(_lacking(plan, pool, devices))
    price = None if lacking else _price(plan, pool, devices)
    changes = () if plan.pool is None else compare_pools(plan.pool, pool)
    faults = (*lacking, *_broken_limits(plan, pool, devices, price))
    return AloneResult(plan, pool.name, faults, is_other_pool(plan, pool) or bool(changes), changes, price)


def _price(plan: Plan, pool: Cluster, devices: dict[str, DeviceType]) -> float:
    used = units_of(plan.stages)
    of_stages = sum(count * devices[name].price_per_hour for name, count in used.items())
    of_idle = sum(idle.price_per_hour for idle in idle_of(used, pool.device_types))
    return of_stages + of_idle + plan.parameter_servers.priced(pool.parameter_server).price_per_hour


def _lacking(plan: Plan, pool: Cluster, devices: dict[str, DeviceType]) -> Iterator[str]:
    """Yield what the pool has not at all, so that the plan has no price there."""
    if pool.currency != plan.currency:
        yield f"the pool {pool.name!r} is priced in {pool.currency}, the plan in {plan.currency}"
    for name, units in units_of(plan.stages).items():
        if name not in devices:
            taken = counted(units, "unit")
            yield f"the pool {pool.name!r} has no device type {name!r}, of which the plan takes {taken}"
    if plan.parameter_servers.count and pool.parameter_server is None:
        taken = counted(plan.parameter_servers.count, "core")
        yield f"the pool {pool.name!r} has no parameter server, of which the plan takes {taken}"


def _broken_limits(plan: Plan, pool: Cluster, devices: dict[str, DeviceType], price: float | None) -> Iterator[str]:
    for name, units in units_of(plan.stages).items():
        if name in devices and units > devices[name].max_units:
            most = counted(devices[name].max_units, "unit")
            yield f"the plan takes {counted(units, 'unit')} of {name!r}, and the pool {pool.name!r} has {most}"
    for stage in (part for whole in plan.stages for part in whole.by_type):
        device = devices.get(stage.device)
        if device is not None and stage.memory is not None and stage.memory.total_bytes > device.memory_bytes:
            needs, has = format_bytes(stage.memory.total_bytes), format_bytes(device.memory_bytes)
            yield f"stage {stage.index} needs {needs} a unit, and {stage.device!r} has {has}"
    request = plan.request
    if request.budget_per_hour is not None and price is not None and price > request.budget_per_hour * (1 + 1e-9):
        paid, budget = format_money(price), format_money(request.budget_per_hour)
        yield f"the plan costs {paid} {plan.currency}/h today, and the budget is {budget} {plan.currency}/h"
    if plan.throughput_samples_per_s < request.min_throughput * (1 - 1e-9):
        reached, floor = format_rate(plan.throughput_samples_per_s), format_rate(request.min_throughput)
        yield f"the plan reaches {reached} in the steady state, and the floor is {floor}"


def verdict_alone(checked: AloneResult, escape: Escape = printable) -> str:
    """Tell in one sentence whether the plan may stay, and why."""
    if checked.faults:
        return f"the plan does not hold any more: {escape('; '.join(checked.faults))}"
    if checked.is_other_pool:
        what = "what that does to its times takes its model"
        told = f": {told_together(checked.pool_changes, escape)}" if checked.pool_changes else ""
        return f"the plan was made for another pool than {escape(repr(checked.pool))} of today{told}; {what}"
    return f"the file is sound, and the pool {escape(repr(checked.pool))} is the one that the plan was made for"


def notes_alone(checked: AloneResult, escape: Escape = printable) -> list[str]:
    """Tell what the plan costs today where that is another price, what else the pool says otherwise, what is left."""
    notes = []
    if checked.faults and checked.pool_changes:
        notes.append(f"the pool changed: {told_together(checked.pool_changes, escape)}")
    then, now, currency = checked.plan.price_per_hour, checked.price_per_hour, escape(checked.plan.currency)
    if now is not None and abs(now - then) > 1e-9 * max(now, then):
        change = f", {format_percent(100 * (now / then - 1))} more than" if then and now > then else ""
        change = f", {format_percent(100 * (1 - now / then))} less than" if then and now < then else change
        notes.append(
            f"the plan's units cost {format_money(now)} {currency}/h today{change or ', not'} the "
            f"{format_money(then)} {currency}/h in its file"
        )
    return [*notes, NOT_JUDGED]


def shown_alone(form: str, checked: AloneResult, against: str, path: str) -> str:
    """Return the result in a format of ``plan_diff/formats.py``: text, json, markdown or github.

    Args:
        form: Its name.
        checked: The result.
        against: The plan as the user named it.
        path: Its file, for annotations.
    """
    if form == "json":
        document = {
            "format_version": FORMAT_VERSION,
            "plan": against,
            "model": None,
            "passes": checked.passes,
            "faults": list(checked.faults),
            "pool": checked.pool,
            "is_other_pool": checked.is_other_pool,
            "pool_changes": [change.told(str) for change in checked.pool_changes],
            "price_per_hour": checked.price_per_hour,
            "price_per_hour_of_the_plan": checked.plan.price_per_hour,
            "currency": checked.plan.currency,
        }
        return json.dumps(document, indent=2, allow_nan=False) + "\n"
    if form == "github":
        level = "notice" if checked.passes else "error"
        lines = [workflow_command(level, path, 1, "placement check", verdict_alone(checked))]
        lines += [workflow_command("notice", path, 1, "placement check", note) for note in notes_alone(checked)]
        return "".join(f"{line}\n" for line in lines)
    if form == "markdown":
        return markdown_alone(checked)
    lines = [as_sentence(verdict_alone(checked)), *(f"note: {note}" for note in notes_alone(checked))]
    return "\n".join(lines) + "\n"


def markdown_alone(checked: AloneResult) -> str:
    """Return Markdown for a pull request."""
    notes = [f"- note: {note}" for note in notes_alone(checked, for_markdown)]
    lines = ["### Placement check", "", as_sentence(verdict_alone(checked, for_markdown)), "", *notes]
    return "\n".join(lines) + "\n"
