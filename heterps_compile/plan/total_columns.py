"""Lines of the summary of a plan, the one list that every output reads.

Left out: the stage table (``stage_columns.py``), notes (``plan_notes.py``).
"""

from dataclasses import dataclass
from typing import Any

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.columns.column import (
    ABSENT,
    BRIEF,
    DOCUMENT,
    MONEY_PER_HOUR,
    NUMBER,
    SAMPLES_PER_S,
    TEXT,
    TEXTS,
    THOROUGH,
    Column,
    Medium,
)
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.escape import printable, shorten
from heterps_compile.ir.default_size import defaults_in_words
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE
from heterps_compile.units import (
    counted,
    format_bytes,
    format_money,
    format_rate,
    format_seconds,
    format_share,
    rate_number,
)

from .plan import Plan, Verification, recomputation_words, what_the_bound_proves
from .plan_notes import NOT_VERIFIED
from .stage_sync import rules_in_brief, rules_words
from .table_words import how_to_run_tables, server_options_of, tables_in_words

_KEPT = 1 - 1e-9  # of a floor, which rounding alone must not break
_HASH_SHOWN = 12  # hexadecimal digits
_NAME_SHOWN = 32
_DETAILS = frozenset({Medium.DETAILS})
_PAGE_AND_DETAILS = frozenset({Medium.DETAILS, Medium.PAGE})


@dataclass(frozen=True, slots=True)
class Summary:
    """A plan, and facts on it that its file lacks.

    Attributes:
        plan: The plan.
        directory: Folder that it was written to or loaded from; None for none.
    """

    plan: Plan
    directory: str | None = None


def _model(summary: Summary) -> str:
    plan = summary.plan
    layers = counted(sum(len(stage.layers) for stage in plan.stages), "layer")
    stages = counted(len(plan.stages), "stage")
    name = shorten(printable(plan.model), _NAME_SHOWN)
    return f"{name}, {plan.request.purpose}, batch {plan.batch}, {layers} in {stages}"


def _defaults(summary: Summary) -> Any:
    return defaults_in_words(summary.plan.bindings) or ABSENT


def _floor(plan: Plan, *, is_step: bool) -> str:
    floor = plan.request.min_throughput
    return f"floor {rate_number(floor)}" if floor and plan.request.minimises_step == is_step else ""


def _in_brackets(*words: str) -> str:
    said = ", ".join(filter(None, words))
    return f" ({said})" if said else ""


def _steady(plan: Plan) -> str:
    steady = plan.readings.steady_state
    rate = format_rate(steady.throughput_samples_per_s)
    return f"{rate}, a batch every {format_seconds(steady.batch_s)}{_in_brackets(_floor(plan, is_step=False))}"


def _alone(plan: Plan) -> str:
    alone, training = plan.readings.one_batch_alone, plan.request.mode == "training"
    is_below = alone.throughput_samples_per_s < plan.request.min_throughput * _KEPT
    words = ("a training step" if training else "", "below the floor" if training and is_below else "")
    rate, step = format_rate(alone.throughput_samples_per_s), format_seconds(alone.batch_s)
    return f"{rate}, step {step}{_in_brackets(*words, _floor(plan, is_step=True))}"


def _agree(plan: Plan) -> bool:
    """Check whether the two readings are printed as the same numbers."""
    steady, alone = plan.readings.steady_state, plan.readings.one_batch_alone
    return (format_rate(steady.throughput_samples_per_s), format_seconds(steady.batch_s)) == (
        format_rate(alone.throughput_samples_per_s),
        format_seconds(alone.batch_s),
    )


def _both(summary: Summary) -> Any:
    plan = summary.plan
    if not _agree(plan):
        return ABSENT
    estimate, floor = plan.readings.steady_state, plan.request.min_throughput
    words = _in_brackets(f"floor {rate_number(floor)}" if floor else "")
    return f"{format_rate(estimate.throughput_samples_per_s)}, a batch every {format_seconds(estimate.batch_s)}{words}"


def _bubble(summary: Summary) -> str:
    steady, alone = summary.plan.readings.steady_state, summary.plan.readings.one_batch_alone
    return f"{format_share(steady.bubble)} in the {STEADY_STATE}, {format_share(alone.bubble)} of {ONE_BATCH_ALONE}"


READINGS: tuple[Column[Summary], ...] = (
    Column("throughput", _both, on=TEXTS),
    Column(STEADY_STATE, lambda of: ABSENT if _agree(of.plan) else _steady(of.plan), on=TEXTS),
    Column(ONE_BATCH_ALONE, lambda of: ABSENT if _agree(of.plan) else _alone(of.plan), on=TEXTS),
    Column("throughput", lambda of: of.plan.throughput_samples_per_s, SAMPLES_PER_S, on=DOCUMENT),
    Column(STEADY_STATE, lambda of: of.plan.readings.steady_state.to_json(), on=DOCUMENT),
    Column(ONE_BATCH_ALONE, lambda of: of.plan.readings.one_batch_alone.to_json(), on=DOCUMENT),
    Column("bubble", _bubble, on=THOROUGH),
)
"""Lines on throughput, in both readings."""


