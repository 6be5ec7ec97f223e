"""``heterps-compile launch DIR --on ENGINE``: start a run on other machines, follow its log and end it.

Left out: the engines (``runtime/engines/``).
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.packages import PYTORCH, need
from heterps_compile.runtime.engines.launch_options import ABOUT_LOSSES, LAUNCH, subject
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
    """Start the run of a compiled folder on other machines, follow its log, and end it; the options are those of run.

    Without --on, the line to type on every machine is printed. A file of hosts, which nobody else may read (chmod 600):

    \b
      secret = "32 characters or more that nobody can guess"
      port = 29500
      [[host]]
      address = "10.0.0.1"
      slots = 2
      [[host]]
      address = "worker-2"
      slots = 1
      speed = 2.0

    DIR is the compiled folder. It, the file of hosts, the data and the checkpoints must be found under the same paths
    on every machine. Ctrl-C ends the run there after the step, with a checkpoint; twice, at once.

    \b
    Examples:
      heterps-compile launch model.heterps --hosts hosts.toml
      heterps-compile launch model.heterps --on ssh --hosts hosts.toml \\
          --train train.py --data clicks.parquet
      heterps-compile launch model.heterps --on ssh --hosts hosts.toml \\
          --elastic 1:3 --max-restarts 5 --train train.py \\
          --checkpoint ck --every 100 --decide model.onnx
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    need("running stages", PYTORCH)
    with options.asked_of(ctx, LAUNCH, subject(ctx.params["on"])) as asked:
        from heterps_compile.runtime.engines.find import find_engine  # noqa: PLC0415 - only when it runs

        only_prints = asked["only_print"]
        engine = find_engine(asked)
        decides = asked.some(*ABOUT_LOSSES)
    made = make_run_options(ctx, directory)
    from heterps_compile.machines.chosen_file import rented_for  # noqa: PLC0415 - only when it runs
    from heterps_compile.runtime.engines.contract import (  # noqa: PLC0415 - as above
        Job,
        Streams,
        need_installed,
        no_other_widths,
    )
    from heterps_compile.runtime.launch.prepare import prepare  # noqa: PLC0415 - as above
    from heterps_compile.runtime.launch.resize import refusing_requests  # noqa: PLC0415 - as above

    starts = engine.capabilities.starts and not only_prints
    if starts:
        need_installed(engine)
    job = Job(made, prepare(made), rented_for(directory), _advisor(decides, directory, made.checkpoint))
    engine.check(job)
    if starts:
        streams = Streams(sys.stdout, sys.stderr)
        if engine.capabilities.changes_widths:
            return engine.start(job, streams)
        with refusing_requests(made, no_other_widths(engine)):
            return engine.start(job, streams)
    with result_stream() as stream, printing("the lines"):
        for one in engine.write(job):
            stream.write(f"# {one.title}\n{one.text}\n" if one.title else f"{one.text}\n")
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
