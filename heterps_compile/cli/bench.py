"""``heterps-compile bench MODEL.onnx``: compare the placement methods in one table and one plot.

Left out: the comparison itself (``compare.py``) and the looks of it (``report/comparison.py``).
"""

import sys
from contextlib import closing

import click

from heterps_compile.plan.request import DEFAULT_CLUSTER, MODES, OBJECTIVES

from . import options
from .output import Progress, printing, quiet_libraries, result_stream, terminal_width
from .pictures import check_file, write_file


@click.command("bench")
@click.argument("model", metavar="MODEL.onnx")
@click.option(
    "--cluster", metavar="NAME|FILE", default=DEFAULT_CLUSTER, show_default=True, help="Pool of device types."
)
@click.option(
    "--objective", type=click.Choice(OBJECTIVES), default=OBJECTIVES[0], show_default=True, help="What is compared."
)
@click.option("--min-throughput", metavar="SAMPLES/S", callback=options.amount, help="Throughput to reach.")
@click.option("--budget", metavar="PRICE/H", help="Most the units may cost, such as '5 USD/h': throughput, latency.")
@click.option("--batch", metavar="N", type=click.IntRange(min=1), help="Samples in one step, where the model is open.")
@options.open_sizes()
@click.option("--mode", type=click.Choice(MODES), default=MODES[0], show_default=True, help="What the stages are for.")
@click.option("--methods", metavar="A,B,...", help="Methods to compare.  [default: all]")
@click.option("--profile", metavar="[TYPE=]FILE,...", help="Measured times of layers; see the command profile.")
@click.option("--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True, help="Of every search.")
@click.option("--time-limit", metavar="SECONDS", callback=options.positive_amount, help="For each method, and proof.")
@click.option("--plot", metavar="FILE.svg", help="Draw the comparison as a bar chart.")
def bench(
    model: str,
    *,
    cluster: str,
    objective: str,
    min_throughput: float | None,
    budget: str | None,
    batch: int | None,
    shapes: dict[str, int],
    mode: str,
    methods: str | None,
    profile: str | None,
    seed: int,
    time_limit: float | None,
    plot: str | None,
) -> None:
    """Compare the placement methods on MODEL.onnx: price, distance from the proven bound, time.

    Every method plans the same problem and nothing is built. A last table prices the best placement under each rule
    for the number of replicas.

    \b
    Files:
      FILE.svg          the comparison as a bar chart, with --plot

    \b
    Examples:
      heterps-compile bench model.onnx
      heterps-compile bench model.onnx --min-throughput 2000 --methods rl,exact,greedy --plot methods.svg
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    check_file("--plot", plot)
    with result_stream() as stream, quiet_libraries(verbose=False), closing(Progress(sys.stderr, wanted=True)) as shown:
        from heterps_compile.compare import compare_methods  # noqa: PLC0415 - onnx and numpy
        from heterps_compile.passes.placement.methods import METHODS  # noqa: PLC0415 - numpy
        from heterps_compile.report.comparison import comparison_svg, print_comparison  # noqa: PLC0415 - rich
        from heterps_compile.report.tables import make_console  # noqa: PLC0415 - rich

        comparison = compare_methods(
            model,
            cluster=cluster,
            objective=objective,
            min_throughput=min_throughput or 0.0,
            budget=budget,
            batch=batch,
            shapes=shapes,
            mode=mode,
            methods=[name.strip() for name in methods.split(",")] if methods else tuple(METHODS),
            profile=profile,
            seed=seed,
            time_limit=time_limit,
            on_progress=shown.show,
        )
        shown.close()
        if plot is not None:
            write_file(plot, comparison_svg(comparison))
        with printing("the comparison"):
            print_comparison(make_console(stream, terminal_width(stream)), comparison)
            stream.flush()
