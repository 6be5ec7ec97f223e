"""``heterps-compile show PLAN``: a plan as its file has it, without heavy imports; or as it is today, with the model.

Left out: the looks of it (``plan/plan_view.py``), today's estimates (``review/today.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TextIO

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import PLAN, PLAN_WITH_MODEL, SCHEMA, SHOW

from . import options
from .output import printing, quiet_libraries, result_stream

if TYPE_CHECKING:
    from heterps_compile.plan.plan import Plan


@click.command("show")
@click.argument("plans", metavar="PLAN...", nargs=-1)
@options.takes(SHOW)
@click.pass_context
def show(ctx: click.Context, /, plans: tuple[str, ...], **_: Any) -> None:
    """Show a plan: stages, replicas, price and throughput, memory, and what it was made from.

    PLAN is a plan.json, a compiled folder, or git:REV:PATH. A plan that is damaged or contradicts itself is an error
    that names the place. With --model, times, prices and throughput are today's; a plan that was made from another
    model, pool, profile or with other options is then an error that names the hash which differs.

    \b
    Examples:
      heterps-compile show model.heterps
      heterps-compile show git:HEAD~1:plans/plan.json -v
      heterps-compile show --quiet plans/*.json
      heterps-compile show old-plan.json --json > plan.json
      heterps-compile show plan.json --model model.onnx --allow-stale
      heterps-compile show --schema > plan.schema.json
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    schema, model = ctx.params["schema"], ctx.params["model"]
    if schema == bool(plans) or (ctx.params["as_json"] and len(plans) > 1):
        raise click.UsageError("Name a plan (one for --json), or give --schema alone.")
    subject = SCHEMA if schema else PLAN if model is None else PLAN_WITH_MODEL
    with options.asked_of(ctx, SHOW, subject) as asked:
        if asked["schema"]:
            _show_schema()
        else:
            _show(plans, asked)


def _show_schema() -> None:
    from heterps_compile.plan.schema import published_schema  # noqa: PLC0415 - pydantic

    with result_stream() as stream, printing("the schema"):
        stream.write(published_schema())
        stream.flush()


def _show(plans: tuple[str, ...], asked: Asked) -> None:
    as_json, quiet, verbose = asked["as_json"], asked["quiet"], asked["verbose"]
    today = _Today(**asked.some("model", "cluster", "profile", "allow_stale")) if asked.subject != PLAN else None
    with result_stream() as stream, printing("the plan"):
        for place, plan in enumerate(_read(plans, today)):
            if not quiet:
                stream.write("\n" if place else "")
                noted = plan if as_json or today is not None else _noting_another_pool(plan)
                stream.write(_as_file(plan) if as_json else _shown(noted, stream, plans[place], in_full=verbose))
        stream.flush()


@dataclass(frozen=True, slots=True)
class _Today:
    """What estimates of today are computed from."""

    model: str
    cluster: str | None
    profile: str | None
    allow_stale: bool


def _read(plans: tuple[str, ...], today: _Today | None) -> "Iterator[Plan]":
    from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic

    for plan in map(read_plan, plans):
        if today is None:
            yield plan
        else:
            from heterps_compile.review.pose import pose_again  # noqa: PLC0415 - onnx
            from heterps_compile.review.today import plan_today  # noqa: PLC0415 - as above

            with quiet_libraries(verbose=False):
                posed = pose_again(today.model, plan, cluster=today.cluster, profile=today.profile)
                yield plan_today(posed, allow_stale=today.allow_stale).plan


def _noting_another_pool(plan: "Plan") -> "Plan":
    """Note where the built-in pool of that name is not the one any more that the plan was made for."""
    from heterps_compile.review.stale import pool_has_moved_on  # noqa: PLC0415 - pydantic

    note = pool_has_moved_on(plan)
    return replace(plan, notes=(*plan.notes, note)) if note else plan


def _as_file(plan: "Plan") -> str:
    from heterps_compile.plan.file import to_json  # noqa: PLC0415 - pydantic

    return to_json(plan)


def _shown(plan: "Plan", stream: TextIO, where: str, *, in_full: bool) -> str:
    from heterps_compile.console import make_console  # noqa: PLC0415
    from heterps_compile.plan.plan_view import print_at_a_glance, print_in_full  # noqa: PLC0415 - rich
    from heterps_compile.plan.source import read_plan_text  # noqa: PLC0415 - pydantic
    from heterps_compile.plan.total_columns import Summary  # noqa: PLC0415
    from heterps_compile.report.layer_columns import planned_layer_table  # noqa: PLC0415 - rich

    console = make_console(stream, terminal_width(stream))
    with console.capture() as captured:
        if in_full:
            digest = sha256(read_plan_text(where).encode()).hexdigest()
            layers = planned_layer_table(plan, console.width)
            print_in_full(console, Summary(plan), layers=layers, file_sha256=digest)
        else:
            print_at_a_glance(console, Summary(plan))
    return captured.get()
