"""``heterps-compile bench MODEL.onnx``: compare the placement methods in one table and one plot.

Left out: the comparison itself and its tables (``bench/``), the picture (``report/pictures/method_bars.py``).
"""

import sys
from contextlib import closing
from typing import Any

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import BENCH, HANDED_ON, ONNX

from . import options
from .output import ProgressLine, printing, quiet_libraries, result_stream
from .pictures import check_file, write_file


@click.command("bench")
@click.argument("model", metavar="MODEL.onnx")
@options.takes(BENCH)
@click.pass_context
def bench(ctx: click.Context, /, model: str, **_: Any) -> None:
    """Compare the placement methods on MODEL.onnx: price, distance from the proven bound, time.

    Every method plans the same problem and nothing is built. A last table prices the best placement under each rule
    for the number of replicas.

    \b
    Files:
      FILE.svg          the comparison as a bar chart, with --plot

    \b
    Examples:
      heterps-compile bench model.onnx
      heterps-compile bench model.onnx --methods best,rl,exact --plot methods.svg
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, BENCH, ONNX) as asked:
        check_file("--plot", asked["plot"])
        _bench(model, asked)


def _bench(model: str, asked: Asked) -> None:
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(ProgressLine(sys.stderr, wanted=True)) as shown,
    ):
        from heterps_compile.bench.compare_methods import compare_methods  # noqa: PLC0415 - onnx and numpy
        from heterps_compile.bench.comparison_words import print_comparison  # noqa: PLC0415 - rich
        from heterps_compile.console import make_console  # noqa: PLC0415 - rich
        from heterps_compile.passes.placement.methods import METHODS  # noqa: PLC0415 - numpy

        comparison = compare_methods(
            model,
            methods=[name.strip() for name in asked["methods"].split(",")] if asked["methods"] else tuple(METHODS),
            **asked.some(*HANDED_ON),
            on_progress=shown.show,
        )
        shown.close()
        if asked["plot"] is not None:
            from heterps_compile.report.pictures.method_bars import method_bars  # noqa: PLC0415 - only where asked for

            write_file(asked["plot"], method_bars(comparison).svg)
        with printing("the comparison"):
            print_comparison(make_console(stream, terminal_width(stream)), comparison)
            stream.flush()
