"""``heterps-compile ops``: the ONNX ops that the backends run.

Left out: the op tables themselves (``backends/``).
"""

import json

import click

from heterps_compile.escape import printable
from heterps_compile.fit_lines import terminal_width

from .output import printing, quiet_libraries, result_stream, tell


@click.command("ops")
@click.option("--backend", metavar="NAME", help="Only this backend's.  [default: all that are installed]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def ops(backend: str | None, *, as_json: bool) -> None:
    """List the ONNX ops that backends run, with the opsets from which on each version is known.

    An op that is not listed is an error when a model with it is compiled for that backend; it is never left out.

    \b
    Examples:
      heterps-compile ops
      heterps-compile ops --backend jax
      heterps-compile ops --json | jq '.[].op'
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with result_stream() as stream, quiet_libraries(verbose=False):
        from rich.text import Text  # noqa: PLC0415 - rich

        from heterps_compile.backends.ops import (  # noqa: PLC0415 - torch, jax and onnxruntime
            backends_that_list_ops,
            ops_by_backend,
        )
        from heterps_compile.console import add_text, make_console, plain_table  # noqa: PLC0415 - rich
        from heterps_compile.packages import join  # noqa: PLC0415 - only when it runs

        names, missing = backends_that_list_ops() if backend is None else ((backend,), ())
        if not names:
            raise join(missing)
        for error in missing:
            tell(f"note: not listed: {error}")
        found = ops_by_backend(names)
        with printing("the ops"):
            if as_json:
                rows = [{"domain": d or "ai.onnx", "op": o, "opsets": by} for (d, o), by in found.items()]
                stream.write(json.dumps(rows, indent=2) + "\n")
            else:
                table = plain_table()
                add_text(table, "op", *names)
                for (domain, op), by in found.items():
                    versions = (" ".join(map(str, by[name])) if name in by else "-" for name in names)
                    table.add_row(*map(Text, [printable(f"{domain}.{op}" if domain else op), *versions]))
                console = make_console(stream, terminal_width(stream))
                console.print(table)
                totals = ", ".join(f"{name} {sum(name in by for by in found.values())}" for name in names)
                console.print()
                console.print(f"ops: {totals}; a number is the opset from which on a version of the op is known")
            stream.flush()
