"""The pool of a plan as the JSON of its file, and back.

A plan keeps its pool by value: what it was priced and timed with, whatever a file or a built-in pool of that name says
later. So :func:`~heterps_compile.plan.provenance.hash_cluster` of what is read back is the plan's own hash.

Left out: the description of the pool, and the pools of today (``review/stale.py``).
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from heterps_compile.cluster.devices import DeviceType, KindRate, Link, ParameterServer

from . import schema
from .plan import Plan, PoolDevice

_KNOWN_EARLIER = tuple(field.name for field in fields(PoolDevice))


def pool_part(plan: Plan) -> dict[str, Any]:
    """Return the pool of a plan as the JSON of its file."""
    server = plan.parameter_server
    return {
        "name": plan.cluster,
        "devices": [_device_part(device) for device in plan.devices],
        "links": [_values(link) for link in plan.links],
        "parameter_server": None if server is None else _values(server),
    }


def devices_of(part: schema.ClusterPart) -> tuple[DeviceType | PoolDevice, ...]:
    """Return the device types of a pool; what an older plan does not tell stays unknown."""
    return tuple(map(_device, part.devices))


def links_of(part: schema.ClusterPart) -> tuple[Link, ...]:
    """Return what connects the device types of a pool."""
    return tuple(Link((link.between[0], link.between[1]), link.bytes_per_s, link.latency_s) for link in part.links)


def server_of(part: schema.ClusterPart) -> ParameterServer | None:
    """Return a core of the pool's parameter servers, where it has any."""
    return None if part.parameter_server is None else ParameterServer(**part.parameter_server.model_dump())


def _device_part(device: DeviceType | PoolDevice) -> dict[str, Any]:
    values = _values(device)
    if isinstance(device, DeviceType):
        values["rates"] = {kind: _values(rate) for kind, rate in sorted(device.rates.items())}
    part = {name: values.pop(name) for name in _KNOWN_EARLIER}
    return {**part, "data_sheet": values or None}


def _device(part: schema.DevicePart) -> DeviceType | PoolDevice:
    known = {name: getattr(part, name) for name in _KNOWN_EARLIER}
    sheet = part.data_sheet
    if sheet is None:
        return PoolDevice(**known)
    told = sheet.model_dump() | {
        "peak_flops": MappingProxyType(dict(sheet.peak_flops)),
        "shared_input_bytes_per_s": math.inf
        if sheet.shared_input_bytes_per_s is None
        else sheet.shared_input_bytes_per_s,
        "supports": None if sheet.supports is None else tuple(sheet.supports),
        "inner_bytes_per_s": math.inf if sheet.inner_bytes_per_s is None else sheet.inner_bytes_per_s,
        "rates": MappingProxyType({kind: _rate(rate) for kind, rate in sheet.rates.items()}),
    }
    return DeviceType(**known, **told)


def _rate(part: schema.RatePart) -> KindRate:
    told = (part.flops_per_s, part.bytes_per_s, part.gradient_bytes_per_s)
    flops_per_s, bytes_per_s, gradient_bytes_per_s = (math.inf if rate is None else rate for rate in told)
    rest = (part.backward, part.error, part.dtype, gradient_bytes_per_s, part.inference)
    return KindRate(part.start_s, flops_per_s, bytes_per_s, *rest)


def _values(of: Any) -> dict[str, Any]:
    """Return the fields of a value as JSON has them; no limit is null."""
    return {field.name: _plain(getattr(of, field.name)) for field in fields(of)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    if isinstance(value, tuple):
        return list(value)
    return None if value == math.inf else value
