"""A profile for people: what the whole takes, which layers take the most of it, and what several units gain.

Left out: the file (``cost/profile_file.py``).
"""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.cost.profile import DeviceProfile, Fitted, LayerPoint, Profile, Timing
from heterps_compile.escape import printable, shorten
from heterps_compile.units import counted, format_bytes, format_percent, format_seconds

_SHOWN = 12
_NAME_WIDTH = 40


def print_profile(console: Console, profile: Profile) -> None:
    """Print what was measured, device by device."""
    host = profile.host
    console.print(
        f"{printable(profile.model)} on {printable(host.processor)}, {counted(host.cores, 'core')}, "
        f"{format_bytes(host.memory_bytes)}; {profile.measured}"
    )
    for device in profile.devices:
        console.print()
        console.print(
            f"{device.name}: {device.mode}, {device.backend}, {counted(device.threads, 'thread')}, "
            f"by the {device.clock} clock"
        )
        console.print(_layers(device))
        for line in _lines(device):
            console.print(line)


def _layers(device: DeviceProfile) -> Table:
    """Return the costliest layers at every batch, equal layers in one row."""
    batches = [point.batch for point in device.layers[0].points]
    table = Table(box=None, pad_edge=False)
    table.add_column("layer")
    table.add_column("kind")
    for batch in batches:
        table.add_column(f"batch {batch}", justify="right")
    costliest = sorted(device.layers, key=lambda layer: -_time(layer.points[-1]).median_s)
    for layer in costliest[:_SHOWN]:
        cells = [_shown(_time(point)) for point in layer.points]
        table.add_row(Text(shorten(printable(layer.name), _NAME_WIDTH)), layer.kind, *cells)
    if len(costliest) > _SHOWN:
        table.add_row(f"… and {len(costliest) - _SHOWN} more", "", *("" for _ in batches))
    return table


def _time(point: LayerPoint) -> Timing:
    """Return forward, in training with backward."""
    if point.backward is None:
        return point.forward
    return Timing(point.forward.median_s + point.backward.median_s, point.forward.spread_s + point.backward.spread_s)


def _shown(timing: Timing) -> str:
    share = timing.spread_s / timing.median_s if timing.median_s else 0.0
    return f"{format_seconds(timing.median_s)} ±{format_percent(100 * share)}"


def _lines(device: DeviceProfile) -> list[str]:
    lines = []
    for whole in device.wholes:
        once_s, layers_s = whole.forward_s + whole.backward_s, whole.layers_forward_s + whole.layers_backward_s
        lines.append(
            f"whole model at batch {whole.batch}: {format_seconds(once_s)}; the layers one by one add up to "
            f"{layers_s / once_s:.2f} x the whole, and are corrected to it"
            if once_s
            else f"whole model at batch {whole.batch}: too short to time"
        )
    lines += _fitted("computation", "alpha", device.compute_parallel)
    lines += _fitted("data movement", "beta", device.data_parallel)
    if device.link is not None:
        link = device.link
        lines.append(
            f"link: {format_seconds(link.latency_s)} (±{format_seconds(link.latency_s_error)}) + "
            f"{format_bytes(link.bytes_per_s)}/s (±{format_bytes(link.bytes_per_s_error)}/s); {link.between}"
        )
    return lines


def _fitted(what: str, letter: str, fitted: Fitted | None) -> list[str]:
    if fitted is None:
        return []
    used = "" if fitted.is_usable else "; too uncertain to be used"
    value = f"{fitted.value:.2f} ±{fitted.error:.2f}, from {', '.join(map(str, fitted.units))} units"
    return [f"part of {what} that replicas divide ({letter}): {value}{used}"]
