"""``heterps-compile profile MODEL.onnx``: measure the layers of a model on this machine.

Left out: measuring (``profiling/``), the looks of the result (``report/profile.py``).
"""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heterps_compile.errors import InputError
from heterps_compile.plan.request import MODES

from . import options
from .output import Progress, printing, quiet_libraries, result_stream, terminal_width

if TYPE_CHECKING:
    from heterps_compile.ir.graph import Graph

_MOST_BATCHES = 32
_CLOCKS = ("wall", "cpu")


def _batches(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[int, ...]:
    """Read ``1,8,64``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) < 2**31 for part in parts):
        raise click.BadParameter(f"{text!r} is no list of batches; give whole numbers such as 1,8,64.")
    if len(parts) > _MOST_BATCHES:
        raise click.BadParameter(f"{len(parts)} batches are given; give {_MOST_BATCHES} or fewer.")
    return tuple(sorted({int(part) for part in parts}))


def _devices(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


@click.command("profile")
@click.argument("model", metavar="MODEL.onnx")
@click.option("-o", "--output", metavar="FILE", default="profile.json", show_default=True, help="File to write.")
@click.option(
    "--device", "devices", metavar="A,B", default="cpu", show_default=True, callback=_devices, help="cpu, cuda:0, …"
)
@click.option(
    "--batches",
    metavar="N,N",
    default="1,8,64",
    show_default=True,
    callback=_batches,
    help="To measure; times between are read off.",
)
@options.open_sizes()
@click.option("--mode", type=click.Choice(MODES), default=MODES[0], show_default=True, help="Training: backwards too.")
@click.option("--backend", metavar="NAME", help="What runs the layers.  [default: the model's own; torch for training]")
@click.option("--threads", metavar="N", type=click.IntRange(1, 1024), default=1, show_default=True, help="Of a layer.")
@click.option(
    "--repeats",
    metavar="N",
    type=click.IntRange(2, 10_000),
    default=15,
    show_default=True,
    help="Of a time, at least.",
)
@click.option(
    "--clock",
    type=click.Choice(_CLOCKS),
    help="wall, or cpu: the thread's own time, which others lengthen little.  [default: cpu for one thread on cpu]",
)
@click.option("--cache", metavar="FILE", help="Times measured before; new ones are added.")
@click.option("--no-replicas", is_flag=True, help="Do not measure what several processes gain (alpha).")
@click.option("--no-link", is_flag=True, help="Do not measure the link between processes (and beta).")
def profile(
    model: str,
    *,
    output: str,
    devices: tuple[str, ...],
    batches: tuple[int, ...],
    shapes: dict[str, int],
    mode: str,
    backend: str | None,
    threads: int,
    repeats: int,
    clock: str | None,
    cache: str | None,
    no_replicas: bool,
    no_link: bool,
) -> None:
    """Measure what every layer of MODEL.onnx takes on this machine, for compile --profile to plan with.

    Every layer is run where it stands in the model, many times, at every batch; medians and spreads are kept. Equal
    layers are one entry, and are found again in other models. Times of batches in between are read off straight lines.

    \b
    Files:
      FILE              profile.json: times, the machine, versions, date; its schema ships with the package
      --cache FILE      a file of its own form, made where there is none

    \b
    Examples:
      heterps-compile profile model.onnx
      heterps-compile profile model.onnx --batches 1,16,256 --mode training -o train.json
      heterps-compile model.onnx --cluster local --profile profile.json
      heterps-compile model.onnx --profile cpu-core=profile.json
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    _check_target(output)
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(Progress(sys.stderr, wanted=True)) as progress,
    ):
        from heterps_compile.api import read_model  # noqa: PLC0415 - torch and onnx
        from heterps_compile.cost.profile_file import to_json  # noqa: PLC0415 - pydantic
        from heterps_compile.profiling.cache import Cache, check_writable, write_whole  # noqa: PLC0415 - as above
        from heterps_compile.profiling.profile_model import Settings, profile_model  # noqa: PLC0415 - torch
        from heterps_compile.report.profile import print_profile  # noqa: PLC0415 - rich
        from heterps_compile.report.tables import make_console  # noqa: PLC0415 - rich

        def read(batch: int | None) -> "Graph":
            return read_model(model, (), None, batch=batch, shapes=shapes, dynamic_shapes=None)

        settings = Settings(
            devices=devices,
            batches=batches,
            mode=mode,
            backend=backend or ("torch" if mode == "training" else None),
            threads=threads,
            repeats=repeats,
            clock=clock,
            with_replicas=not no_replicas,
            with_link=not no_link,
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


def _check_target(output: str) -> None:
    """Check, before the long work, that the file can be written."""
    target = Path(output)
    if target.is_dir():
        raise InputError(f"{output!r} is a folder; name the file to write (-o FILE)")
    if not target.resolve().parent.is_dir():
        raise InputError(f"the folder of {output!r} does not exist; make it, or name another file (-o FILE)")
