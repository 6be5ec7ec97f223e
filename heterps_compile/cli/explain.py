"""``heterps-compile explain LAYER``: why a layer stands where it does.

With ``--pin``, what pins would cost; with ``--infeasible``, why there is no plan at all.

Left out: the numbers (``review/explain.py``, ``review/explain_plan.py``, ``review/pin_cost.py``,
``review/infeasible.py``) and the looks of them (``review/explain_words.py``, ``review/pin_cost_words.py``).
"""

import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.fit_lines import fit_lines, terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import EXPLAIN, HANDED_ON, INFEASIBLE, LAYER, LAYER_OF_PLAN, PINS
from heterps_compile.plan.request import DEFAULT_CLUSTER
from heterps_compile.progress import Progress

from . import options
from .output import ProgressLine, printing, quiet_libraries, result_stream, tell

if TYPE_CHECKING:
    from rich.console import Console

    from heterps_compile.review.pose import PosedAgain


@click.command("explain")
@click.argument("layer", metavar="LAYER", required=False)
@options.takes(EXPLAIN)
@click.pass_context
def explain(ctx: click.Context, /, layer: str | None, **_: Any) -> None:
    """Explain why a LAYER is on its device type: its cost on every type, and what would change if it moved.

    The moves are those that are open to it, to its stage and to the layers that are interchangeable with it; for the
    best of them it is said which price, link or limit decides, and what that would have to be.

    LAYER is a layer's name, in the plan or in the model; show -v lists them. Times are of a batch, prices of a million
    samples, both at today's pool. Without the --model it says what the plan alone does: where the layer stands, what
    its stage takes and costs, and which limits are near.

    With --pin instead of a LAYER, say what it would cost to have layers where the plan does not have them: the best
    plan with the pins, and which price, link or limit decides.

    With --infeasible, and the options that compiling took, say why no plan meets them: which limit, by how much, and
    what would help.

    \b
    Examples:
      heterps-compile explain fc1 --model model.onnx --plan model.heterps
      heterps-compile explain fc1 --model model.onnx --plan plan.json --json
      heterps-compile explain fc1 --plan git:main:plan.json
      heterps-compile explain --pin fc1=v100 --model model.onnx --plan plan.json
      heterps-compile explain --infeasible --model model.onnx --min-throughput 1e9
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    infeasible, has_model = ctx.params["infeasible"], ctx.params["model"] is not None
    if (infeasible and layer is not None) or (not infeasible and layer is None and not ctx.params["pins"]):
        raise click.UsageError("Name one LAYER, or give --pin with a --plan, or --infeasible alone.")
    if infeasible and not has_model:
        raise click.UsageError("Name the model that no plan is found for (--model).")
    if layer is None and not has_model:
        raise click.UsageError("Name the model that the pins are for (--model).")
    subject = INFEASIBLE if infeasible else PINS if layer is None else LAYER if has_model else LAYER_OF_PLAN
    with options.asked_of(ctx, EXPLAIN, subject) as asked:
        if not infeasible and asked["plan"] is None:
            raise click.UsageError("Name the plan that is asked about (--plan).")
        if layer is not None and not has_model:
            _explain_of_plan(layer, asked)
            return
        _explain(layer, subject, asked)


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


def _explain(layer: str | None, subject: str, asked: Asked) -> None:
    model, cluster, profile, as_json = asked.some("model", "cluster", "profile", "as_json").values()
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(ProgressLine(sys.stderr, wanted=True)) as progress,
    ):
        progress.show(Progress("reading", 0, 1))
        if subject is INFEASIBLE:
            from heterps_compile.review.infeasible import why_infeasible  # noqa: PLC0415 - onnx

            assert asked["infeasible"]  # noqa: S101 - it is the subject
            options: dict[str, Any] = asked.some(*HANDED_ON) | {"cluster": cluster or DEFAULT_CLUSTER}
            told = why_infeasible(model, **options)
            progress.close()
            with printing("the explanation"):
                stream.write(told.to_json() if as_json else fit_lines(told.to_text(), terminal_width(stream)))
                stream.flush()
            return
        from heterps_compile.console import make_console  # noqa: PLC0415 - rich
        from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic
        from heterps_compile.review.pose import pose_again  # noqa: PLC0415 - onnx
        from heterps_compile.review.stale import pool_has_moved_on  # noqa: PLC0415 - as above

        plan = read_plan(asked["plan"])
        posed = pose_again(model, plan, cluster=plan.pool if cluster is None else cluster, profile=profile)
        if layer is None:
            document, show = _pinned(posed, asked)
        else:
            document, show = _placed(posed, layer, asked)
        progress.close()
        if cluster is None and (note := pool_has_moved_on(plan)):
            tell(f"note: {note}")
        with printing("the explanation"):
            if as_json:
                stream.write(document())
            else:
                show(make_console(stream, terminal_width(stream)))
            stream.flush()


_Told = tuple[Callable[[], str], Callable[["Console"], None]]
"""Give a JSON document, or print for people."""


def _placed(posed: "PosedAgain", layer: str, asked: Asked) -> _Told:
    from heterps_compile.review.explain import explain_layer  # noqa: PLC0415 - the search
    from heterps_compile.review.explain_words import explanation_document, print_explanation  # noqa: PLC0415 - rich

    found = explain_layer(posed, layer, allow_stale=asked["allow_stale"])
    return lambda: explanation_document(found), lambda console: print_explanation(console, found)


def _pinned(posed: "PosedAgain", asked: Asked) -> _Told:
    from heterps_compile.review.pin_cost import TIME_LIMIT_S, pin_cost  # noqa: PLC0415 - the search
    from heterps_compile.review.pin_cost_words import pin_cost_document, print_pin_cost  # noqa: PLC0415 - rich

    pins, allow_stale, limit_s = asked["pins"], asked["allow_stale"], asked["time_limit"]
    found = pin_cost(
        posed, tuple(pins.items()), allow_stale=allow_stale, time_limit_s=TIME_LIMIT_S if limit_s is None else limit_s
    )
    return lambda: pin_cost_document(found), lambda console: print_pin_cost(console, found)
