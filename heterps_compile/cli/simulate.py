"""``heterps-compile simulate PLAN``: what a step of a plan takes and holds under every schedule.

Left out: the simulation and the looks of it (``simulation/``, and ``schedule/`` below it).
"""

from typing import TYPE_CHECKING, Any

import click

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import PLAN, PLAN_WITH_MODEL, SIMULATE
from heterps_compile.units import counted

from . import options
from .output import printing, quiet_libraries, result_stream
from .pictures import write_file

if TYPE_CHECKING:
    from heterps_compile.plan.plan import Plan


@click.command("simulate")
@click.argument("plan", metavar="PLAN|FOLDER")
@options.takes(SIMULATE)
@click.pass_context
def simulate(ctx: click.Context, /, plan: str, **_: Any) -> None:
    """Simulate one batch alone, a step, under every schedule: its time, how long units wait, what they hold.

    The plan's own numbers stand above: in the steady state, where batches follow one another and the floor is held,
    and for one batch alone.

    PLAN is a plan.json, a FOLDER is a compiled one; git:REV:PATH names either in a commit. Micro-batches must divide
    the plan's batch. Its pool, and the --model where that is named, must be those that the plan was made from.

    \b
    Files:
      FILE.json         the shortest step, with --trace; opens at ui.perfetto.dev

    \b
    Examples:
      heterps-compile simulate model.heterps
      heterps-compile simulate plan.json --schedule 1f1b --trace step.json
      heterps-compile simulate plan.json --model model.onnx
      heterps-compile simulate model.heterps --json | jq '.schedules[].step_s'
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, SIMULATE, PLAN if ctx.params["model"] is None else PLAN_WITH_MODEL) as asked:
        _simulate(plan, asked)


def _simulate(plan: str, asked: Asked) -> None:
    schedule, micro_batches, trace = asked["schedule"], asked["micro_batches"], asked["trace"]
    model, profile = asked.some("model", "profile").values() if asked.subject != PLAN else (None, None)
    from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic
    from heterps_compile.schedule.names import SCHEDULES  # noqa: PLC0415 - as above
    from heterps_compile.simulation.plan_steps import (  # noqa: PLC0415 - only when it runs
        best_steps,
        has_fixed_batch,
        plan_loads,
        possible_counts,
        shortest,
    )

    if schedule is not None and schedule not in SCHEDULES:
        raise UnknownNameError("schedule", schedule, SCHEDULES)
    read, notes = _today(read_plan(plan), model, asked["cluster"], profile, allow_stale=asked["allow_stale"])
    _check_count(read, micro_batches)
    if len(read.stages) > 1 and schedule in (None, "interleaved-1f1b"):
        notes.append(
            "interleaved-1f1b spreads each half of the model over all stages: another placement than the plan's"
        )
    counts = possible_counts(read) if micro_batches is None else [micro_batches]
    if micro_batches is None and read.batch > 1 and has_fixed_batch(read):
        notes.append("the model fixes its batch: one micro-batch; --micro-batches N tells what an open one would give")
    names = list(SCHEDULES) if schedule is None else [schedule]
    steps = best_steps(read, plan_loads(read), counts, names)
    if trace is not None:
        from heterps_compile.simulation.chrome_trace import chrome_trace  # noqa: PLC0415 - only where asked for

        write_file(trace, chrome_trace(read, shortest(read, steps)))
    with result_stream() as stream, printing("the simulation"):
        if asked["as_json"]:
            from heterps_compile.simulation.step_words import steps_document  # noqa: PLC0415 - only what the result needs

            stream.write(steps_document(read, steps, notes) + "\n")
        else:
            from heterps_compile.console import make_console  # noqa: PLC0415
            from heterps_compile.simulation.step_words import print_steps  # noqa: PLC0415

            print_steps(make_console(stream, terminal_width(stream)), read, steps, notes)
        stream.flush()


def _check_count(plan: "Plan", micro_batches: int | None) -> None:
    from heterps_compile.schedule.order import MOST_ACTIONS  # noqa: PLC0415 - only where the command runs

    most = min(plan.batch, MOST_ACTIONS // len(plan.stages))
    if micro_batches is not None and micro_batches > most:
        raise InputError(
            f"--micro-batches is {micro_batches:,}; expected at most {most:,} of a batch of {plan.batch:,} in "
            f"{counted(len(plan.stages), 'stage')}. Fix: take fewer"
        )
    if micro_batches is not None and plan.batch % micro_batches:
        near = (n for away in range(1, micro_batches) for n in (micro_batches - away, micro_batches + away))
        nearest = next(n for n in near if plan.batch % n == 0)  # 1 divides all
        raise InputError(
            f"{micro_batches} micro-batches do not divide the plan's batch of {plan.batch}; the nearest that do are "
            f"{nearest} (--micro-batches {nearest})"
        )


def _today(
    plan: "Plan", model: str | None, cluster: str | None, profile: str | None, *, allow_stale: bool
) -> "tuple[Plan, list[str]]":
    """Estimate the plan again for the simulation, and collect notes."""
    from heterps_compile.review.stale import pool_has_moved_on, pool_of_today  # noqa: PLC0415 - pydantic

    moved = pool_has_moved_on(plan) if cluster is None and plan.pool is not None else ""
    notes = [moved] if moved else []
    if model is not None:
        from heterps_compile.review.pose import pose_again  # noqa: PLC0415 - onnx
        from heterps_compile.review.today import plan_today  # noqa: PLC0415 - as above

        with quiet_libraries(verbose=False):
            posed = pose_again(model, plan, cluster=plan.pool if cluster is None else cluster, profile=profile)
            now = plan_today(posed, allow_stale=allow_stale)
        return now.plan, [*notes, *now.broken]
    pool_of_today(plan, cluster, allow_stale=allow_stale)
    if not all(len(stage.times) > 1 for stage in plan.stages):
        notes.append(
            "the plan is of an older version, so that what dividing the batch pays again is not counted; "
            "name its model (--model FILE), or compile it again"
        )
    return plan, notes
