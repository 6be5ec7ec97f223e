"""``heterps-compile show PLAN``: a plan as its file has it, without the model and without heavy imports.

Left out: the looks of it (``report/show_words.py``).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

import click

from .output import printing, result_stream, terminal_width

if TYPE_CHECKING:
    from heterps_compile.plan.plan import Plan


@click.command("show")
@click.argument("plans", metavar="PLAN...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as today's version of plan.json.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of plan.json; takes no PLAN.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing: only check that every plan is sound.")
@click.option("-v", "--verbose", is_flag=True, help="Print every layer with its stage and fingerprint.")
def show(plans: tuple[str, ...], *, as_json: bool, schema: bool, quiet: bool, verbose: bool) -> None:
    """Show a plan: stages, replicas, price and throughput, memory, and what it was made from.

    PLAN is a plan.json, a compiled folder, or git:REV:PATH. A plan that is damaged or contradicts itself is an error
    that names the place.

    \b
    Examples:
      heterps-compile show model.heterps
      heterps-compile show git:HEAD~1:plans/plan.json -v
      heterps-compile show --quiet plans/*.json
      heterps-compile show old-plan.json --json > plan.json
      heterps-compile show --schema > plan.schema.json
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    if schema == bool(plans) or (as_json and len(plans) > 1):
        raise click.UsageError("Name a plan (one for --json), or give --schema alone.")
    with result_stream() as stream, printing("the plan"):
        for text in _texts(plans, stream, as_json=as_json, quiet=quiet, verbose=verbose):
            stream.write(text)
        stream.flush()


def _texts(plans: tuple[str, ...], stream: TextIO, *, as_json: bool, quiet: bool, verbose: bool) -> Iterator[str]:
    if not plans:
        from heterps_compile.plan.schema import published_schema  # noqa: PLC0415 - pydantic

        yield published_schema()
    from heterps_compile.plan.file import to_json  # noqa: PLC0415 - as above
    from heterps_compile.plan.source import read_plan  # noqa: PLC0415

    for place, plan in enumerate(map(read_plan, plans)):
        if not quiet:
            yield "\n" if place else ""
            yield to_json(plan) if as_json else _shown(plan, stream, all_layers=verbose)


def _shown(plan: "Plan", stream: TextIO, *, all_layers: bool) -> str:
    from heterps_compile.report.show_words import print_shown  # noqa: PLC0415 - rich
    from heterps_compile.report.tables import make_console  # noqa: PLC0415

    console = make_console(stream, terminal_width(stream))
    with console.capture() as captured:
        print_shown(console, plan, all_layers=all_layers)
    return captured.get()