def _price(summary: Summary) -> str:
    plan, budget = summary.plan, summary.plan.request.budget_per_hour
    limit = _in_brackets(f"budget {format_money(budget)}" if budget else "")
    reading = _in_brackets("" if _agree(plan) else ONE_BATCH_ALONE if plan.request.minimises_step else STEADY_STATE)
    cost = f"{format_money(plan.price_at(plan.valued.throughput_samples_per_s))} {plan.currency} per million samples"
    return f"{format_money(plan.price_per_hour)} {plan.currency}/h{limit}, {cost}{reading}"


def _prices(summary: Summary) -> Any:
    plan, alone = summary.plan, summary.plan.readings.one_batch_alone
    steady_price, alone_price = (
        f"{format_money(price)} {plan.currency}"
        for price in (plan.price_per_million_samples, plan.price_at(alone.throughput_samples_per_s))
    )
    return ABSENT if _agree(plan) else f"{steady_price} ({STEADY_STATE}), {alone_price} ({ONE_BATCH_ALONE})"


def _in_dollars(plan: Plan, price: float) -> float | None:
    return price if plan.currency == "USD" else None


def _own_objective(name: str) -> Any:
    def value(summary: Summary) -> Any:
        plan = summary.plan
        undivided = ", undivided, computation and data one after the other" if name == "latency" else ""
        return described(plan, plan.value) + undivided if plan.request.objective == name else ABSENT

    return value


def described(plan: Plan, value: float) -> str:
    """Print a value of the plan's objective in its unit."""
    return OBJECTIVES[plan.request.objective].describe(value, plan.batch, plan.currency)


def _tables(summary: Summary) -> Any:
    plan, tables = summary.plan, summary.plan.tables
    if tables is None:
        return ABSENT
    price = f"{format_money(tables.price_per_hour)} {plan.currency}/h"
    options = f", run with {server_options_of(plan)}" if plan.request.mode == "training" else ""
    return f"{counted(len(tables.names), 'table')} on {counted(tables.servers, 'server')}, {price}{options}"


def _served(summary: Summary) -> Any:
    plan = summary.plan
    return ABSENT if plan.tables is None else f"{tables_in_words(plan)}; {how_to_run_tables(plan)}"


def _servers(summary: Summary) -> Any:
    servers = summary.plan.parameter_servers.beside(summary.plan.tables)
    if not servers.count:
        return ABSENT
    price = f"{format_money(servers.price_per_hour)} {summary.plan.currency}/h"
    return f"{servers.count} parameter server cores, {price}"


def _idle(summary: Summary) -> Any:
    plan = summary.plan
    units = (
        f"{idle.count} {idle.device} in machines of {idle.units_per_machine}, "
        f"{format_money(idle.price_per_hour)} {plan.currency}/h of the price"
        for idle in plan.idle_units
    )
    return "; ".join(units) or ABSENT


def _bound(summary: Summary) -> str:
    plan = summary.plan
    return f"{described(plan, plan.bound)}: {what_the_bound_proves(plan)}" if plan.bound > 0 else "none"


def _steady_bound(summary: Summary) -> Any:
    plan = summary.plan
    has_both = plan.request.minimises_step and plan.bound > plan.steady_bound > 0
    return f"the {STEADY_STATE} alone proves {described(plan, plan.steady_bound)}" if has_both else ABSENT


def _verified(summary: Summary) -> str:
    plan, found = summary.plan, summary.plan.verification
    if found is not None:
        return verified_words(found)
    return "no (see the notes)" if any(note.startswith(NOT_VERIFIED) for note in plan.notes) else "no (--no-verify)"


def verified_words(found: Verification) -> str:
    """Say on what stages and whole model were compared, and how far they are apart."""
    more = [f"{found.gradients} gradients {_apart(found.gradients_max_rel)}"] if found.gradients else []
    more += [f"{found.samples} samples one by one {_apart(found.samples_max_rel)}"] if found.samples else []
    of_scale = f" ({found.max_rel:.3g} of the scale)" if found.max_abs else ""
    largest = f"largest difference {found.max_abs:.3g}{of_scale}"
    return "; ".join([f"equal on {counted(found.calls, 'input')}, {largest}", *more])


def _apart(max_rel: float) -> str:
    return f"within {max_rel:.3g} of their scale" if max_rel else "equal"


def _method(summary: Summary) -> str:
    plan = summary.plan
    return f"{plan.search}, placements tried {plan.evaluations:,}"


def _time_spent(summary: Summary) -> Any:
    plan = summary.plan
    searched = f", {format_seconds(plan.search_s)} of it on the search" if plan.search_s else ""
    return f"{format_seconds(plan.total_s)}{searched}" if plan.total_s else ABSENT


