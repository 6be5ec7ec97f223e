"""``heterps-compile [compile] MODEL.onnx``: compile, write the folder, print the plan.

Left out: the work itself (``api.py``) and the looks of it (``report/``).
"""

import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.plan.request import (
    DEFAULT_CLUSTER,
    DEFAULT_METHOD,
    MODES,
    OBJECTIVES,
    PROVISIONERS,
    SYNCHRONISATIONS,
)

from . import options
from .max_load import MAX_LOAD, solve_workload_file
from .output import Progress, printing, quiet_libraries, result_stream, terminal_width
from .pictures import BASELINES, Drawings, LastDraft
from .print_after import draft_printer

if TYPE_CHECKING:
    from heterps_compile.compiled_model import CompiledModel
    from heterps_compile.plan.plan import Plan


@click.command("compile")
@click.argument("model", metavar="MODEL.onnx")
@click.option("-o", "--output", metavar="DIR", help="Folder to write.  [default: MODEL.heterps here]")
@click.option("--force", is_flag=True, help="Replace DIR, with all that is in it, also where no compilation wrote it.")
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    default=DEFAULT_CLUSTER,
    show_default=True,
    help="Pool of device types: a built-in one (see the command clusters) or a TOML file.",
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default=OBJECTIVES[0],
    show_default=True,
    help="What the plan is the best in: cost of a million samples; throughput; latency of a batch; max-load, the load "
    "of the busiest device with one unit a stage.",
)
@click.option("--min-throughput", metavar="SAMPLES/S", callback=options.amount, help="Throughput the plan must reach.")
@click.option("--budget", metavar="PRICE/H", help="Most the units may cost, such as '5 USD/h': throughput, latency.")
@click.option(
    "--batch", metavar="N", type=click.IntRange(min=1), help="Samples in one step, where the model leaves it open."
)
@options.open_sizes()
@click.option("--mode", type=click.Choice(MODES), default=MODES[0], show_default=True, help="What the stages are for.")
@click.option("--method", metavar="NAME", default=DEFAULT_METHOD, show_default=True, help="Search method: rl, exact, …")
@click.option("--backend", metavar="NAME", help="What the stages run on.  [default: the model's own]")
@click.option(
    "--min-stages",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Cut into so many or more.",
)
@click.option("--max-stages", metavar="N", type=click.IntRange(min=1), help="Cut into so many or fewer.")
@click.option(
    "--provisioner",
    type=click.Choice(PROVISIONERS),
    default=PROVISIONERS[0],
    show_default=True,
    help="How stages get replicas; the rules of the HeterPS paper need --min-throughput.",
)
@click.option(
    "--sync",
    "synchronisation",
    type=click.Choice(SYNCHRONISATIONS),
    default=SYNCHRONISATIONS[0],
    show_default=True,
    help="How replicas agree in training.",
)
@click.option(
    "--pin",
    "pins",
    metavar="PATTERN=DEVICE",
    callback=options.pins,
    multiple=True,
    help="Device type for layers, by name, kind or pattern.",
)
@click.option(
    "--forbid",
    "forbidden",
    metavar="PATTERN=DEVICE",
    callback=options.pairs,
    multiple=True,
    help="Device type that layers must not go to.",
)
@click.option("--warm-start", metavar="PLAN", help="An old plan of the model, file or folder, to begin from.")
@click.option("--profile", metavar="[TYPE=]FILE,...", help="Measured times of layers; see the command profile.")
@click.option(
    "--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True, help="Of search and verification."
)
@click.option(
    "--time-limit",
    metavar="SECONDS",
    callback=options.positive_amount,
    help="Stop the search with the best plan so far.",
)
@click.option("--contiguous/--non-contiguous", default=True, help="Of a workload: devices in one line, or free.")
@click.option("--accelerators", metavar="N", type=click.IntRange(min=0), help="Of a workload, in place of the file's.")
@click.option("--cpus", metavar="N", type=click.IntRange(min=0), help="Of a workload, in place of the file's.")
@click.option("--no-verify", is_flag=True, help="Do not run the stages against the whole model.")
@click.option("--stablehlo", is_flag=True, help="Write stages of the backend jax as StableHLO too.")
@click.option(
    "--annotate",
    metavar="FILE.onnx",
    help="Write the whole model too, every node annotated with its stage for ONNX Runtime's own partitioning.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option("--print-after", metavar="PASS", multiple=True, help="Print the draft after a pass; may be repeated.")
@click.option(
    "--report",
    metavar="FILE.html",
    help="Write a page with pictures of the plan, and of its changes against --warm-start; it fetches nothing.",
)
@click.option("--plots", metavar="DIR", help="Write every picture as SVG, and as PNG where resvg-py is installed.")
@click.option("--trace", metavar="FILE.json", help="Write the simulated step as a Chrome trace, for ui.perfetto.dev.")
@click.option("-q", "--quiet", is_flag=True, help="Print the folder's path alone.")
@click.option("-v", "--verbose", is_flag=True, help="Print every layer, and libraries' warnings.")
def compile_model(  # noqa: PLR0917 - click passes them by name
    model: str,
    output: str | None,
    force: bool,
    cluster: str,
    objective: str,
    min_throughput: float | None,
    budget: str | None,
    batch: int | None,
    shapes: dict[str, int],
    mode: str,
    method: str,
    backend: str | None,
    min_stages: int,
    max_stages: int | None,
    provisioner: str,
    synchronisation: str,
    pins: dict[str, str],
    forbidden: list[tuple[str, str]],
    warm_start: str | None,
    profile: str | None,
    seed: int,
    time_limit: float | None,
    contiguous: bool,
    accelerators: int | None,
    cpus: int | None,
    no_verify: bool,
    stablehlo: bool,
    annotate: str | None,
    as_json: bool,
    print_after: tuple[str, ...],
    report: str | None,
    plots: str | None,
    trace: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Compile MODEL.onnx: print the plan and write a folder that runs.

    The folder runs with heterps_compile.load(DIR).run(...) in Python. It is replaced as a whole or left as it is. A
    batch is one step; times are seconds of a batch, and throughput is samples per second over all replicas.

    \b
    Files:
      DIR/plan.json     the plan: what was decided, what it is estimated to do, what it was made from
      DIR/stage_N.*     the stages: ONNX files, or sources with their weights as safetensors
      DIR/README.md     how to run it
      FILE.html, FILE.json, FILE.onnx, pictures: what --report, --trace, --annotate and --plots ask for

    \b
    Examples:
      heterps-compile model.onnx
      heterps-compile model.onnx -o out --batch 64 --shape seq=128
      heterps-compile model.onnx --min-throughput 20000 --max-stages 4
      heterps-compile model.onnx --pin embedding=cpu-core --method exact
      heterps-compile model.onnx --objective throughput --budget "5 USD/h"
      heterps-compile model.onnx --print-after group-layers
      heterps-compile model.onnx --report plan.html --plots pictures --trace step.json
      heterps-compile workload.json --objective max-load --non-contiguous
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    began = time.perf_counter()
    if quiet and (verbose or as_json):
        raise click.UsageError(f"-q and {'-v' if verbose else '--json'} contradict each other.")
    if max_stages is not None and max_stages < min_stages:
        raise click.UsageError(f"--min-stages {min_stages} is more than --max-stages {max_stages}.")
    if objective == MAX_LOAD and not model.endswith(".onnx"):
        if report or plots or trace:
            raise click.UsageError("--report, --plots and --trace are of models; a workload has no stages in time.")
        asked = click.get_current_context().get_parameter_source("method") is not ParameterSource.DEFAULT
        solve_workload_file(
            model,
            output=output,
            force=force,
            contiguous=contiguous,
            accelerators=accelerators,
            cpus=cpus,
            mode=mode,
            method=method if asked else None,
            seed=seed,
            time_limit=time_limit,
            as_json=as_json,
            quiet=quiet,
        )
        return
    request: dict[str, Any] = {
        "cluster": cluster,
        "objective": objective,
        "min_throughput": min_throughput,
        "budget": budget,
        "batch": batch,
        "shapes": shapes,
        "mode": mode,
        "method": method,
        "backend": backend,
        "min_stages": min_stages,
        "max_stages": max_stages,
        "provisioner": provisioner,
        "synchronisation": synchronisation,
        "pins": pins,
        "forbidden": forbidden,
        "warm_start": warm_start,
        "profile": profile,
        "seed": seed,
        "time_limit": time_limit,
        "verify": not no_verify,
        "baselines": BASELINES if report or plots else (),
    }
    directory = output if output is not None else f"{Path(model).stem or 'model'}.heterps"
    with (
        result_stream() as stream,
        quiet_libraries(verbose=verbose),
        closing(Progress(sys.stderr, wanted=not quiet)) as progress,
    ):
        inputs = [("the model", model), ("the cluster file", cluster), *_profiles(profile)]
        _check_target(directory, inputs, force=force)
        drawings = Drawings(report, plots, trace, older=_older(warm_start) if report else None)
        drawings.check(directory)
        dumps = sys.stderr if as_json or quiet else stream
        observer = LastDraft(draft_printer(print_after, dumps, progress))
        from heterps_compile.api import compile as compile_  # noqa: PLC0415 - torch and onnx

        compiled = compile_(model, on_progress=progress.show, observer=observer, **request)
        compiled = compiled.save(directory, force=force, stablehlo=stablehlo)
        if annotate is not None:
            _annotate(compiled, annotate)
        if observer.draft is not None:
            drawings.write(compiled, observer.draft, progress.show)
        compiled = replace(compiled, plan=replace(compiled.plan, total_s=time.perf_counter() - began))
        progress.close()
        _print_result(compiled, directory, stream, as_json=as_json, quiet=quiet, verbose=verbose)


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
        click.echo(printable(line), err=True)


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
    """Give the files of profiles, and what to call them in messages."""
    if profile is None:
        return []
    from heterps_compile.cost.measured import profile_files  # noqa: PLC0415 - numpy

    return [("the profile", str(path)) for _, path in profile_files(profile)]


def _print_result(
    compiled: "CompiledModel", directory: str, stream: TextIO, *, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Print the plan on stdout."""
    from heterps_compile.report.document import to_document  # noqa: PLC0415 - only what the result needs
    from heterps_compile.report.rows import layer_rows  # noqa: PLC0415
    from heterps_compile.report.tables import make_console, print_plan  # noqa: PLC0415

    with printing(f"the plan (the folder {directory!r} is written all the same)"):
        if quiet:
            stream.write(f"{directory}\n")
        else:
            rows = layer_rows(compiled.plan, compiled.layers, compiled.costs) if compiled.layers is not None else []
            if as_json:
                stream.write(to_document(compiled.plan, rows, directory) + "\n")
            else:
                console = make_console(stream, terminal_width(stream))
                print_plan(console, compiled.plan, rows, directory=directory, all_layers=verbose)
        stream.flush()
