"""``heterps-compile profile MODEL.onnx``: measure the layers of a model on this machine.

Left out: measuring (``profiling/``), the looks of the result (``profiling/profile_words.py``).
"""

import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import ONNX, PROFILE

from . import options
from .output import ProgressLine, check_file_target, printing, quiet_libraries, result_stream

if TYPE_CHECKING:
    from heterps_compile.cluster.devices import Cluster
    from heterps_compile.cost.profile import Profile
    from heterps_compile.ir.graph import Graph
    from heterps_compile.profiling.profile_model import Settings


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
      --problem FILE    a problem file, which predict and compile take

    \b
    Examples:
      heterps-compile profile model.onnx
      heterps-compile profile model.onnx --mode training -o train.json
      heterps-compile profile model.onnx --precision bf16 --backend torch
      heterps-compile profile model.onnx --problem problem.json
      heterps-compile model.onnx --cluster local --profile profile.json
      heterps-compile model.onnx --profile cpu-core=profile.json
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, PROFILE, ONNX) as asked:
        check_file_target(asked["output"])
        _refuse_other_files(asked["problem"], asked["output"])
        _profile(model, asked)


def _profile(model: str, asked: Asked) -> None:
    output, cache, shapes, mode = asked.some("output", "cache", "shapes", "mode").values()
    problem = asked["problem"]
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(ProgressLine(sys.stderr, wanted=True)) as progress,
    ):
        from heterps_compile.api import read_model  # noqa: PLC0415 - torch and onnx
        from heterps_compile.cluster.load import LOCAL, load_cluster  # noqa: PLC0415 - pydantic
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
        for target in filter(None, (output, cache, problem)):
            check_writable(Path(target))
        pool = load_cluster(asked["cluster"] or LOCAL) if problem else None
        kept = Cache(None if cache is None else Path(cache))
        measured = profile_model(read, settings, cache=kept, on_progress=progress.show)
        write_whole(Path(output), to_json(measured))
        notes = () if pool is None else _write_problem(Path(problem), pool, measured, read, settings)
        progress.close()
        with printing(f"the profile (the file {output!r} is written all the same)"):
            print_profile(make_console(stream, terminal_width(stream)), measured)
            stream.write("".join(f"\nnote: {note}\n" for note in notes))
            stream.write(f"\nwritten to {output}{f' and {problem}' if problem else ''}\n")
            stream.flush()


def _refuse_other_files(problem: str | None, output: str) -> None:
    """Refuse to replace a file by a problem file: it may be one that was edited.

    Raises:
        InputError: if it exists, or is the profile.
    """
    if problem is None:
        return
    check_file_target(problem)
    if os.path.lexists(problem) or Path(problem).resolve() == Path(output).resolve():
        what = "exists" if os.path.lexists(problem) else "is the profile's file too"
        raise InputError(f"--problem {printable(problem)!r} {what}. Fix: name another file, or move it away")


def _write_problem(
    path: Path, pool: "Cluster", measured: "Profile", read: Callable[[int | None], "Graph"], settings: "Settings"
) -> tuple[str, ...]:
    """Write the problem file; return notes on its limits."""
    from heterps_compile.cost.layer_times import layer_times  # noqa: PLC0415 - numpy
    from heterps_compile.cost.measured import assign_profiles  # noqa: PLC0415 - as above
    from heterps_compile.plan.whole_file import write_whole  # noqa: PLC0415 - as above
    from heterps_compile.problem_file.write_problem import left_out, problem_text  # noqa: PLC0415 - pydantic
    from heterps_compile.profiling.profile_model import read_at  # noqa: PLC0415 - torch

    (model,) = read_at(read, settings.batches[-1:], settings.precision).values()
    times = layer_times(
        model.computed,
        model.costs,
        pool,
        assign_profiles(pool, [("", device) for device in measured.devices]),
        training=settings.mode == "training",
        precision=settings.precision,
    )
    write_whole(path, problem_text(model.computed, model.costs, times), what="the problem ")
    return tuple(left_out(model.computed, model.costs, times))
