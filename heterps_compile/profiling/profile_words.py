"""A profile for people: what the whole takes, which layers take the most of it, and what several units gain.

Left out: the file (``cost/profile_file.py``).
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.cost.precision import FULL
from heterps_compile.cost.profile import Crowding, DeviceProfile, Fitted, LayerPoint, LayerProfile, Profile, Timing
from heterps_compile.cost.step_rates import StepRates
from heterps_compile.escape import printable, shorten
from heterps_compile.units import counted, format_bytes, format_percent, format_seconds

_SHOWN = 12
_NAME_WIDTH = 40
_NO_RATE = 1e12  # entries a second: no processor chooses as many


def print_profile(console: Console, profile: Profile) -> None:
    """Print what was measured, device by device."""
    host = profile.host
    console.print(
        f"{printable(profile.model)} on {printable(host.processor)}, {counted(host.cores, 'core')}, "
        f"{format_bytes(host.memory_bytes)}; {profile.measured}"
    )
    for device in profile.devices:
        precision = "" if device.precision == FULL else f" in {device.precision}"
        console.print()
        console.print(
            f"{device.name}: {device.mode}{precision}, {device.backend}, {counted(device.threads, 'thread')}, "
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
    has_alpha = any(layer.compute_parallel is not None for layer in device.layers)
    if has_alpha:
        table.add_column("alpha", justify="right")
    costliest = sorted(device.layers, key=lambda layer: -_time(layer.points[-1]).median_s)
    for layer in costliest[:_SHOWN]:
        cells = [_shown(_time(point)) for point in layer.points]
        if has_alpha:
            cells.append(_fraction(layer.compute_parallel))
        table.add_row(Text(shorten(printable(layer.name), _NAME_WIDTH)), layer.kind, *cells)
    if len(costliest) > _SHOWN:
        table.add_row(f"… and {len(costliest) - _SHOWN} more")
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
    batches = {point.batch for layer in device.layers for point in layer.points}
    if len(batches) == 1:
        lines.append(
            f"one batch was measured, {batches.pop()}: other sizes are taken in proportion, without a part that "
            f"does not shrink; where the batch is open, measure two at least (--batches N,N)"
        )
    lines += _step_rates(device.step_rates)
    lines += _served(device.layers)
    lines += _crowding(device.crowding)
    lines += _fitted("computation", "alpha", device.compute_parallel)
    lines += _of_layers(device.layers, "compute_parallel", "alpha", device.compute_parallel)
    lines += _fitted("data movement", "beta", device.data_parallel)
    lines += _of_layers(device.layers, "data_parallel", "beta", device.data_parallel)
    if device.link is not None:
        link = device.link
        lines.append(
            f"link: {format_seconds(link.latency_s)} (±{format_seconds(link.latency_s_error)}) + "
            f"{format_bytes(link.bytes_per_s)}/s (±{format_bytes(link.bytes_per_s_error)}/s); {link.between}"
        )
    return lines


def _step_rates(rates: StepRates | None) -> list[str]:
    if rates is None:
        return []
    optimizers = ", ".join(f"{each.name} {format_bytes(each.bytes_per_s)}/s" for each in rates.optimizers)
    chosen = f"{rates.chosen_per_s:.3g} entries a second chosen and {rates.placed_per_s:.3g} placed"
    if rates.chosen_per_s > _NO_RATE:  # to select many took no longer than to select few
        chosen = f"entries chosen in no time that was seen and {rates.placed_per_s:.3g} a second placed"
    return [
        f"beside layers: {format_bytes(rates.moved_per_s)}/s are moved, of {format_bytes(rates.selected_per_s)}/s the "
        f"largest selected, of {format_bytes(rates.combined_per_s)}/s pairs combined, {chosen}; "
        f"steps of optimizers, of weights: {optimizers}"
    ]


def _served(layers: Sequence[LayerProfile]) -> list[str]:
    """Say what layers take together with their tables on servers, beside what they take as they stand."""
    found = [layer for layer in layers if layer.served]
    if not found:
        return []
    there_s = sum(_time(layer.served[-1]).median_s for layer in found)
    held_s = sum(_time(layer.points[-1]).median_s for layer in found)
    return [
        f"tables that parameter servers could hold, of {counted(len(found), 'layer')}: {format_seconds(there_s)} with "
        f"them there, {format_seconds(held_s)} as they stand (batch {found[0].served[-1].batch})"
    ]


def _crowding(found: Crowding | None) -> list[str]:
    if found is None:
        return []
    who = "another process that runs" if found.others == 1 else f"{found.others} other processes that run"
    return [
        f"beside {who} it too, each on a core of its own, the model takes {found.factor:.2f} ±{found.spread:.2f} x as "
        f"long as alone (batch {found.batch}); times of layers are those alone"
    ]


def _fraction(fitted: Fitted | None) -> str:
    return "" if fitted is None else f"{fitted.value:.2f} ±{fitted.error:.2f}"


def _of_layers(layers: Sequence[LayerProfile], field: str, letter: str, whole: Fitted | None) -> list[str]:
    """Say which layers have a fraction of their own, which take another, and what was held in range."""
    found: list[tuple[str, Fitted]] = [
        (shorten(printable(layer.name), _NAME_WIDTH), fitted)
        for layer in layers
        if (fitted := getattr(layer, field)) is not None
    ]
    if whole is None:
        return []
    if not found and letter == "beta":  # no layer reads an input of fewer bytes
        return []
    if not found:
        return [
            f"the {letter} of single layers was not measured: every replica would hold the model twice, and so much "
            f"memory is not free here; all take that of the whole"
        ]
    lines = []
    if whole.is_usable:
        others = [name for name, fitted in found if not fitted.differs_from(whole.value)]
        lines.append(f"{len(found) - len(others)} of {counted(len(found), 'layer')} have {_a(letter)} of their own")
        if others:
            lines[0] += (
                f"; {len(others)} take the {whole.value:.2f} of the whole, from which theirs differs by no more than "
                f"its error: {_names(others)}"
            )
    else:
        lines.append(
            f"a plan takes the {letter} of a layer where it differs from that of the pool's type by more than its error"
        )
    held = [f"{name} {fitted.unclipped:.2f}" for name, fitted in found if fitted.unclipped is not None]
    if held:
        lines.append(f"{letter} was fitted below 0 or above 1, and is held at 0 or 1: {_names(held)}")
    if max(units for _, fitted in found for units in fitted.units) == 2:
        lines.append(
            f"1 and 2 units tell one {letter} of a layer, and not whether it holds for more: that is Amdahl's law, "
            f"not measured"
        )
    return lines


def _a(letter: str) -> str:
    return f"an {letter}" if letter == "alpha" else f"a {letter}, of the inputs they read,"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, and {len(names) - _SHOWN} more (the file has all)"


def _fitted(what: str, letter: str, fitted: Fitted | None) -> list[str]:
    if fitted is None:
        return []
    used = "" if fitted.is_usable else "; too uncertain to be used"
    if fitted.unclipped is not None:
        used = f" (fitted as {fitted.unclipped:.2f}){used}"
    value = f"{fitted.value:.2f} ±{fitted.error:.2f}, from {', '.join(map(str, fitted.units))} units"
    return [f"part of {what} that replicas divide ({letter}): {value}{used}"]
