"""A calibration for people: what a unit reaches on every kind of work, and how far off that was.

Left out: the pool's file (``pool_entry.py``).
"""

from math import inf

from rich.console import Console
from rich.table import Table

from heterps_compile.escape import printable
from heterps_compile.units import counted, format_bytes, format_count, format_percent, format_seconds

from .calibrate import Calibration


def print_calibration(console: Console, found: Calibration) -> None:
    """Print the rates by kind of work, and what was measured of processes."""
    layers = counted(len(found.timed), "layer")
    console.print(
        f"{printable(found.description)}: {found.backend}, {counted(found.threads, 'thread')}; rates of {layers} in "
        f"{counted(len({each.network for each in found.timed}), 'network')}"
    )
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("work")
    for name in ("start", "arithmetic", "memory", "backward", "inference", "error"):
        table.add_column(name, justify="right")
    for kind, rate in found.rates.items():
        table.add_row(
            kind,
            format_seconds(rate.start_s) if rate.start_s > 0 else "",
            f"{format_count(rate.flops_per_s)}FLOP/s" if rate.flops_per_s < inf else "",
            f"{format_bytes(rate.bytes_per_s)}/s" if rate.bytes_per_s < inf else "",
            f"x {rate.backward:.2f}",
            f"x {rate.inference:.2f}",
            format_percent(100 * rate.error),
        )
    console.print(table)
    console.print()
    console.print("error: of a layer's forward, in the median, on networks that were left out of the fit")
