"""``heterps-compile [compile] MODEL.onnx``: compile, write the folder, print the plan.

Left out: the work itself (``api.py``) and the looks of it (``report/``).
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from heterps_compile.errors import InputError, OptionError
from heterps_compile.escape import printable
from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import (
    COMPILE,
    HANDED_ON,
    ONNX,
    PLANNED_GRAPH,
    PROBLEM,
    SPLIT_GRAPH,
    WORKLOAD,
)

from . import options
from .given import is_problem_file, plan_given_file
from .help_text import GroupedCommand
from .max_load import MAX_LOAD, solve_workload_file
from .output import ProgressLine, printing, quiet_libraries, result_stream, tell
from .pictures import BASELINES, Drawings, LastDraft
from .print_after import draft_printer

if TYPE_CHECKING:
    from heterps_compile.compiled_model import CompiledModel
    from heterps_compile.plan.plan import Plan


_GROUPS = {
    "Model": ("batch", "shapes", "values", "inputs", "mode", "precision", "optimizer"),
    "Hardware": ("cluster", "profile", "pins", "forbidden"),
    "Goal": ("objective", "min_throughput", "budget", "min_stages", "max_stages"),
    "Search": ("method", "time_limit"),
    "Stages": ("output", "force", "backend", "no_verify"),
    "Output": ("quiet", "verbose", "as_json", "report"),
}
"""Options of ``compile`` in its short help, by group; ``--help-all`` shows the others too."""


@click.command("compile", cls=GroupedCommand, groups=_GROUPS)
@click.argument("model", metavar="MODEL.onnx")
@options.takes(COMPILE)
@click.pass_context
def compile_model(ctx: click.Context, /, model: str, **_: Any) -> None:
    """Compile MODEL.onnx: print the plan and write a folder that runs.

    The folder runs with heterps_compile.load(DIR).run(...) in Python. It is replaced as a whole or left as it is. A
    batch is one step; times are seconds of a batch, and throughput is samples per second over all replicas.

    \b
    Files:
      DIR/plan.json     decisions, estimates, what they were made from
      DIR/stage_N.*     the stages: ONNX files, or sources with safetensors
      DIR/README.md     how to run it
      what --report, --trace, --annotate and --plots name

    \b
    Examples:
      heterps-compile model.onnx
      heterps-compile model.onnx -o out --batch 64 --shape seq=128
      heterps-compile silero_vad.onnx --input sr=16000
      heterps-compile model.onnx --min-throughput 20000 --max-stages 4
      heterps-compile model.onnx --pin embedding=cpu-core --method exact
      heterps-compile model.onnx --objective throughput --budget "5 USD/h"
      heterps-compile model.onnx --passes "?"
      heterps-compile model.onnx --report plan.html --trace step.json
      heterps-compile workload.json --accelerators 4
      heterps-compile problem.json --objective throughput
      heterps-compile graph.txt --cluster my-pool.toml --objective throughput
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    began = time.perf_counter()
    if ctx.params["passes"] == "?":
        _print_passes()
        return
    subject = _subject(model, ctx.params["objective"] if "objective" in options.given_names(ctx) else None)
    with options.asked_of(ctx, COMPILE, subject) as asked:
        if subject == ONNX:
            _compile(model, asked, began)
        elif subject in (PROBLEM, PLANNED_GRAPH):
            plan_given_file(model, asked)
        else:
            solve_workload_file(model, asked)


def _print_passes() -> None:
    """Print the default passes as ``--passes`` takes them."""
    from heterps_compile.passes.pipeline import DEFAULT, pipeline_text  # noqa: PLC0415 - numpy

    with result_stream() as stream, printing("the passes"):
        stream.write(f"{pipeline_text(DEFAULT)}\n")
        stream.flush()


def _subject(model: str, objective: str | None) -> str:
    """Say what a file is, by its first characters; what is no model by its name may be asked for as a workload."""
    from heterps_compile.problem_file.workload_file import workload_form  # noqa: PLC0415 - only when it runs

    form = workload_form(model)
    if form is None:
        return WORKLOAD if objective == MAX_LOAD and not model.endswith(".onnx") else ONNX
    if form == "json":
        return PROBLEM if is_problem_file(model) else WORKLOAD
    return SPLIT_GRAPH if objective in (None, MAX_LOAD) else PLANNED_GRAPH


def _check_stablehlo(backend: str | None) -> None:
    """Refuse a backend that writes no StableHLO.

    Raises:
        OptionError: naming those that do.
    """
    from heterps_compile.backends.find import exporting_backends  # noqa: PLC0415 - torch

    found = exporting_backends("stablehlo")
    if backend not in found:
        raise OptionError(
            f"--stablehlo is for the backend {' or '.join(found)}, not for {backend!r}; leave one of them out"
        )


