"""``heterps-compile clusters``: the pools that plans may rent from.

Left out: editing a pool (it is a TOML file) and catalogues of clouds.
"""

import sys
from pathlib import Path

import click

from heterps_compile.escape import printable
from heterps_compile.fit_lines import terminal_width
from heterps_compile.units import counted

from .output import printing


@click.group(invoke_without_command=True)
@click.pass_context
def clusters(ctx: click.Context) -> None:
    """List, show and check pools of device types.

    A pool is what plans may rent: device types with prices, limits, memory and speeds, and the links between them.

    \b
    Examples:
      heterps-compile clusters
      heterps-compile clusters show heterps-paper
      heterps-compile clusters check my-pool.toml
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_clusters)


@clusters.command("list")
def list_clusters() -> None:
    """List the built-in pools.

    \b
    Examples:
      heterps-compile clusters list
    """  # noqa: D301 - as above
    from heterps_compile.cluster.load import builtin_names, load_cluster  # noqa: PLC0415 - pydantic
    from heterps_compile.console import make_console, pairs_table  # noqa: PLC0415 - rich

    pools = [(name, load_cluster(name).description) for name in builtin_names()]
    with printing("the pools"):
        make_console(sys.stdout, terminal_width(sys.stdout)).print(pairs_table(pools))


@clusters.command("show")
@click.argument("cluster", metavar="NAME|FILE")
@click.option("--toml", "as_toml", is_flag=True, help="Print the pool's file, every key of it, for a pool of your own.")
def show_cluster(cluster: str, *, as_toml: bool) -> None:
    """Show the device types of a pool: price, number, memory and speed of each.

    NAME is a built-in pool, FILE a TOML file of your own. Prices are per unit and hour, in the pool's currency.

    \b
    Examples:
      heterps-compile clusters show heterps-paper
      heterps-compile clusters show my-pool.toml
      heterps-compile clusters show cloud-mix --toml > my-pool.toml
    """  # noqa: D301 - as above
    from heterps_compile.cluster.load import load_cluster, pool_text  # noqa: PLC0415 - pydantic
    from heterps_compile.console import make_console  # noqa: PLC0415 - rich
    from heterps_compile.report.pool_table import cluster_lines, cluster_table  # noqa: PLC0415 - rich

    if as_toml:
        with printing("the pool"):
            click.echo("\n".join(map(printable, pool_text(cluster).splitlines())))
        return
    pool = load_cluster(cluster)
    console = make_console(sys.stdout, terminal_width(sys.stdout))
    with printing("the pool"):
        console.print(f"{printable(pool.name)}: {printable(pool.description)}")
        console.print()
        console.print(cluster_table(pool, console.width))
        for line in cluster_lines(pool):
            console.print(f"\n{line}")


@clusters.command("check")
@click.argument("file", metavar="FILE")
def check_cluster(file: str) -> None:
    """Check a pool's FILE: names, units and prices.

    Every number needs its unit ("16 GiB", "25 Gbit/s", "2.42 USD/h"); a price of nothing must be written as free. The
    first fault is told with its place in the file.

    \b
    Examples:
      heterps-compile clusters check my-pool.toml
    """  # noqa: D301 - as above
    from heterps_compile.cluster.load import load_cluster  # noqa: PLC0415 - pydantic

    pool = load_cluster(Path(file))
    names = ", ".join(device.name for device in pool.device_types)
    text = f"{printable(file)}: {counted(len(pool.device_types), 'device type')} ({names}), priced in {pool.currency}"
    with printing("the result"):
        click.echo(text)
