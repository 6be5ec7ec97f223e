"""``heterps-compile export CHECKPOINT -o FILE``: the weights of a checkpoint as a model.

Left out: how it is written (``runtime/export/``).
"""

from typing import Any

import click

from heterps_compile.escape import printable
from heterps_compile.runtime.export.export_options import CHECKPOINT, EXPORT
from heterps_compile.units import counted

from . import options
from .output import printing, result_stream


@click.command("export")
@click.argument("checkpoint", metavar="CHECKPOINT")
@options.takes(EXPORT)
@click.pass_context
def export(ctx: click.Context, /, checkpoint: str, **_: Any) -> None:
    """Write the weights of a checkpoint as a model that runs without this package, with a card beside.

    CHECKPOINT is a step-N folder, or the folder of --checkpoint: the last there. Stages, replicas and tables on
    servers become the model's own state dict again, which load_state_dict() takes with tied weights and buffers.

    \b
    Files:
      FILE              .safetensors: tensors by the model's names;
                        .onnx: the model's graph with these weights;
                        .pt2: that graph as a program of torch.export
      FILE.md           the card: data, metrics, plan, versions, SHA-256

    \b
    Examples:
      heterps-compile export ck -o model.safetensors
      heterps-compile export ck --best -o model.onnx --model model.onnx
      heterps-compile export ck -o model.pt2 --model model.onnx
      heterps-compile export ck/step-000120 -o model.safetensors --force
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, EXPORT, CHECKPOINT) as asked:
        from heterps_compile.runtime.export.export_checkpoint import export_checkpoint  # noqa: PLC0415 - only when it runs

        chosen = asked.some("model", "best", "averaged", "block", "force")
        made = export_checkpoint(checkpoint, asked["output"], **chosen)
    with result_stream() as stream, printing("what was written"):
        which = f", {made.weights}" if made.weights else ""
        held = f"{counted(made.tensors, 'tensor')} of {made.checkpoint.name}{which}"
        print(f"{printable(str(made.path))}  {held}", file=stream)
        print(f"{printable(str(made.card))}  its card", file=stream)
        if made.fixed:
            print(f"fixed, though open in the model: {'; '.join(made.fixed)}", file=stream)
        if made.kept:
            listed = ", ".join(map(printable, made.kept[:3])) + (", ..." if len(made.kept) > 3 else "")
            print(f"{counted(len(made.kept), 'tensor')} not trained, as the model has them: {listed}", file=stream)