def _compile(model: str, asked: Asked, began: float) -> None:
    """Compile a model, write its folder and what else is asked for, print the plan."""
    quiet, verbose, as_json = asked["quiet"], asked["verbose"], asked["as_json"]
    cluster, profile, warm_start, force = asked["cluster"], asked["profile"], asked["warm_start"], asked["force"]
    report, plots, trace = asked["report"], asked["plots"], asked["trace"]
    output, annotate, stablehlo = asked["output"], asked["annotate"], asked["stablehlo"]
    if stablehlo:
        _check_stablehlo(asked["backend"])
    fewest, most = asked["min_stages"], asked["max_stages"]
    if most is not None and most < fewest:
        raise OptionError(f"--min-stages {fewest} is more than --max-stages {most}; no plan has both")
    directory = output if output is not None else f"{Path(model).stem or 'model'}.heterps"
    with (
        result_stream() as stream,
        quiet_libraries(verbose=verbose),
        closing(ProgressLine(sys.stderr, wanted=not quiet)) as progress,
    ):
        inputs = [("the model", model), ("the cluster file", cluster), *_profiles(profile)]
        _check_target(directory, inputs, force=force)
        drawings = Drawings(report, plots, trace, older=_older(warm_start) if report else None)
        drawings.check(directory)
        dumps = sys.stderr if as_json or quiet else stream
        observer = LastDraft(draft_printer(asked["print_after"], dumps, progress, asked["passes"]))
        from heterps_compile.api import compile as compile_  # noqa: PLC0415 - torch and onnx

        compiled = compile_(
            model,
            example_inputs=_given_inputs(asked["inputs"], asked["values"]),
            on_progress=progress.show,
            observer=observer,
            verify=not asked["no_verify"],
            must_save=True,
            baselines=BASELINES if report or plots else (),
            **asked.some(*HANDED_ON),
        )
        compiled = compiled.save(directory, force=force, stablehlo=stablehlo)
        if annotate is not None:
            _annotate(compiled, annotate)
        if observer.draft is not None:
            drawings.write(compiled, observer.draft, progress.show)
        compiled = replace(compiled, plan=replace(compiled.plan, total_s=time.perf_counter() - began))
        progress.close()
        _print_result(compiled, directory, stream, as_json=as_json, quiet=quiet, verbose=verbose)


def _given_inputs(path: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of inputs that the user gave."""
    if path is None and not values:
        return {}
    from heterps_compile.frontends.input_files import read_values  # noqa: PLC0415 - numpy

    return read_values(path, values)


def _annotate(compiled: "CompiledModel", path: str) -> None:
    """Write the annotated model; the session option that goes with it stands in it, and is told on stderr."""
    from heterps_compile.backends.onnxruntime.annotate import OPTION, annotate  # noqa: PLC0415 - onnx

    if compiled.graph is None or compiled.partition is None:
        return
    annotated = annotate(compiled.graph, compiled.partition, compiled.plan.stages)
    try:
        annotated.write(Path(path))
    except OSError as error:
        raise InputError(f"cannot write the annotated model {path!r}: {error.strerror}") from error
    for line in (f"{path}: {OPTION} = {annotated.settings}", *annotated.notes):
        tell(printable(line))


def _older(warm_start: str | None) -> "Plan | None":
    """Read the old plan, which may lie in the folder that is replaced, for the page to tell the changes against."""
    if warm_start is None:
        return None
    from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic

    return read_plan(warm_start)


def _check_target(directory: str, inputs: list[tuple[str, str]], *, force: bool) -> None:
    """Check, before the long work, that the folder can be written and that no input lies in it."""
    from heterps_compile.plan.folder import check_target  # noqa: PLC0415 - pydantic

    target = check_target(directory, force=force)
    for option, path in inputs:
        if target.exists() and os.path.exists(path) and Path(path).resolve().is_relative_to(target):
            raise InputError(
                f"{option} {path!r} lies in the output folder {directory!r}, which is replaced as a whole; "
                f"choose another folder (-o DIR)"
            )


def _profiles(profile: str | None) -> list[tuple[str, str]]:
    """Return the files of profiles, and what to call them in messages."""
    if profile is None:
        return []
    from heterps_compile.cost.measured import profile_files  # noqa: PLC0415 - numpy

    return [("the profile", str(path)) for _, path in profile_files(profile)]


def _print_result(
    compiled: "CompiledModel", directory: str, stream: TextIO, *, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Print the plan on stdout."""
    from heterps_compile.console import make_console  # noqa: PLC0415
    from heterps_compile.plan.file import to_json  # noqa: PLC0415 - only what the result needs
    from heterps_compile.plan.plan_view import print_at_a_glance, print_in_full  # noqa: PLC0415
    from heterps_compile.report.document import to_document  # noqa: PLC0415
    from heterps_compile.report.layer_columns import layer_table  # noqa: PLC0415
    from heterps_compile.report.rows import layer_rows  # noqa: PLC0415

    with printing(f"the plan (the folder {directory!r} is written all the same)"):
        if quiet:
            stream.write(f"{directory}\n")
        else:
            rows = layer_rows(compiled.plan, compiled.layers, compiled.costs) if compiled.layers is not None else []
            summary, console = (
                replace(compiled.summary, directory=directory),
                make_console(stream, terminal_width(stream)),
            )
            if as_json:
                stream.write(to_document(compiled.plan, rows, directory) + "\n")
            elif verbose:
                layers = layer_table(rows, console.width) if rows else None
                digest = sha256(to_json(compiled.plan).encode()).hexdigest()
                print_in_full(console, summary, layers=layers, file_sha256=digest)
            else:
                print_at_a_glance(console, summary)
        stream.flush()
