"""A calibrated unit as the text of a pool's file.

Numbers are rounded to what was measured: three digits. Left out: prices, which nobody can measure; the unit is free
until somebody writes what it costs.
"""

from heterps_compile.cluster.local import SOURCE, memory_of_machine_bytes, usable_cores
from heterps_compile.cluster.pool_file import is_name
from heterps_compile.cost.profile import Fitted
from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable, short
from heterps_compile.ir.graph import COLD_START
from heterps_compile.units import counted

from .calibrate import Calibration

_USUAL_PARALLEL = 0.95
_NETWORK = ("2 GB/s", "50 us")  # of the built-in pool of this machine
_INPUT = "2 GB/s"


def check_name(name: str) -> None:
    """Refuse, before the long work, a name that no device type can have.

    Raises:
        InputError: saying what a name is made of.
    """
    if not is_name(name):
        raise InputError(
            f"{short(name)} is no name of a device type; take at most 64 letters, digits, dots, dashes and "
            f"underscores, the first a letter or a digit (--name NAME)"
        )


def pool_text(found: Calibration, name: str) -> str:
    """Return a pool's file with one device type, as ``--cluster FILE`` takes it.

    Args:
        found: The unit.
        name: Of the device type.
    """
    units = max(1, usable_cores() // found.threads) if found.kind == "cpu" else 1
    gemm = found.rates["gemm"]
    own = [rate for kind, rate in found.rates.items() if kind != COLD_START]
    memory = [rate.bytes_per_s for rate in own if rate.bytes_per_s < float("inf")]
    link = found.link
    bandwidth, latency = _NETWORK if link is None else (f"{link.bytes_per_s:.3g} B/s", f"{link.latency_s * 1e6:.3g} us")
    versions = ", ".join(f"{package} {version}" for package, version in found.versions.items())
    lines = [
        f"# measured on {found.measured} by heterps-compile calibrate: {_comment(found.description)}",
        f"# {_comment(found.backend)}, {counted(found.threads, 'thread')} a layer; {_comment(versions)}",
        f'description = "{SOURCE}, calibrated on {found.measured}"',
        "",
        "[[device]]",
        f'name = "{name}"',
        f'kind = "{found.kind}"',
        'price = "free"',
        f'price_source = "{SOURCE}, owned"',
        f"max_units = {units}",
        f'memory = "{_memory_bytes(found) // units} B"',
        f'peak = {{ float32 = "{gemm.flops_per_s:.3g} FLOP/s" }}  # what products reach',
        f'memory_bandwidth = "{max(memory):.3g} B/s"  # what the best kind of work reaches',
        f'network_bandwidth = "{bandwidth}"  # between processes of this machine',
        f'network_latency = "{latency}"',
        f'input_bandwidth = "{_INPUT}"  # not measured',
        f'launch = "{max(1e-3, gemm.start_s * 1e6):.3g} us"',
        "efficiency = 1.0  # what stands above was reached",
        _fraction("compute_parallel", found.compute_parallel),
        _fraction("data_parallel", found.data_parallel),
    ]
    for kind, rate in found.rates.items():
        lines += ["", f"[device.rates.{kind}]"]
        if rate.start_s > 0:
            lines.append(f'start = "{rate.start_s * 1e6:.3g} us"')
        if rate.flops_per_s < float("inf"):
            lines.append(f'flops = "{rate.flops_per_s:.3g} FLOP/s"')
        if rate.bytes_per_s < float("inf"):
            lines.append(f'memory = "{rate.bytes_per_s:.3g} B/s"')
        if rate.gradient_bytes_per_s < float("inf"):
            lines.append(f'gradient = "{rate.gradient_bytes_per_s:.3g} B/s"  # of tables, made whole')
        lines += [f"backward = {rate.backward:.3g}", f"inference = {rate.inference:.3g}", f"error = {rate.error:.2g}"]
        if rate.dtype != "float32":
            lines.append(f'dtype = "{rate.dtype}"')
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    return printable(one_line(text))


def _memory_bytes(found: Calibration) -> int:
    if found.kind == "cpu":
        return memory_of_machine_bytes()
    import torch  # noqa: PLC0415 - only for a GPU

    return int(torch.cuda.get_device_properties(found.device).total_memory)


def _fraction(key: str, fitted: Fitted | None) -> str:
    if fitted is None:
        return f"{key} = {_USUAL_PARALLEL}  # not measured"
    if not fitted.is_usable:
        return f"{key} = {_USUAL_PARALLEL}  # measured {fitted.value:.2f} +-{fitted.error:.2f}: too uncertain"
    return f"{key} = {fitted.value:.3g}  # +-{fitted.error:.2g}"