def _fullest(summary: Summary) -> Any:
    """Compute the memory of the fullest unit, part by part, and that of its device type."""
    plan = summary.plan
    has = {device.name: device.memory_bytes for device in plan.devices}
    known = [part for stage in plan.stages for part in stage.by_type if part.memory is not None and part.device in has]
    if not known:
        return ABSENT
    fullest = max(known, key=lambda stage: (stage.memory.total_bytes if stage.memory else 0) / has[stage.device])
    memory = fullest.memory
    assert memory is not None  # noqa: S101 - filtered above; this tells the type checker
    parts = (
        ("weights", memory.weights_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimiser", memory.optimizer_bytes),
        ("agreement", memory.sync_bytes),
        ("narrow copies of weights", memory.copies_bytes),
        ("activations", memory.activations_bytes),
    )
    held = ", ".join(f"{name} {format_bytes(size_bytes)}" for name, size_bytes in parts if size_bytes)
    return (
        f"stage {fullest.index}: {format_bytes(memory.total_bytes)} of {format_bytes(has[fullest.device])} "
        f"on {fullest.device} ({held}; times {memory.safety_factor:g})"
    )


def _asked(summary: Summary) -> Any:
    request = summary.plan.request
    parts = [f"pin {pattern}={device}" for pattern, device in request.pins]
    parts += [f"forbid {pattern}={device}" for pattern, device in request.forbidden]
    parts += [f"at least {request.min_stages} stages"] if request.min_stages > 1 else []
    parts += [] if request.max_stages is None else [f"at most {counted(request.max_stages, 'stage')}"]
    return ", ".join(parts) or ABSENT


def _pool(summary: Summary) -> str:
    plan = summary.plan
    dated = [device for device in plan.devices if isinstance(device, DeviceType) and device.price_date]
    dates = sorted(device.price_date for device in dated)
    prices = f", prices of {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
    profile = plan.hashes.get("profile")  # a plan of a problem file has none: its times are given
    times = "" if profile is None else ", measured times" if profile else ", estimated times"
    return f"{shorten(printable(plan.cluster), _NAME_SHOWN)}{prices}{times}"


def _device_types(summary: Summary) -> Any:
    return ", ".join(device.name for device in summary.plan.devices) or ABSENT


def _made_by(summary: Summary) -> Any:
    return ", ".join(f"{name} {version}" for name, version in sorted(summary.plan.versions.items())) or ABSENT


def _hashes(summary: Summary) -> Any:
    hashes = sorted(summary.plan.hashes.items())
    return ", ".join(f"{name} {digest[:_HASH_SHOWN] or 'none'}" for name, digest in hashes) or ABSENT


HEAD: tuple[Column[Summary], ...] = (
    Column("model", _model, on=TEXTS),
    Column("defaults", _defaults, on=TEXTS),
    Column("pool", _pool, on=TEXTS),
)
"""Lines above the stage table."""

TOTALS: tuple[Column[Summary], ...] = (
    *READINGS,
    Column("latency", _own_objective("latency"), on=TEXTS),
    Column("max load", _own_objective("max-load"), on=TEXTS),
    Column("price", _price, on=TEXTS),
    Column("per million samples", _prices, on=THOROUGH),
    Column("price usd", lambda of: _in_dollars(of.plan, of.plan.price_per_hour), MONEY_PER_HOUR, on=DOCUMENT),
    Column("usd per million samples", lambda of: _in_dollars(of.plan, of.plan.price_per_million_samples), on=DOCUMENT),
    Column("price", lambda of: of.plan.price_per_hour, MONEY_PER_HOUR, on=DOCUMENT),
    Column("price per million samples", lambda of: of.plan.price_per_million_samples, NUMBER, on=DOCUMENT),
    Column("tables", _tables, on=BRIEF),
    Column("tables", _served, on=THOROUGH),
    Column("servers", _servers, on=TEXTS),
    Column("idle units", _idle, on=TEXTS),
    Column("proven bound", _bound, on=TEXTS),
    Column("steady bound", _steady_bound, on=THOROUGH),
    Column(
        "schedule",
        lambda of: f"{of.plan.schedule.name}, micro-batches {of.plan.schedule.micro_batches}",
        TEXT,
        THOROUGH,
    ),
    Column("because", lambda of: of.plan.schedule.reason, on=THOROUGH),
    Column("recomputation", lambda of: recomputation_words(of.plan.stages) or ABSENT, on=THOROUGH),
    Column("agreement", lambda of: rules_in_brief(of.plan.stages) or ABSENT, on=BRIEF),
    Column("agreement", lambda of: rules_words(of.plan.stages) or ABSENT, on=THOROUGH),
    Column("method", _method, on=_PAGE_AND_DETAILS),
    Column("verified", _verified, on=TEXTS),
    Column("fullest memory", _fullest, on=_PAGE_AND_DETAILS),
    Column("asked for", _asked, on=_DETAILS),
    Column("device types", _device_types, on=_DETAILS),
    Column("made by", _made_by, on=_DETAILS),
    Column("hashes", _hashes, on=_DETAILS),
    Column("time spent", _time_spent, on=_DETAILS),
    Column("written to", lambda of: ABSENT if of.directory is None else of.directory, on=TEXTS),
)
"""Lines below the stage table: a further one is one line here, and every output has it."""
