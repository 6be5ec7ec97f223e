"""``heterps-compile run DIR``: run a compiled folder as a pipeline of processes, for inference or training.

Left out: the run itself (``runtime/launch/``).
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.runtime.launch.run_options import INFERENCE, RUN, TRAINING

from . import options
from .output import printing, result_stream
from .pictures import write_file

if TYPE_CHECKING:
    from heterps_compile.plan.plan import Plan
    from heterps_compile.runtime.launch.run_options import RunOptions


@click.command("run")
@click.argument("directory", metavar="DIR")
@options.takes(RUN)
@click.pass_context
def run(ctx: click.Context, /, directory: str, **_: Any) -> int:
    """Run the stages of a compiled folder as a pipeline: one process a replica, on this machine or under torchrun.

    DIR is the compiled folder. The training file has loss(outputs, batch) and optimizer(parameters), and may have
    prepare(batch), data(), scheduler(optimizer), validation_data(), metrics(outputs, batch), on_step(report),
    on_validation(report) and on_checkpoint(folder, report).

    \b
    Examples:
      heterps-compile run model.heterps --data clicks.parquet --output scores
      heterps-compile run model.heterps --train train.py --data clicks.parquet \\
          --replicas 2,1
      heterps-compile run model.heterps --train train.py --data clicks.parquet \\
          --checkpoint ck --every 100 --resume
      torchrun --nproc-per-node 3 -m -- heterps_compile run model.heterps \\
          --train train.py --data clicks.parquet

    Ctrl-C ends the run after the step, with a checkpoint; twice, at once.
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    from heterps_compile.runtime.launch.membership import is_rank  # noqa: PLC0415
    from heterps_compile.runtime.launch.run_api import launch, run_rank  # noqa: PLC0415 - only when it runs

    made = make_run_options(ctx, directory)
    if is_rank(os.environ):
        return run_rank(made, prints_summary=True).exit_code
    with result_stream() as stream, printing("the summary"):
        result, show = launch(made, sys.stderr, forks_this_process=True)
        if made.trace is not None and show.is_as_planned:
            _add_simulated(made.trace, show.plan)
        from heterps_compile.console import make_console  # noqa: PLC0415 - rich
        from heterps_compile.runtime.launch.run_report import print_summary  # noqa: PLC0415

        print_summary(make_console(stream, terminal_width(stream)), result, show)
        stream.flush()
    return result.exit_code


def _add_simulated(trace: str, plan: "Plan") -> None:
    """Put the step that the plan promised into the trace of the run."""
    from heterps_compile.runtime.telemetry.measured_trace import beside  # noqa: PLC0415
    from heterps_compile.simulation.chrome_trace import chrome_trace  # noqa: PLC0415
    from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan  # noqa: PLC0415 - only where asked for

    promised = simulate_plan(plan, plan_loads(plan), plan.schedule.name, plan.schedule.micro_batches)
    measured = Path(trace).read_text("utf-8")
    write_file(trace, beside(measured, chrome_trace(plan, promised)))


def make_run_options(ctx: click.Context, directory: str) -> "RunOptions":
    """Return the options of a run out of those of the command."""
    from heterps_compile.runtime.launch.run_api import make_options  # noqa: PLC0415 - only when it runs

    with options.asked_of(ctx, RUN, INFERENCE if ctx.params["train"] is None else TRAINING) as asked:
        given = {name: asked[name] for name in asked.given}
    train, data = given.get("train"), given.get("data", "")
    rest = {name: value for name, value in given.items() if name not in ("train", "data")}
    return make_options(directory, train=train, data=data, given=given, **rest)
