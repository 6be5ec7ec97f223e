"""``heterps-compile explain LAYER``: why a layer stands where it does; ``--infeasible``: why there is no plan at all.

Left out: the numbers (``review/explain.py``, ``review/infeasible.py``) and the looks of them
(``report/explain_words.py``).
"""

import sys
from contextlib import closing
from typing import Any

import click
from click.core import ParameterSource

from heterps_compile.plan.request import DEFAULT_CLUSTER, MODES, OBJECTIVES

from . import options
from .output import Progress, printing, quiet_libraries, result_stream, terminal_width

_ASKED = "With --infeasible:"


@click.command("explain")
@click.argument("layer", metavar="LAYER", required=False)
@click.option("--model", metavar="MODEL.onnx", required=True, help="The model.")
@click.option("--plan", metavar="PLAN", help="Its plan: a plan.json, a compiled folder, or git:REV:PATH.")
@click.option("--infeasible", is_flag=True, help="Say why no plan meets the options below, and what would help.")
@options.of_today
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default=OBJECTIVES[0],
    show_default=True,
    help=f"{_ASKED} what counts.",
)
@click.option(
    "--min-throughput", metavar="SAMPLES/S", callback=options.amount, help=f"{_ASKED} throughput the plan must reach."
)
@click.option("--budget", metavar="PRICE/H", help=f"{_ASKED} most the units may cost, such as '5 USD/h'.")
@click.option("--batch", metavar="N", type=click.IntRange(min=1), help=f"{_ASKED} samples in one step.")
@options.open_sizes(f"{_ASKED} number of an open dimension; may be repeated.")
@click.option(
    "--mode", type=click.Choice(MODES), default=MODES[0], show_default=True, help=f"{_ASKED} what the stages are for."
)
@click.option(
    "--min-stages",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help=f"{_ASKED} cut into so many or more.",
)
@click.option("--max-stages", metavar="N", type=click.IntRange(min=1), help=f"{_ASKED} cut into so many or fewer.")
@click.option(
    "--pin",
    "pins",
    metavar="PATTERN=DEVICE",
    callback=options.pins,
    multiple=True,
    help=f"{_ASKED} device type for layers, by name, kind or pattern; may be repeated.",
)
@click.pass_context
def explain(
    ctx: click.Context,
    /,
    layer: str | None,
    *,
    model: str,
    plan: str | None,
    infeasible: bool,
    cluster: str | None,
    profile: str | None,
    allow_stale: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Explain why a LAYER stands on its device type: its cost on every type, and what would change if it moved.

    LAYER is a layer's name, in the plan or in the model; show -v lists them. Times are of a batch, prices of a million
    samples, both at today's pool.

    With --infeasible, and the options that compiling took, say why no plan meets them: which limit, by how much, and
    what would help.

    \b
    Examples:
      heterps-compile explain fc1 --model model.onnx --plan model.heterps
      heterps-compile explain fc1 --model model.onnx --plan plan.json --json
      heterps-compile explain --infeasible --model model.onnx --min-throughput 1e9
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    if infeasible == (layer is not None):
        raise click.UsageError("Name one LAYER, or give --infeasible alone.")
    if infeasible and (plan is not None or allow_stale):
        raise click.UsageError("--plan and --allow-stale are for a LAYER; leave them out with --infeasible.")
    given = [name for name in asked if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if not infeasible and given:
        words = next(param.opts[0] for param in ctx.command.params if param.name == given[0])
        raise click.UsageError(f"{words} is for --infeasible; a LAYER is explained as its plan asked for it.")
    if not infeasible and plan is None:
        raise click.UsageError("Name the plan that the layer is in (--plan).")
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(Progress(sys.stderr, wanted=True)) as progress,
    ):
        progress.show("reading", 0, 1)
        if layer is None:
            from heterps_compile.review.infeasible import why_infeasible  # noqa: PLC0415 - onnx

            told = why_infeasible(model, cluster=cluster or DEFAULT_CLUSTER, profile=profile, **asked)
            progress.close()
            with printing("the explanation"):
                stream.write(told.to_json() if as_json else told.to_text())
                stream.flush()
            return
        from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic
        from heterps_compile.report.explain_words import explanation_document, print_explanation  # noqa: PLC0415 - rich
        from heterps_compile.report.tables import make_console  # noqa: PLC0415 - as above
        from heterps_compile.review.explain import explain_layer  # noqa: PLC0415 - onnx
        from heterps_compile.review.pose import pose_again  # noqa: PLC0415 - as above

        posed = pose_again(model, read_plan(str(plan)), cluster=cluster, profile=profile)
        found = explain_layer(posed, layer, allow_stale=allow_stale)
        progress.close()
        with printing("the explanation"):
            if as_json:
                stream.write(explanation_document(found))
            else:
                print_explanation(make_console(stream, terminal_width(stream)), found)
            stream.flush()
