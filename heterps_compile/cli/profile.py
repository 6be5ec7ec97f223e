"""``heterps-compile profile MODEL.onnx``: measure the layers of a model on this machine.

Left out: measuring (``profiling/``), the looks of the result (``profiling/profile_words.py``).
"""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import ONNX, PROFILE

from . import options
from .output import ProgressLine, check_file_target, printing, quiet_libraries, result_stream

if TYPE_CHECKING:
    from heterps_compile.ir.graph import Graph


@click.command("profile")
@click.argument("model", metavar="MODEL.onnx")
@options.takes(PROFILE)
@click.pass_context
def profile(ctx: click.Context, /, model: str, **_: Any) -> None:
    """Measure what every layer of MODEL.onnx takes on this machine, for compile --profile to plan with.

    Every layer is run where it stands in the model, many times, at every batch; medians and spreads are kept. Equal
    layers are one entry, and are found again in other models. Times of batches in between are read off straight lines.

    \b
    Files:
      FILE              profile.json: times, the machine, versions, date
      --cache FILE      a file of its own form, made where there is none

    \b
    Examples:
      heterps-compile profile model.onnx
      heterps-compile profile model.onnx --mode training -o train.json
      heterps-compile profile model.onnx --precision bf16 --backend torch
      heterps-compile model.onnx --cluster local --profile profile.json
      heterps-compile model.onnx --profile cpu-core=profile.json
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, PROFILE, ONNX) as asked:
        check_file_target(asked["output"])
        _profile(model, asked)


def _profile(model: str, asked: Asked) -> None:
    output, cache, shapes, mode = asked.some("output", "cache", "shapes", "mode").values()
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(ProgressLine(sys.stderr, wanted=True)) as progress,
    ):
        from heterps_compile.api import read_model  # noqa: PLC0415 - torch and onnx
        from heterps_compile.console import make_console  # noqa: PLC0415 - rich
        from heterps_compile.cost.profile_file import to_json  # noqa: PLC0415 - pydantic
        from heterps_compile.frontends.input_files import read_values  # noqa: PLC0415 - numpy
        from heterps_compile.plan.whole_file import check_writable, write_whole  # noqa: PLC0415 - as above
        from heterps_compile.profiling.cache import Cache  # noqa: PLC0415 - as above
        from heterps_compile.profiling.profile_model import Settings, profile_model  # noqa: PLC0415 - torch
        from heterps_compile.profiling.profile_words import print_profile  # noqa: PLC0415 - rich

        given = read_values(asked["inputs"], asked["values"])

        def read(batch: int | None) -> "Graph":
            return read_model(model, given, None, batch=batch, shapes=shapes, dynamic_shapes=None)

        settings = Settings(
            mode=mode,
            backend=asked["backend"],
            with_replicas=not asked["no_replicas"],
            with_crowding=not asked["no_replicas"],
            with_link=not asked["no_link"],
            **asked.some("devices", "batches", "precision", "threads", "repeats", "clock"),
        )
        for target in (output, cache) if cache else (output,):
            check_writable(Path(target))
        kept = Cache(None if cache is None else Path(cache))
        measured = profile_model(read, settings, cache=kept, on_progress=progress.show)
        write_whole(Path(output), to_json(measured))
        progress.close()
        with printing(f"the profile (the file {output!r} is written all the same)"):
            print_profile(make_console(stream, terminal_width(stream)), measured)
            stream.write(f"\nwritten to {output}\n")
            stream.flush()
