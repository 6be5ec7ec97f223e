"""``heterps-compile sync MODEL.onnx --plan PLAN``: every rule by which replicas may agree, on one plan.

Left out: the comparison and the looks of it (``rule_comparison/``).
"""

from typing import Any

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.plan.command_options import PLAN_WITH_MODEL
from heterps_compile.plan.sync_options import SYNC

from . import options
from .output import printing, quiet_libraries, result_stream, tell


@click.command("sync")
@click.argument("model", metavar="MODEL.onnx")
@options.takes(SYNC)
@click.pass_context
def sync(ctx: click.Context, /, model: str, **_: Any) -> None:
    """Compare the rules by which the replicas of a plan for training may agree: step, bytes, memory, price, class.

    The plan of MODEL.onnx keeps its placement, replicas and schedule; each rule takes the place of the all-reduce in
    every stage, and the step is simulated. A class says what is kept of training in one process: exact, bounded (what
    is late or left out comes later) or any. docs/synchronisation.md has the formulas.

    \b
    Examples:
      heterps-compile sync model.onnx --plan out
      heterps-compile sync model.onnx --plan out --rule "topk(density=0.001)"
      heterps-compile sync model.onnx --plan out --cluster slow.toml --allow-stale
      heterps-compile sync model.onnx --plan out --json | jq .shortest
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with (
        options.asked_of(ctx, SYNC, PLAN_WITH_MODEL) as asked,
        result_stream() as stream,
        quiet_libraries(verbose=False),
    ):
        from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic
        from heterps_compile.review.pose import pose_again  # noqa: PLC0415 - onnx
        from heterps_compile.review.stale import pool_has_moved_on  # noqa: PLC0415 - as above
        from heterps_compile.rule_comparison.compare_rules import compare_rules  # noqa: PLC0415 - as above
        from heterps_compile.rule_comparison.comparison_words import (  # noqa: PLC0415 - rich
            comparison_document,
            print_comparison,
        )

        as_json, cluster = asked["as_json"], asked["cluster"]
        plan = read_plan(asked["plan"])
        posed = pose_again(model, plan, cluster=plan.pool if cluster is None else cluster, profile=asked["profile"])
        found = compare_rules(posed, asked["rules"], allow_stale=asked["allow_stale"])
        if cluster is None and (note := pool_has_moved_on(plan)):
            tell(f"note: {note}")
        with printing("the comparison"):
            if as_json:
                stream.write(comparison_document(found))
            else:
                from heterps_compile.console import make_console  # noqa: PLC0415 - rich

                print_comparison(make_console(stream, terminal_width(stream)), found)
            stream.flush()
