"""``heterps-compile resize CHECKPOINTS``: have a run that trains go on with other widths.

Left out: the asking and the answer (``runtime/launch/resize.py``).
"""

import os
from typing import Any

import click

from heterps_compile.packages import PYTORCH, need
from heterps_compile.runtime.launch.run_options import RESIZE, TRAINING

from . import options
from .output import printing, result_stream


@click.command("resize")
@click.argument("checkpoints", metavar="CHECKPOINTS")
@options.takes(RESIZE)
@click.pass_context
def resize(ctx: click.Context, /, checkpoints: str, **_: Any) -> None:
    """Have a run that trains go on with other replicas, or with another plan.

    It runs on this machine, or launch follows it here (--on ray). CHECKPOINTS is the folder that the run was
    given with --checkpoint. The run ends the step it is in, keeps a checkpoint, and goes on from there in the same
    terminal; no sample is trained on twice or left out. Where the run
    cannot go on so, resize says why, and the run goes on as it is.

    \b
    Examples:
      heterps-compile resize checkpoints --replicas 2,1
      heterps-compile model.onnx --cluster what-is-left.toml -o smaller
      heterps-compile resize checkpoints --to smaller
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    need("resizing a run", PYTORCH)
    from heterps_compile.runtime.launch.resize import Resize, request_resize  # noqa: PLC0415 - only when it runs

    with options.asked_of(ctx, RESIZE, TRAINING) as asked:
        changes = {name: asked[name] for name in asked.given}
    to = changes.pop("to", None)
    answer = request_resize(checkpoints, Resize(None if to is None else os.path.abspath(to), changes))
    with result_stream() as stream, printing("the answer"):
        stream.write(f"{answer}\n")
        stream.flush()
