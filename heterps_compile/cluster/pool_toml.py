"""A pool as the text of its file, which is read again as the same pool.

Left out: comments, and numbers rounded for people: a file says exactly what the pool has.
"""

import json
import math
from collections.abc import Iterator

from .devices import Cluster, DeviceType, KindRate, ParameterServer


def pool_toml(pool: Cluster) -> str:
    """Return a pool's file, as ``--cluster FILE`` takes it."""
    lines = [f"description = {_text(pool.description)}", f"currency = {_text(pool.currency)}"]
    for device in pool.device_types:
        lines += ["", "[[device]]", *_device(device, pool.currency)]
        for kind, rate in device.rates.items():
            lines += ["", f"[device.rates.{kind}]", *_rate(rate)]
    for link in pool.links:
        between = ", ".join(map(_text, link.between))
        lines += ["", "[[link]]", f"between = [{between}]", *_some(bandwidth=(link.bytes_per_s, "B/s"))]
        lines += _some(latency=(link.latency_s, "s"))
    if pool.parameter_server is not None:
        lines += ["", "[parameter_server]", *_server(pool.parameter_server, pool.currency)]
    return "\n".join(lines) + "\n"


def _device(device: DeviceType, currency: str) -> Iterator[str]:
    yield f"name = {_text(device.name)}"
    yield f"kind = {_text(device.kind)}"
    yield from _price(device, currency)
    yield f"max_units = {device.max_units}"
    yield from _some(memory=(device.memory_bytes, "B"))
    peaks = ", ".join(f'{dtype} = "{rate!r} FLOP/s"' for dtype, rate in device.peak_flops.items())
    yield f"peak = {{ {peaks} }}"
    yield from _some(
        memory_bandwidth=(device.memory_bytes_per_s, "B/s"),
        network_bandwidth=(device.network_bytes_per_s, "B/s"),
        network_latency=(device.network_latency_s, "s"),
        input_bandwidth=(device.input_bytes_per_s, "B/s"),
        shared_input_bandwidth=(device.shared_input_bytes_per_s, "B/s"),
        launch=(device.launch_s, "s"),
    )
    for key in ("efficiency", "compute_parallel", "data_parallel"):
        yield f"{key} = {getattr(device, key)!r}"
    if device.supports is not None:
        yield f"supports = [{', '.join(map(_text, device.supports))}]"
    if device.units_per_machine > 1:
        yield f"units_per_machine = {device.units_per_machine}"
        yield from _some(inner_bandwidth=(device.inner_bytes_per_s, "B/s"), inner_latency=(device.inner_latency_s, "s"))
    if device.whole_machines:
        yield "whole_machines = true"


def _rate(rate: KindRate) -> Iterator[str]:
    yield from _some(
        start=(rate.start_s, "s"),
        flops=(rate.flops_per_s, "FLOP/s"),
        memory=(rate.bytes_per_s, "B/s"),
        gradient=(rate.gradient_bytes_per_s, "B/s"),
    )
    yield f"backward = {rate.backward!r}"
    if rate.inference != 1.0:
        yield f"inference = {rate.inference!r}"
    yield f"error = {rate.error!r}"
    yield f"dtype = {_text(rate.dtype)}"


def _server(server: ParameterServer, currency: str) -> Iterator[str]:
    yield from _price(server, currency)
    yield from _some(
        bandwidth=(server.bytes_per_s, "B/s"), memory=(server.memory_bytes, "B"), per_table=(server.per_table_s, "s")
    )


def _price(of: DeviceType | ParameterServer, currency: str) -> Iterator[str]:
    yield f"price = {_text(f'{of.price_per_hour!r} {currency}/h' if of.price_per_hour else 'free')}"
    yield f"price_source = {_text(of.price_source)}"
    if of.price_date:
        yield f"price_date = {_text(of.price_date)}"


def _some(**quantities: tuple[float, str]) -> list[str]:
    """Return the lines of those that are limits: what takes no time, or has no end, is not written."""
    return [
        f'{key} = "{amount!r} {unit}"'
        for key, (amount, unit) in quantities.items()
        if amount > 0 and math.isfinite(amount)
    ]


def _text(text: str) -> str:
    """Return a string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
