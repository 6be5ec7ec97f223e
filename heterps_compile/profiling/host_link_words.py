"""The measured network between hosts as tables for a terminal.

Not covered: the measurement (``host_links.py``).
"""

from rich.console import Console
from rich.table import Table

from heterps_compile.escape import printable
from heterps_compile.units import format_bytes, format_seconds

from .host_links import HostLinks, SizeTime, line_s


def print_host_links(console: Console, found: HostLinks) -> None:
    """Print the line of every link, its times beside the line, and the sums."""
    for each in found.links:
        profile = each.profile
        console.print(
            f"link between {' and '.join(map(printable, each.link.between))}: {format_bytes(profile.bytes_per_s)}/s "
            f"+-{format_bytes(profile.bytes_per_s_error)}/s, {format_seconds(profile.latency_s)} "
            f"+-{format_seconds(profile.latency_s_error)} ({profile.between})"
        )
        table = _table("message", "line")
        for one in each.times:
            table.add_row(*_cells(one, line_s(each.link, one.size_bytes)))
        console.print(table)
    table = _table("all-reduce", "cost model")
    for one, model_s in found.sums:
        table.add_row(*_cells(one, model_s))
    console.print(table)
    for note in found.notes:
        console.print(f"note: {printable(note)}")


def _table(what: str, model: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(what)
    for name in ("median", "spread", "rounds", "lower quartile", model):
        table.add_column(name, justify="right")
    return table


def _cells(one: SizeTime, model_s: float) -> tuple[str, ...]:
    times = (format_seconds(one.time.median_s), f"+-{format_seconds(one.time.spread_s)}")
    return format_bytes(one.size_bytes), *times, str(one.rounds), format_seconds(one.fitted_s), format_seconds(model_s)
