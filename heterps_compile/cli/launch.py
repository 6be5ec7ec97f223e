"""``heterps-compile launch DIR --on NAME``: print what starts a run on other machines; on Ray, start and follow it.

Left out: the text (``runtime/engines/launch_lines.py``), Ray (``runtime/engines/ray_cluster.py``).
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.packages import PYTORCH, need
from heterps_compile.runtime.engines.launch_options import ABOUT_LOSSES, LAUNCH, RAY, subject
from heterps_compile.runtime.launch.run_options import RUN

from . import options
from .output import printing, result_stream
from .run import make_run_options

if TYPE_CHECKING:
    from heterps_compile.runtime.engines.advice import Advisor


@click.command("launch")
@click.argument("directory", metavar="DIR")
@options.takes(LAUNCH)
@options.takes(RUN)
@click.pass_context
def launch(ctx: click.Context, /, directory: str, **_: Any) -> int:
    """Print what starts the run of a compiled folder on other machines; the options are those of run.

    Without --on, a line of torchrun is printed for every kind of host. Nothing is started or written; with --on ray
    the run is started and followed, and Ctrl-C ends it after the step, with a checkpoint.

    DIR is the compiled folder. It, the data and the checkpoints must be found under the same paths on every machine.

    \b
    Examples:
      heterps-compile launch model.heterps --slots v100=8
      heterps-compile launch model.heterps --on slurm \\
          --resource cpu-core=partition=batch --resource v100=partition=gpu
      heterps-compile launch model.heterps --on ray \\
          --elastic 1:3 --max-restarts 5 --train train.py \\
          --data clicks.parquet --checkpoint ck --every 100
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    need("running stages", PYTORCH)
    starter = ctx.params["on"]
    with options.asked_of(ctx, LAUNCH, subject(starter)) as asked:
        values = asked.some(*(option.name for option in LAUNCH.options if option.name not in ("on", *ABOUT_LOSSES)))
        decides = asked.some("on", *ABOUT_LOSSES)
    made = make_run_options(ctx, directory)
    from heterps_compile.machines.chosen_file import rented_for  # noqa: PLC0415 - only when it runs
    from heterps_compile.runtime.engines.job import Job, Streams  # noqa: PLC0415 - as above
    from heterps_compile.runtime.launch.combinations import PRINTED, START, refuse_combinations  # noqa: PLC0415 - as above
    from heterps_compile.runtime.launch.prepare import prepare  # noqa: PLC0415 - as above

    refuse_combinations(START, (made, PRINTED))
    only_prints = starter != RAY or values.pop("only_print")
    if not only_prints:
        need("--on ray", RAY)
    job = Job(made, prepare(made), rented_for(directory), _advisor(decides, directory, made.checkpoint))
    if starter == RAY:
        from heterps_compile.runtime.engines.ray_cluster import Ray  # noqa: PLC0415 - only when it runs

        ray = Ray(**values)
        ray.check(job)
        if not only_prints:
            return ray.start(job, Streams(sys.stdout, sys.stderr))
        text = ray.text(job)
    else:
        from heterps_compile.runtime.engines.launch_lines import LINES, LineOptions  # noqa: PLC0415 - as above

        text = LINES[starter](job, LineOptions(**values))
    with result_stream() as stream, printing("the lines"):
        stream.write(text)
        stream.flush()
    return 0


def _advisor(asked: Mapping[str, Any], directory: str, checkpoint: str | None) -> "Advisor | None":
    """Return who decides about lost hosts, where somebody is to."""
    if asked.get("decide") is None or checkpoint is None:  # without checkpoints an elastic run is refused
        return None
    from heterps_compile.machines.advised import advisor_for  # noqa: PLC0415 - torch and onnx
    from heterps_compile.machines.goal import parse_duration, parse_money  # noqa: PLC0415 - numpy

    spent, deadline = asked["spent"], asked["deadline"]
    return advisor_for(
        asked["decide"],
        directory,
        checkpoint,
        spent=0.0 if spent is None else parse_money(spent),
        deadline_s=None if deadline is None else parse_duration(deadline),
        catalogue=asked["catalogue"],
    )
