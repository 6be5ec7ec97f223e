"""``heterps-compile launch DIR --hosts FILE``: print what is to be typed on every machine of a run.

Left out: the file of hosts and the lines (``runtime/launch/hosts_file.py``).
"""

from typing import Any

import click

from heterps_compile.errors import InputError
from heterps_compile.runtime.launch.run_options import RUN

from . import options
from .output import printing, result_stream
from .run import make_run_options
from .run_words import given_words


@click.command("launch")
@click.argument("directory", metavar="DIR")
@click.option("--no-check", is_flag=True, help="Do not look the machines up from here.")
@options.takes(RUN)
@click.pass_context
def launch(ctx: click.Context, /, directory: str, no_check: bool, **_: Any) -> None:
    """Print the line to type on every machine that runs a compiled folder; the options are those of run.

    \b
    A file of hosts, which nobody else may read (chmod 600):
      secret = "32 characters or more that nobody can guess"
      port = 29500
      [[host]]
      address = "10.0.0.1"
      slots = 2
      [[host]]
      address = "worker-2"
      slots = 1
      speed = 2.0

    DIR is the compiled folder. It, the file of hosts, the data and the checkpoints must be found under the same paths
    on every machine.

    \b
    Examples:
      heterps-compile launch model.heterps --hosts hosts.toml
      heterps-compile launch model.heterps --hosts hosts.toml --train train.py --data clicks.parquet
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    made = make_run_options(ctx, directory)
    from heterps_compile.runtime.launch.hosts_file import (  # noqa: PLC0415 - only when it runs
        check_hosts,
        launch_lines,
        look_up_hosts,
        ranks_of_hosts,
        read_hosts,
    )
    from heterps_compile.runtime.launch.prepare import prepare  # noqa: PLC0415

    if made.hosts is None:
        raise InputError("launch needs the machines (--hosts FILE.toml)")
    known = read_hosts(made.hosts)
    prepared = prepare(made)
    check_hosts(known, prepared)
    if not no_check:
        look_up_hosts(known)
    lines = launch_lines(known, prepared, [made.directory, *given_words(ctx)])
    with result_stream() as stream, printing("the lines"):
        for number, ((address, line), ranks) in enumerate(zip(lines, ranks_of_hosts(known), strict=True), 1):
            if made.host not in (None, number):
                continue
            what = "; ".join(str(prepared.places[rank]) for rank in ranks)
            stream.write(f"# {address}: {what}\n{line}\n")
        stream.flush()
