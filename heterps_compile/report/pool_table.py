"""A pool on a terminal: its device types, links and servers.

Left out: the pool as a file (``cluster/pool_toml.py``).
"""

from rich.table import Table
from rich.text import Text

from heterps_compile.cluster.devices import Cluster
from heterps_compile.columns.column import NARROW
from heterps_compile.console import add_numbers, add_text, name_text, plain_table
from heterps_compile.escape import printable
from heterps_compile.units import format_bytes, format_count, format_money, format_seconds


def cluster_table(pool: Cluster, width: int) -> Table:
    """Draw the device types of a pool, in so many columns."""
    table = plain_table()
    add_text(table, "device", "kind", no_wrap=True)
    add_numbers(table, f"{pool.currency}/h", "units", "memory", "float32")
    if width >= NARROW:
        add_numbers(table, "memory bw", "network")
    add_text(table, "price from", min_width=width // 6)
    for device in pool.device_types:
        bandwidths = (device.memory_bytes_per_s, device.network_bytes_per_s) if width >= NARROW else ()
        table.add_row(
            name_text(device.name, width),
            Text(device.kind),
            Text(format_money(device.price_per_hour) if device.price_per_hour else "free"),
            Text(f"{device.max_units:,}"),
            Text(format_bytes(device.memory_bytes)),
            Text(f"{format_count(device.peak_flops['float32'])}FLOP/s"),
            *(Text(f"{format_count(bandwidth)}B/s") for bandwidth in bandwidths),
            Text(printable(device.price_source) + (f", {device.price_date}" if device.price_date else "")),
        )
    return table


def cluster_lines(pool: Cluster) -> list[str]:
    """Return what a pool has besides device types: links, and parameter servers."""
    lines = [
        f"link {' - '.join(link.between)}: {format_count(link.bytes_per_s)}B/s, {format_seconds(link.latency_s)}"
        for link in pool.links
    ]
    lines += [
        f"machines of {device.units_per_machine} {printable(device.name)}, which share its network: inside "
        f"{format_count(device.inner_bytes_per_s)}B/s, {format_seconds(device.inner_latency_s)}"
        f"{'; rented whole' if device.whole_machines else ''}"
        for device in pool.device_types
        if device.units_per_machine > 1
    ]
    if pool.parameter_server is not None:
        server = pool.parameter_server
        price = f"{format_money(server.price_per_hour)} {pool.currency}/h" if server.price_per_hour else "free"
        lines.append(
            f"parameter server, a core: {price}, {format_count(server.bytes_per_s)}B/s, "
            f"{format_bytes(server.memory_bytes)}, {format_seconds(server.per_table_s)} a table"
        )
    return lines
