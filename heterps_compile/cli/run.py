"""``heterps-compile run DIR``: run a compiled folder as a pipeline of processes, for inference or training.

Left out: the run itself (``runtime/launch/``).
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.errors import HeterpsError

from . import options
from .output import printing, result_stream, terminal_width
from .pictures import write_file

if TYPE_CHECKING:
    from heterps_compile.plan.plan import Plan
    from heterps_compile.runtime.launch.options import RunOptions


def _counts(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Read ``2,1``."""
    if text is None:
        return ()
    words = text.split(",")
    if not all(word.strip().isascii() and word.strip().isdigit() and int(word) > 0 for word in words):
        raise click.BadParameter(f"{text!r} is not a list of counts of 1 or more, such as 2,1.")
    return tuple(int(word) for word in words)


def _speeds(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[tuple[float, ...], ...]:
    """Read ``2,1;1``."""
    try:
        return () if text is None else tuple(tuple(map(float, part.split(","))) for part in text.split(";"))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of speeds for every stage, such as '2,1;1'.") from error


def _bytes(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Read ``64 MiB``."""
    from heterps_compile.units import parse_quantity  # noqa: PLC0415 - only where it is given

    try:
        return None if text is None else int(parse_quantity(text, "bytes"))
    except HeterpsError as error:
        raise click.BadParameter(f"{error}.") from error


def run_options(command: click.decorators.FC) -> click.decorators.FC:
    """Add the options of a run to a command; ``launch`` passes them on."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option("--train", metavar="FILE.py", help="Train with the loss and the optimizer of this file."),
    click.option("--data", metavar="SPEC", default="", help="x.parquet, a folder of such, x.tsv, or random."),
    click.option("--steps", metavar="N", type=click.IntRange(min=1), help="In all.  [default: all that the data have]"),
    click.option(
        "--epochs", metavar="N", type=click.IntRange(min=1), default=1, show_default=True, help="Over the data."
    ),
    click.option("--replicas", metavar="N,N,...", callback=_counts, help="Of every stage.  [default: the plan's]"),
    click.option(
        "--schedule", metavar="NAME", help="gpipe, 1f1b or interleaved-1f1b.  [default: the plan's]"
    ),
    click.option(
        "--micro-batches", metavar="N", type=click.IntRange(min=1), help="In a step.  [default: the plan's]"
    ),
    click.option("--batch", metavar="N", type=click.IntRange(min=1), help="Samples in a step.  [default: the plan's]"),
    click.option("--speeds", metavar="A,B;C", callback=_speeds, help="Of replicas that differ, stage by stage."),
    click.option("--wire", metavar="DTYPE", default="float32", show_default=True, help="Of floats between stages."),
    click.option("--exact-sums", is_flag=True, help="Sum gradients in one process's order, to its very bits; slower."),
    click.option(
        "--clip-norm", metavar="X", callback=options.positive_amount,
        help="Clip the norm of the whole model's gradients to this.",
    ),
    click.option("--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True, help="Of chance."),
    click.option(
        "--threads", metavar="N", type=click.IntRange(min=1), default=1, show_default=True, help="Of every process."
    ),
    click.option("--weights", metavar="DIR/step-N", help="Begin with the weights of this checkpoint."),
    click.option("--checkpoint", metavar="DIR", help="Keep checkpoints there; one at the end, and when interrupted."),
    click.option("--every", metavar="N", type=click.IntRange(min=1), help="Steps between two checkpoints."),
    click.option(
        "--keep", metavar="N", type=click.IntRange(min=1), default=3, show_default=True, help="Checkpoints kept."
    ),
    click.option("--resume", is_flag=True, help="Go on from the last checkpoint, with other replicas or cuts too."),
    click.option(
        "--hang-after", metavar="SECONDS", callback=options.positive_amount, default="10", show_default=True,
        help="A process that makes no progress for so long hangs.",
    ),
    click.option(
        "--parameter-servers", metavar="N", type=click.IntRange(min=0), default=0, help="Serve embedding tables from N."
    ),
    click.option("--server-optimizer", metavar="NAME", default="sgd", show_default=True, help="sgd, adagrad or adam."),
    click.option(
        "--server-learning-rate", metavar="X", callback=options.positive_amount, default="0.01", show_default=True,
        help="Of that optimizer.",
    ),
    click.option(
        "--server-memory", metavar="SIZE", callback=_bytes, help="Of each server; the rest of the rows lies on disk."
    ),
    click.option("--server-directory", metavar="DIR", help="Where the rest lies.  [default: a temporary folder]"),
    click.option(
        "--staleness", metavar="STEPS", type=click.IntRange(min=0), default=0, show_default=True,
        help="By how many steps pulls may miss pushes.",
    ),
    click.option("--trace", metavar="FILE.json", help="Write some steps as a Chrome trace, for ui.perfetto.dev."),
    click.option("--log", metavar="FILE.jsonl", help="Write a line of JSON for every step."),
    click.option("--telemetry", metavar="DIR", help="Keep there what every rank tells."),
    click.option("--tensorboard", metavar="DIR", help="Write scalars for TensorBoard."),
    click.option("--output", metavar="DIR", help="Keep what inference gives."),
    click.option(
        "--output-format", metavar="NAME", default="safetensors", show_default=True, help="safetensors or npz."
    ),
    click.option("-q", "--quiet", is_flag=True, help="Only the summary."),
)  # fmt: skip


@click.command("run")
@click.argument("directory", metavar="DIR")
@run_options
def run(directory: str, **given: Any) -> int:
    """Run the stages of a compiled folder as a pipeline: one process a replica, on this machine or under torchrun.

    DIR is the compiled folder. The training file has loss(outputs, batch) and optimizer(parameters), and may have
    prepare(batch), data() and scheduler(optimizer).

    \b
    Examples:
      heterps-compile run model.heterps --data clicks.parquet --output scores
      heterps-compile run model.heterps --train train.py --data clicks.parquet --replicas 2,1
      heterps-compile run model.heterps --train train.py --data clicks.parquet --checkpoint ck --every 100 --resume
      torchrun --nproc-per-node 3 -m -- heterps_compile run model.heterps --train train.py --data clicks.parquet

    Ctrl-C ends the run after the step, with a checkpoint; twice, at once.
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    from heterps_compile.runtime.launch.api import launch, run_rank  # noqa: PLC0415 - only when it runs
    from heterps_compile.runtime.launch.store import is_under_torchrun  # noqa: PLC0415
    from heterps_compile.runtime.launch.task import Task  # noqa: PLC0415

    made = make_run_options(directory, given)
    if is_under_torchrun(os.environ):
        return run_rank(Task(made, prints_end=True)).exit_code
    with result_stream() as stream, printing("the summary"):
        result, show = launch(made, sys.stderr)
        if made.trace is not None and show.is_as_planned:
            _add_simulated(made.trace, show.plan)
        from heterps_compile.report.tables import make_console  # noqa: PLC0415 - rich
        from heterps_compile.runtime.launch.end import print_end  # noqa: PLC0415

        print_end(make_console(stream, terminal_width(stream)), result, show)
        stream.flush()
    return result.exit_code


def _add_simulated(trace: str, plan: "Plan") -> None:
    """Put the step that the plan promised into the trace of the run."""
    from heterps_compile.report.simulation import plan_loads, simulate_plan  # noqa: PLC0415 - only where asked for
    from heterps_compile.report.trace import chrome_trace  # noqa: PLC0415
    from heterps_compile.runtime.telemetry.trace import beside  # noqa: PLC0415

    promised = simulate_plan(plan, plan_loads(plan), plan.schedule.name, plan.schedule.micro_batches)
    measured = Path(trace).read_text("utf-8")
    write_file(trace, beside(measured, chrome_trace(plan, promised)))


def make_run_options(directory: str, given: Mapping[str, Any]) -> "RunOptions":
    """Give the options of a run out of those of the command."""
    from heterps_compile.runtime.launch.api import make_options  # noqa: PLC0415 - only when it runs
    from heterps_compile.runtime.launch.options import ServerOptions  # noqa: PLC0415

    rest = dict(given)
    servers = ServerOptions(
        count=rest.pop("parameter_servers"),
        optimizer=rest.pop("server_optimizer"),
        learning_rate=rest.pop("server_learning_rate"),
        staleness=rest.pop("staleness"),
        memory_bytes=rest.pop("server_memory"),
        directory=rest.pop("server_directory"),
    )
    train, data = rest.pop("train"), rest.pop("data")
    return make_options(directory, train=train, data=data, hang_after_s=rest.pop("hang_after"), servers=servers, **rest)
