"""``heterps-compile explain LAYER``: why a layer stands where it does; ``--infeasible``: why there is no plan at all.

Left out: the numbers (``review/explain.py``, ``review/explain_plan.py``, ``review/infeasible.py``) and the looks of
them (``review/explain_words.py``).
"""

import sys
from contextlib import closing
from typing import Any

import click

from heterps_compile.options import Asked
from heterps_compile.plan.command_options import EXPLAIN, HANDED_ON, INFEASIBLE, LAYER, LAYER_OF_PLAN
from heterps_compile.plan.request import DEFAULT_CLUSTER
from heterps_compile.progress import Progress

from . import options
from .output import ProgressLine, printing, quiet_libraries, result_stream, terminal_width


@click.command("explain")
@click.argument("layer", metavar="LAYER", required=False)
@options.takes(EXPLAIN)
@click.pass_context
def explain(ctx: click.Context, /, layer: str | None, **_: Any) -> None:
    """Explain why a LAYER stands on its device type: its cost on every type, and what would change if it moved.

    LAYER is a layer's name, in the plan or in the model; show -v lists them. Times are of a batch, prices of a million
    samples, both at today's pool. Without the --model it says what the plan alone does: where the layer stands, what
    its stage takes and costs, and which limits are near.

    With --infeasible, and the options that compiling took, say why no plan meets them: which limit, by how much, and
    what would help.

    \b
    Examples:
      heterps-compile explain fc1 --model model.onnx --plan model.heterps
      heterps-compile explain fc1 --model model.onnx --plan plan.json --json
      heterps-compile explain fc1 --plan git:main:plan.json
      heterps-compile explain --infeasible --model model.onnx --min-throughput 1e9
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    infeasible = ctx.params["infeasible"]
    if infeasible == (layer is not None):
        raise click.UsageError("Name one LAYER, or give --infeasible alone.")
    has_model = ctx.params["model"] is not None
    if infeasible and not has_model:
        raise click.UsageError("Name the model that no plan is found for (--model).")
    with options.asked_of(ctx, EXPLAIN, INFEASIBLE if infeasible else LAYER if has_model else LAYER_OF_PLAN) as asked:
        if not infeasible and asked["plan"] is None:
            raise click.UsageError("Name the plan that the layer is in (--plan).")
        if layer is not None and not has_model:
            _explain_of_plan(layer, asked)
            return
        _explain(layer, asked)


def _explain_of_plan(layer: str, asked: Asked) -> None:
    from heterps_compile.console import make_console  # noqa: PLC0415 - rich
    from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic
    from heterps_compile.review.explain_plan import find_layer, layer_document, print_layer  # noqa: PLC0415 - rich

    found = find_layer(read_plan(asked["plan"]), layer)
    with result_stream() as stream, printing("the explanation"):
        if asked["as_json"]:
            stream.write(layer_document(found))
        else:
            print_layer(make_console(stream, terminal_width(stream)), found)
        stream.flush()


def _explain(layer: str | None, asked: Asked) -> None:
    model, cluster, profile, as_json = asked.some("model", "cluster", "profile", "as_json").values()
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(ProgressLine(sys.stderr, wanted=True)) as progress,
    ):
        progress.show(Progress("reading", 0, 1))
        if layer is None:
            from heterps_compile.review.infeasible import why_infeasible  # noqa: PLC0415 - onnx

            assert asked["infeasible"]  # noqa: S101 - or a layer is named
            options: dict[str, Any] = asked.some(*HANDED_ON) | {"cluster": cluster or DEFAULT_CLUSTER}
            told = why_infeasible(model, **options)
            progress.close()
            with printing("the explanation"):
                stream.write(told.to_json() if as_json else told.to_text())
                stream.flush()
            return
        from heterps_compile.console import make_console  # noqa: PLC0415 - as above
        from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic
        from heterps_compile.review.explain import explain_layer  # noqa: PLC0415 - onnx
        from heterps_compile.review.explain_words import explanation_document, print_explanation  # noqa: PLC0415 - rich
        from heterps_compile.review.pose import pose_again  # noqa: PLC0415 - as above
        from heterps_compile.review.stale import pool_has_moved_on  # noqa: PLC0415 - as above

        plan = read_plan(asked["plan"])
        posed = pose_again(model, plan, cluster=plan.pool if cluster is None else cluster, profile=profile)
        found = explain_layer(posed, layer, allow_stale=asked["allow_stale"])
        progress.close()
        if cluster is None and (note := pool_has_moved_on(plan)):
            click.echo(f"note: {note}", err=True)
        with printing("the explanation"):
            if as_json:
                stream.write(explanation_document(found))
            else:
                print_explanation(make_console(stream, terminal_width(stream)), found)
            stream.flush()
